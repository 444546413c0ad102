package authn_test

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/statetest"
	"github.com/sampan-io/sampan/services/internal/pki"
)

func mustAuthority(t *testing.T) *pki.Authority {
	t.Helper()
	authority, err := pki.NewAuthority("test-ca", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return authority
}

// mustBundle writes the authorities into a file and reads it as a bundle.
func mustBundle(t *testing.T, authorities ...*pki.Authority) (*authn.Bundle, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ca.crt")
	writeBundle(t, path, authorities...)
	bundle, err := authn.NewBundle(path)
	if err != nil {
		t.Fatal(err)
	}
	return bundle, path
}

func writeBundle(t *testing.T, path string, authorities ...*pki.Authority) {
	t.Helper()
	var content []byte
	for _, authority := range authorities {
		content = append(content, authority.PEM()...)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// server answers with the user that the authenticator finds: name, groups and UID,
// or 401.
func server(t *testing.T, authenticator authn.Authenticator, bundles ...*authn.Bundle) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, err := authenticator.Authenticate(r)
		if err != nil || user == nil {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("X-User", user.Name+" "+strings.Join(user.Groups, ","))
		if r.Header.Get("Authorization") != "" || r.Header.Get("X-Remote-User") != "" {
			w.Header().Set("X-Leaked", "yes")
		}
	}))
	authority := mustAuthority(t)
	pair := mustIssue(t, authority, pki.Request{CommonName: "server", IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true})
	certificate, err := tls.X509KeyPair(pair.Certificate, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	s.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	authn.RequestCertificates(s.TLS, bundles...)
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs = authority.Pool()
	return s
}

// ask sends one request, with a certificate if pair is not nil, and returns the
// user that the server saw; "" is a 401.
func ask(t *testing.T, s *httptest.Server, pair *pki.KeyPair, path string, header http.Header) string {
	t.Helper()
	config := s.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	if pair != nil {
		certificate, err := tls.X509KeyPair(pair.Certificate, pair.Key)
		if err != nil {
			t.Fatal(err)
		}
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &certificate, nil }
	}
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range header {
		request.Header[name] = values
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	if err := response.Body.Close(); err != nil {
		t.Error(err)
	}
	if response.ProtoMajor != 2 {
		t.Errorf("the server spoke %s", response.Proto)
	}
	if response.Header.Get("X-Leaked") != "" {
		t.Error("the credential was left in the request's headers")
	}
	if response.StatusCode == http.StatusUnauthorized {
		return ""
	}
	return response.Header.Get("X-User")
}

func mustIssue(t *testing.T, authority *pki.Authority, request pki.Request) *pki.KeyPair {
	t.Helper()
	pair, err := authority.Issue(request)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// fixedTokens knows one token.
type fixedTokens struct{ token, user string }

func (f fixedTokens) AuthenticateToken(_ context.Context, token string, audiences []string) (*authn.User, []string, error) {
	switch token {
	case f.token:
		return &authn.User{Name: f.user}, audiences, nil
	case "broken":
		return nil, nil, errors.New("broken")
	}
	return nil, nil, nil
}

func TestUnionOverTLS(t *testing.T) {
	clients, proxies, strangers := mustAuthority(t), mustAuthority(t), mustAuthority(t)
	clientBundle, _ := mustBundle(t, clients)
	proxyBundle, _ := mustBundle(t, proxies)
	union := authn.NewUnion(authn.NewAnonymous(authn.HealthPaths()),
		authn.NewHeaders(proxyBundle, authn.HeaderConfig{AllowedNames: []string{"front-proxy"}}),
		authn.NewCertificates(clientBundle),
		authn.NewBearer(fixedTokens{"good", "bearer"}),
	)
	s := server(t, union, clientBundle, proxyBundle)

	alice := mustIssue(t, clients, pki.Request{CommonName: "alice", Organizations: []string{"dev", "ops"}, Client: true})
	proxy := mustIssue(t, proxies, pki.Request{CommonName: "front-proxy", Client: true})
	otherProxy := mustIssue(t, proxies, pki.Request{CommonName: "other-proxy", Client: true})
	bearer := func(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }
	remote := http.Header{"X-Remote-User": {"bob"}, "X-Remote-Group": {"g1", "g2"}}
	for name, c := range map[string]struct {
		pair   *pki.KeyPair
		path   string
		header http.Header
		want   string
	}{
		"client certificate":                  {alice, "/api", nil, "alice dev,ops,system:authenticated"},
		"certificate and unknown token":       {alice, "/api", bearer("bad"), "alice dev,ops,system:authenticated"},
		"stranger's certificate":              {mustIssue(t, strangers, pki.Request{CommonName: "alice", Client: true}), "/api", nil, ""},
		"stranger's certificate, health":      {mustIssue(t, strangers, pki.Request{CommonName: "alice", Client: true}), "/healthz", nil, ""},
		"stranger's certificate, good token":  {mustIssue(t, strangers, pki.Request{CommonName: "alice", Client: true}), "/api", bearer("good"), "bearer system:authenticated"},
		"server certificate":                  {mustIssue(t, clients, pki.Request{CommonName: "alice", Server: true}), "/api", nil, ""},
		"front proxy":                         {proxy, "/api", remote, "bob g1,g2,system:authenticated"},
		"front proxy without a user":          {proxy, "/api", nil, ""},
		"front proxy that is not allowed":     {otherProxy, "/api", remote, ""},
		"remote user with user's certificate": {alice, "/api", remote, "alice dev,ops,system:authenticated"},
		"remote user without certificate":     {nil, "/api", remote, ""},
		"remote user on a health path":        {nil, "/healthz", remote, "system:anonymous system:unauthenticated"},
		"good token":                          {nil, "/api", bearer("good"), "bearer system:authenticated"},
		"unknown token":                       {nil, "/api", bearer("bad"), ""},
		"unknown token, health":               {nil, "/healthz", bearer("bad"), ""},
		"failing token":                       {nil, "/api", bearer("broken"), ""},
		"huge token":                          {nil, "/api", bearer(strings.Repeat("x", 70<<10)), ""},
		"nothing":                             {nil, "/api", nil, ""},
		"nothing, health":                     {nil, "/healthz", nil, "system:anonymous system:unauthenticated"},
		"nothing, one check":                  {nil, "/readyz/ping", nil, "system:anonymous system:unauthenticated"},
		"nothing, version":                    {nil, "/version", nil, "system:anonymous system:unauthenticated"},
		"nothing, path that begins alike":     {nil, "/healthzz", nil, ""},
		"nothing, discovery":                  {nil, "/apis", nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := ask(t, s, c.pair, c.path, c.header); got != c.want {
				t.Errorf("server saw %q, want %q", got, c.want)
			}
		})
	}
}

func TestExpiredCertificateIsRefusedOnAnOpenConnection(t *testing.T) {
	authority := mustAuthority(t)
	bundle, _ := mustBundle(t, authority)
	pair := mustIssue(t, authority, pki.Request{CommonName: "alice", Client: true, Lifetime: -time.Minute})
	s := server(t, authn.NewUnion(nil, authn.NewCertificates(bundle)), bundle)
	if got := ask(t, s, pair, "/api", nil); got != "" {
		t.Errorf("server saw %q", got)
	}
}

func TestBundleIsReadAgain(t *testing.T) {
	first, second := mustAuthority(t), mustAuthority(t)
	bundle, path := mustBundle(t, first)
	s := server(t, authn.NewUnion(nil, authn.NewCertificates(bundle)), bundle)
	pair := mustIssue(t, second, pki.Request{CommonName: "alice", Client: true})
	if got := ask(t, s, pair, "/api", nil); got != "" {
		t.Errorf("before: server saw %q", got)
	}
	writeBundle(t, path, first, second)
	deadline := time.Now().Add(10 * time.Second)
	for ask(t, s, pair, "/api", nil) == "" {
		if time.Now().After(deadline) {
			t.Fatal("the new authority was not taken up")
		}
	}
	if err := os.WriteFile(path, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := ask(t, s, pair, "/api", nil); got == "" {
		t.Error("a damaged file took the authorities away")
	}
}

func TestWebSocketTokenIsNotEchoed(t *testing.T) {
	bearer := authn.NewBearer(fixedTokens{"good", "browser"})
	encoded := base64.RawURLEncoding.EncodeToString([]byte("good"))
	ask := func(protocols string) (*authn.User, string, error) {
		r := httptest.NewRequest(http.MethodGet, "/api", nil)
		r.Header.Set("Upgrade", "websocket")
		r.Header.Set("Sec-WebSocket-Protocol", protocols)
		user, err := bearer.Authenticate(r)
		return user, r.Header.Get("Sec-WebSocket-Protocol"), err
	}
	user, left, err := ask("v4.channel.k8s.io, base64url.bearer.authorization.k8s.io." + encoded)
	if err != nil || user == nil || user.Name != "browser" || left != "v4.channel.k8s.io" {
		t.Errorf("%v, %q, %v", user, left, err)
	}
	if user, _, err := ask("base64url.bearer.authorization.k8s.io." + encoded); err == nil || user != nil {
		t.Errorf("a token alone: %v, %v", user, err)
	}
	if user, _, err := ask("x, base64url.bearer.authorization.k8s.io.!!!"); err == nil || user != nil {
		t.Errorf("a garbled token: %v, %v", user, err)
	}
	if user, left, err := ask("v4.channel.k8s.io"); err != nil || user != nil || left != "v4.channel.k8s.io" {
		t.Errorf("no token: %v, %q, %v", user, left, err)
	}
}

func TestHeadersCarryUIDAndExtra(t *testing.T) {
	proxies := mustAuthority(t)
	bundle, _ := mustBundle(t, proxies)
	headers := authn.NewHeaders(bundle, authn.HeaderConfig{})
	pair := mustIssue(t, proxies, pki.Request{CommonName: "front-proxy", Client: true})
	certificates, err := pki.ParseCertificates(pair.Certificate)
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodGet, "/api", nil)
	r.TLS = &tls.ConnectionState{PeerCertificates: certificates}
	r.Header = http.Header{"X-Remote-User": {"bob"}, "X-Remote-Uid": {"42"}, "X-Remote-Extra-Example.com%2fscope": {"a", "b"}, "Accept": {"x"}}
	user, err := headers.Authenticate(r)
	if err != nil {
		t.Fatal(err)
	}
	if user.Name != "bob" || user.UID != "42" || !slices.Equal(user.Extra["example.com/scope"], []string{"a", "b"}) {
		t.Errorf("user %+v", user)
	}
	if len(r.Header) != 1 {
		t.Errorf("headers left: %v", r.Header)
	}
}

func TestHeadersAreTakenOutWithoutAFrontProxy(t *testing.T) {
	headers := authn.NewHeaders(nil, authn.HeaderConfig{})
	r := httptest.NewRequest(http.MethodGet, "/api", nil)
	r.Header = http.Header{"X-Remote-User": {"root"}, "X-Remote-Group": {"system:masters"}, "Accept": {"x"}}
	if user, err := headers.Authenticate(r); user != nil || err != nil {
		t.Errorf("%v, %v", user, err)
	}
	if len(r.Header) != 1 {
		t.Errorf("headers left: %v", r.Header)
	}
}

func TestBootstrapTokens(t *testing.T) {
	const token = "abcdef.0123456789abcdef"
	secret := func(change func(*corev1.Secret)) *corev1.Secret {
		s := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-abcdef"}, Type: "bootstrap.kubernetes.io/token",
			Data: map[string][]byte{
				"token-id": []byte("abcdef"), "token-secret": []byte("0123456789abcdef"), "usage-bootstrap-authentication": []byte("true"),
				"expiration": []byte(time.Now().Add(time.Hour).Format(time.RFC3339)), "auth-extra-groups": []byte("system:bootstrappers:sampan"),
			},
		}
		change(s)
		return s
	}
	for name, c := range map[string]struct {
		secret *corev1.Secret
		token  string
		ok     bool
	}{
		"good":         {secret(func(*corev1.Secret) {}), token, true},
		"no secret":    {nil, token, false},
		"wrong secret": {secret(func(*corev1.Secret) {}), "abcdef.0123456789abcdee", false},
		"wrong form":   {secret(func(*corev1.Secret) {}), "ABCDEF.0123456789abcdef", false},
		"expired": {secret(func(s *corev1.Secret) {
			s.Data["expiration"] = []byte(time.Now().Add(-time.Second).Format(time.RFC3339))
		}), token, false},
		"bad expiration": {secret(func(s *corev1.Secret) { s.Data["expiration"] = []byte("soon") }), token, false},
		"not for this":   {secret(func(s *corev1.Secret) { delete(s.Data, "usage-bootstrap-authentication") }), token, false},
		"other type":     {secret(func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque }), token, false},
		"masters":        {secret(func(s *corev1.Secret) { s.Data["auth-extra-groups"] = []byte("system:masters") }), token, false},
		"empty secret":   {secret(func(s *corev1.Secret) { s.Data["token-secret"] = nil }), token, false},
	} {
		t.Run(name, func(t *testing.T) {
			state := statetest.New()
			if c.secret != nil {
				state.Put(corev1.Resource("secrets"), c.secret)
			}
			user, _, err := authn.Tokens{authn.NewBootstrapTokens(state)}.AuthenticateToken(t.Context(), c.token, nil)
			if ok := user != nil && err == nil; ok != c.ok {
				t.Fatalf("%v, %v", user, err)
			}
			if c.ok && (user.Name != "system:bootstrap:abcdef" || !slices.Equal(user.Groups, []string{"system:bootstrappers", "system:bootstrappers:sampan", "system:authenticated"})) {
				t.Errorf("user %+v", user)
			}
		})
	}
}

func BenchmarkCertificates(b *testing.B) {
	authority, err := pki.NewAuthority("ca", time.Hour)
	if err != nil {
		b.Fatal(err)
	}
	path := filepath.Join(b.TempDir(), "ca.crt")
	if err := os.WriteFile(path, authority.PEM(), 0o600); err != nil {
		b.Fatal(err)
	}
	bundle, err := authn.NewBundle(path)
	if err != nil {
		b.Fatal(err)
	}
	pair, err := authority.Issue(pki.Request{CommonName: "x", Client: true})
	if err != nil {
		b.Fatal(err)
	}
	certificates, err := pki.ParseCertificates(pair.Certificate)
	if err != nil {
		b.Fatal(err)
	}
	union := authn.NewUnion(nil, authn.NewCertificates(bundle))
	r := httptest.NewRequest(http.MethodGet, "/api", nil)
	r.TLS = &tls.ConnectionState{PeerCertificates: certificates}
	for b.Loop() {
		if _, err := union.Authenticate(r); err != nil {
			b.Fatal(err)
		}
	}
}
