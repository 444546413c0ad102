package authn

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxToken bounds a bearer token's length in bytes.
const maxToken = 64 << 10

// ErrInvalidToken says that no authenticator knows the token.
var ErrInvalidToken = errors.New("invalid bearer token")

// TokenAuthenticator finds the user of a bearer token. A nil user without an
// error means that the token is not of its kind.
type TokenAuthenticator interface {
	// AuthenticateToken accepts a token for one of the audiences and returns those
	// of them that it is good for. Nil audiences are the API server's own.
	AuthenticateToken(ctx context.Context, token string, audiences []string) (user *User, granted []string, err error)
}

// Tokens asks several token authenticators in order.
type Tokens []TokenAuthenticator

// AuthenticateToken implements TokenAuthenticator; a token that nobody knows is
// ErrInvalidToken.
func (t Tokens) AuthenticateToken(ctx context.Context, token string, audiences []string) (*User, []string, error) {
	var failures []error
	for _, authenticator := range t {
		user, granted, err := authenticator.AuthenticateToken(ctx, token, audiences)
		if err != nil {
			failures = append(failures, err)
			continue
		}
		if user != nil {
			return authenticated(user), granted, nil
		}
	}
	return nil, nil, errors.Join(append([]error{ErrInvalidToken}, failures...)...)
}

// Bearer authenticates requests by the token in their Authorization header, or
// in a WebSocket's subprotocols, where browsers cannot set headers.
type Bearer struct {
	tokens TokenAuthenticator
}

// NewBearer asks the token authenticators in order.
func NewBearer(list ...TokenAuthenticator) *Bearer { return &Bearer{tokens: Tokens(list)} }

// Authenticate implements Authenticator.
func (b *Bearer) Authenticate(r *http.Request) (*User, error) {
	token := headerToken(r)
	if token == "" {
		var err error
		if token, err = protocolToken(r); token == "" || err != nil {
			return nil, err
		}
	}
	if len(token) > maxToken {
		return nil, ErrInvalidToken
	}
	user, _, err := b.tokens.AuthenticateToken(r.Context(), token, nil)
	return user, err
}

func headerToken(r *http.Request) string {
	scheme, token, _ := strings.Cut(strings.TrimSpace(r.Header.Get("Authorization")), " ")
	if !strings.EqualFold(scheme, "bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

const bearerProtocol = "base64url.bearer.authorization.k8s.io."

// protocolToken takes the token out of Sec-WebSocket-Protocol. The client must
// offer another subprotocol too: the server answers with one of those that are
// left, and a token must not be echoed.
func protocolToken(r *http.Request) (string, error) {
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		return "", nil
	}
	var offered []string
	for _, line := range r.Header.Values("Sec-WebSocket-Protocol") {
		for protocol := range strings.SplitSeq(line, ",") {
			offered = append(offered, strings.TrimSpace(protocol))
		}
	}
	at := slices.IndexFunc(offered, func(p string) bool { return strings.HasPrefix(p, bearerProtocol) })
	if at < 0 {
		return "", nil
	}
	decoded, err := base64.RawURLEncoding.DecodeString(offered[at][len(bearerProtocol):])
	if err != nil || !utf8.Valid(decoded) {
		return "", errors.New("the bearer token in the WebSocket's subprotocols is not base64url")
	}
	rest := slices.DeleteFunc(offered, func(p string) bool { return strings.HasPrefix(p, bearerProtocol) })
	if len(rest) == 0 {
		return "", errors.New("a WebSocket with a bearer token must offer another subprotocol too")
	}
	r.Header.Set("Sec-WebSocket-Protocol", strings.Join(rest, ","))
	return string(decoded), nil
}
