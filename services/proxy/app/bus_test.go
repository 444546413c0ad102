package app

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func TestBusURLMustBeEncryptedBeyondLoopback(t *testing.T) {
	for url, want := range map[string]struct{ ok, secure bool }{
		"tls://10.89.0.1:4222": {true, true}, "tls://bus.example:4222": {true, true}, "nats://127.0.0.1:4222": {true, false},
		"nats://10.89.0.1:4222": {}, "nats://localhost:4222": {}, "10.89.0.1:4222": {}, "tls://": {}, "http://10.89.0.1": {}, ":x": {},
	} {
		secure, err := (&BusOptions{URL: url}).check()
		if (err == nil) != want.ok || secure != want.secure {
			t.Errorf("%s: got %v, %v", url, secure, err)
		}
	}
}

func TestBusTokenIsUsedAgainWhileItIsYoungAndAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		asked, broken := 0, false
		client.PrependReactor("create", "serviceaccounts", func(action clienttesting.Action) (bool, runtime.Object, error) {
			request := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenRequest)
			if broken {
				return true, nil, errors.New("not now")
			}
			asked++
			if action.GetSubresource() != "token" || len(request.Spec.Audiences) != 1 || request.Spec.Audiences[0] != "sampan-bus" {
				t.Errorf("asked for %s %v", action.GetSubresource(), request.Spec)
			}
			lifetime := time.Duration(*request.Spec.ExpirationSeconds) * time.Second
			request = request.DeepCopy()
			request.Status = authenticationv1.TokenRequestStatus{Token: strconv.Itoa(asked), ExpirationTimestamp: metav1.NewTime(time.Now().Add(lifetime))}
			return true, request, nil
		})
		token := (&BusOptions{}).token(client)
		assert := func(what, want string) {
			t.Helper()
			if got, err := token(); err != nil || got != want {
				t.Errorf("%s: got %q, %v, want %q", what, got, err, want)
			}
		}
		assert("at first", "1")
		assert("at once again, for it may have been refused", "2")
		time.Sleep(time.Minute)
		assert("at a later reconnection", "2")
		time.Sleep(tokenLifetime / 2)
		assert("past half its life", "3")
		broken = true
		if got, err := token(); err == nil {
			t.Errorf("got %q of an API server that does not answer", got)
		}
	})
}

func TestBusTokenIsReadAnewFromItsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	token := (&BusOptions{TokenFile: path}).token(nil)
	if _, err := token(); err == nil {
		t.Error("a file that is missing is a token")
	}
	for _, want := range []string{"one", "two"} {
		if err := os.WriteFile(path, []byte(want+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := token(); err != nil || got != want {
			t.Errorf("got %q, %v", got, err)
		}
	}
}
