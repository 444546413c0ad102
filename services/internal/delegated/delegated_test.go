package delegated_test

import (
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/sampan-io/sampan/services/internal/delegated"
	"github.com/sampan-io/sampan/services/internal/pki"
)

// fakeAPI answers reviews: the token "good" is alice's, who may get /metrics.
type fakeAPI struct {
	*fake.Clientset
	tokens, access int
}

func newFakeAPI() *fakeAPI {
	api := &fakeAPI{Clientset: fake.NewClientset()}
	api.PrependReactor("create", "tokenreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		api.tokens++
		review := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview).DeepCopy()
		review.Status.Authenticated = review.Spec.Token == "good"
		review.Status.User.Username = "alice"
		return true, review, nil
	})
	api.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		api.access++
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
		path := review.Spec.NonResourceAttributes
		review.Status.Allowed = review.Spec.User == "alice" && path.Path == "/metrics" && path.Verb == "get"
		return true, review, nil
	})
	return api
}

func mustGate(t *testing.T, cfg delegated.Config) http.Handler {
	t.Helper()
	cfg.Open = []string{"/healthz", "/open/*"}
	gate, err := delegated.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return gate.Wrap(delegated.PathAttributes, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, _ := delegated.UserFrom(r.Context())
		_, _ = io.WriteString(w, user.Name)
	}))
}

func TestGateAnswersByTokenAndAccess(t *testing.T) {
	handler := mustGate(t, delegated.Config{Client: newFakeAPI()})
	for _, c := range []struct {
		name, method, path, token string
		want                      int
	}{
		{"an open path needs nothing", "GET", "/healthz", "", http.StatusOK},
		{"a path below an open one too", "GET", "/open/a", "", http.StatusOK},
		{"nobody", "GET", "/metrics", "", http.StatusUnauthorized},
		{"a bad token", "GET", "/metrics", "bad", http.StatusUnauthorized},
		{"what is allowed", "GET", "/metrics", "good", http.StatusOK},
		{"another path", "GET", "/configz", "good", http.StatusForbidden},
		{"another verb", "POST", "/metrics", "good", http.StatusForbidden},
	} {
		t.Run(c.name, func(t *testing.T) {
			request := httptest.NewRequest(c.method, c.path, nil)
			if c.token != "" {
				request.Header.Set("Authorization", "Bearer "+c.token)
			}
			recorder := httptest.NewRecorder()
			handler.ServeHTTP(recorder, request)
			if recorder.Code != c.want {
				t.Errorf("status %d (%s), want %d", recorder.Code, recorder.Body, c.want)
			}
		})
	}
}

func TestGateKeepsAnswersForTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		handler := mustGate(t, delegated.Config{Client: api, TokenTTL: time.Minute, AllowedTTL: 5 * time.Minute})
		get := func() {
			request := httptest.NewRequest("GET", "/metrics", nil)
			request.Header.Set("Authorization", "Bearer good")
			handler.ServeHTTP(httptest.NewRecorder(), request)
		}
		get()
		get()
		if api.tokens != 1 || api.access != 1 {
			t.Errorf("asked %d times of the token and %d of access, want once each", api.tokens, api.access)
		}
		time.Sleep(2 * time.Minute)
		get()
		if api.tokens != 2 || api.access != 1 {
			t.Errorf("after two minutes asked %d times of the token and %d of access, want 2 and 1", api.tokens, api.access)
		}
	})
}

func TestGateChecksClientCertificates(t *testing.T) {
	dir := t.TempDir()
	ours, err := pki.EnsureAuthority(filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key"), "ours", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := pki.EnsureAuthority(filepath.Join(dir, "other.crt"), filepath.Join(dir, "other.key"), "foreign", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(mustGate(t, delegated.Config{Client: newFakeAPI(), ClientCAFile: filepath.Join(dir, "ca.crt")}))
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	server.StartTLS()
	defer server.Close()
	for _, c := range []struct {
		name      string
		authority *pki.Authority
		request   pki.Request
		want      int
	}{
		{"alice's", ours, pki.Request{CommonName: "alice", Client: true}, http.StatusOK},
		{"bob's, who may not", ours, pki.Request{CommonName: "bob", Client: true}, http.StatusForbidden},
		{"signed by another", foreign, pki.Request{CommonName: "alice", Client: true}, http.StatusUnauthorized},
		{"for servers only", ours, pki.Request{CommonName: "alice", Server: true, DNSNames: []string{"alice"}}, http.StatusUnauthorized},
	} {
		t.Run(c.name, func(t *testing.T) {
			issued, err := c.authority.Issue(c.request)
			if err != nil {
				t.Fatal(err)
			}
			pair, err := tls.X509KeyPair(issued.Certificate, issued.Key)
			if err != nil {
				t.Fatal(err)
			}
			// Each with a connection of its own: one that is taken again has its first certificate.
			transport := server.Client().Transport.(*http.Transport).Clone()
			transport.TLSClientConfig.Certificates = []tls.Certificate{pair}
			defer transport.CloseIdleConnections()
			response, err := (&http.Client{Transport: transport}).Get(server.URL + "/metrics")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = response.Body.Close() }()
			if response.StatusCode != c.want {
				t.Errorf("status %d, want %d", response.StatusCode, c.want)
			}
		})
	}
}
