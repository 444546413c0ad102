package authn_test

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
)

// oneToken knows one token.
type oneToken struct{ asked []string }

func (o *oneToken) AuthenticateToken(_ context.Context, token string, _ []string) (*authn.User, []string, error) {
	o.asked = append(o.asked, token)
	if token != "good" {
		return nil, nil, authn.ErrInvalidToken
	}
	return &authn.User{Name: "someone"}, nil, nil
}

func FuzzBearer(f *testing.F) {
	const inProtocol = "base64url.bearer.authorization.k8s.io."
	for _, seed := range [][2]string{
		{"Bearer good", ""}, {"bearer  good ", ""}, {"Basic good", ""}, {"Bearer", ""}, {"", inProtocol + "Z29vZA, v5.channel.k8s.io"},
		{"", inProtocol + "Z29vZA"}, {"", inProtocol + "!!, x"}, {"", inProtocol + "_w, x"}, {"Bearer bad", inProtocol + "Z29vZA, x"},
		{"", "x," + inProtocol + "Z29vZA," + inProtocol + "Z29vZA"},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, authorization, protocols string) {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Authorization", authorization)
		r.Header.Set("Upgrade", "websocket")
		r.Header.Set("Sec-WebSocket-Protocol", protocols)
		tokens := &oneToken{}
		user, err := authn.NewBearer(tokens).Authenticate(r)
		if user != nil && (err != nil || len(tokens.asked) != 1 || tokens.asked[0] != "good") {
			t.Errorf("%q, %q is %v, %v after %q", authorization, protocols, user, err, tokens.asked)
		}
		if user != nil && !strings.Contains(authorization, "good") && strings.Contains(r.Header.Get("Sec-WebSocket-Protocol"), inProtocol) {
			t.Errorf("the token goes on in %q", r.Header.Get("Sec-WebSocket-Protocol"))
		}
	})
}

// Whatever headers a client sends who is no front proxy, they name nobody and
// reach nobody.
func FuzzHeadersOfStrangers(f *testing.F) {
	f.Add("X-Remote-User", "admin")
	f.Add("X-Remote-Group", "system:masters")
	f.Add("X-Remote-Extra-a%2fb", "x")
	f.Add("x-remote-extra-", "%zz")
	f.Add("X-Remote-Uid", "\x00")
	f.Fuzz(func(t *testing.T, name, value string) {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header["X-Remote-User"] = []string{"admin"}
		r.Header[name] = append(r.Header[name], value)
		user, err := authn.NewHeaders(nil, authn.HeaderConfig{}).Authenticate(r)
		if user != nil || err != nil {
			t.Errorf("%q: %q is %v, %v", name, value, user, err)
		}
		if _, ok := r.Header["X-Remote-User"]; ok {
			t.Error("the header goes on")
		}
	})
}
