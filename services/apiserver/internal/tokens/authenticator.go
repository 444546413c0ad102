package tokens

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
)

const (
	// startLeeway is how far in the future a token may begin, for clocks of several
	// API servers that differ.
	startLeeway = time.Minute
	maxKnown    = 8192
)

// Extras of a service account's user.
const (
	PodNameKey  = "authentication.kubernetes.io/pod-name"
	PodUIDKey   = "authentication.kubernetes.io/pod-uid"
	NodeNameKey = "authentication.kubernetes.io/node-name"
	NodeUIDKey  = "authentication.kubernetes.io/node-uid"
)

// Authenticator checks service-account tokens. It implements
// authn.TokenAuthenticator.
//
// A signature is verified once and remembered until the token expires; whether
// the account and what the token is bound to still exist is looked up on every
// use.
type Authenticator struct {
	config Config
	keys   []key
	parser *jwt.Parser
	live   *liveness
	now    func() time.Time

	mu    sync.RWMutex
	known map[[sha256.Size]byte]*accepted
}

// accepted is a token whose signature and claims are good until it expires.
type accepted struct {
	claims *Claims
	user   *authn.User
}

// NewAuthenticator looks bound objects up through getter.
func NewAuthenticator(config Config, getter authn.Getter) (*Authenticator, error) {
	if err := config.complete(); err != nil {
		return nil, err
	}
	keys, err := keysOf(config.SigningKey, config.Keys)
	if err != nil {
		return nil, err
	}
	if len(keys) == 0 {
		return nil, errors.New("service-account tokens need a key to verify them with")
	}
	a := &Authenticator{config: config, keys: keys, now: time.Now, known: map[[sha256.Size]byte]*accepted{}}
	a.live = &liveness{getter: getter, now: func() time.Time { return a.now() }}
	a.parser = jwt.NewParser(
		jwt.WithValidMethods(algorithms(keys)), jwt.WithStrictDecoding(),
		// Times are checked on every use, below.
		jwt.WithoutClaimsValidation(),
	)
	return a, nil
}

// Verified is what a good token proves.
type Verified struct {
	User      *authn.User
	Audiences []string  // those that were asked for and that the token is for
	Expires   time.Time // no later than this
}

// ErrForeign says that a token is not of any of the issuers.
var ErrForeign = errors.New("the token is not one of this cluster's service accounts")

// Verify checks a token for one of the audiences (nil are the API server's own).
// It fails with ErrForeign for tokens of other issuers, and otherwise when the
// token is forged, expired, meant for another audience, or bound to something
// that has gone. Who keeps a connection open on a token's strength must verify it
// again now and then, and close at Expires.
func (a *Authenticator) Verify(ctx context.Context, token string, audiences []string) (Verified, error) {
	sum := sha256.Sum256([]byte(token))
	a.mu.RLock()
	entry := a.known[sum]
	a.mu.RUnlock()
	if entry == nil {
		if !a.ours(token) {
			return Verified{}, ErrForeign
		}
		var err error
		if entry, err = a.accept(token, sum); err != nil {
			return Verified{}, err
		}
	}
	if err := a.inTime(entry.claims); err != nil {
		return Verified{}, err
	}
	if audiences == nil {
		audiences = a.config.Audiences
	}
	granted := intersection(audiences, entry.claims.Audience)
	if len(granted) == 0 {
		return Verified{}, fmt.Errorf("token audiences %q is invalid for the target audiences %q", []string(entry.claims.Audience), audiences)
	}
	if err := a.live.check(ctx, &entry.claims.Kubernetes); err != nil {
		return Verified{}, err
	}
	return Verified{User: entry.user, Audiences: granted, Expires: entry.claims.ExpiresAt.Time}, nil
}

// AuthenticateToken implements authn.TokenAuthenticator. Tokens of other issuers
// are not its business.
func (a *Authenticator) AuthenticateToken(ctx context.Context, token string, audiences []string) (*authn.User, []string, error) {
	verified, err := a.Verify(ctx, token, audiences)
	if errors.Is(err, ErrForeign) {
		return nil, nil, nil
	}
	return verified.User, verified.Audiences, err
}

// ours says whether token is a JWT of one of the issuers, without believing it.
func (a *Authenticator) ours(token string) bool {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return false
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return false
	}
	var claims struct {
		Issuer string `json:"iss"`
	}
	return json.Unmarshal(payload, &claims) == nil && slices.Contains(a.config.Issuers, claims.Issuer)
}

// accept verifies the token, and remembers it unless it has expired.
func (a *Authenticator) accept(token string, sum [sha256.Size]byte) (*accepted, error) {
	claims := &Claims{}
	if _, err := a.parser.ParseWithClaims(token, claims, a.keysFor); err != nil {
		return nil, fmt.Errorf("verifying service-account token: %w", err)
	}
	if err := claims.check(); err != nil {
		return nil, err
	}
	if !slices.Contains(a.config.Issuers, claims.Issuer) {
		return nil, errClaims
	}
	entry := &accepted{claims: claims, user: userOf(claims)}
	if a.inTime(claims) == nil {
		a.remember(sum, entry)
	}
	return entry, nil
}

func (a *Authenticator) remember(sum [sha256.Size]byte, entry *accepted) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.known) >= maxKnown {
		clear(a.known)
	}
	a.known[sum] = entry
}

// keysFor offers the keys whose algorithm the token claims, so that a public key
// is never used as anything else; the one with the token's key id alone, if it is
// among them.
func (a *Authenticator) keysFor(token *jwt.Token) (any, error) {
	set := jwt.VerificationKeySet{}
	id, _ := token.Header["kid"].(string)
	for _, k := range a.keys {
		if k.method.Alg() != token.Method.Alg() {
			continue
		}
		if k.id == id {
			return k.public, nil
		}
		if id == "" {
			set.Keys = append(set.Keys, k.public)
		}
	}
	if len(set.Keys) == 0 {
		return nil, errors.New("no key of the token's id and algorithm")
	}
	return set, nil
}

func (a *Authenticator) inTime(claims *Claims) error {
	now := a.now()
	if claims.ExpiresAt == nil || !now.Before(claims.ExpiresAt.Time) {
		return errors.New("service account token has expired")
	}
	if claims.NotBefore != nil && now.Add(startLeeway).Before(claims.NotBefore.Time) {
		return errors.New("service account token is not valid yet")
	}
	return nil
}

func userOf(claims *Claims) *authn.User {
	bound := &claims.Kubernetes
	user := &authn.User{
		Name:   claims.Subject,
		UID:    string(bound.ServiceAccount.UID),
		Groups: []string{AccountsGroup, AccountsGroupPrefix + bound.Namespace, authn.AuthenticatedGroup},
		Extra:  map[string][]string{},
	}
	if claims.ID != "" {
		user.Extra[authn.CredentialIDKey] = []string{"JTI=" + claims.ID}
	}
	if bound.Pod != nil {
		user.Extra[PodNameKey], user.Extra[PodUIDKey] = []string{bound.Pod.Name}, []string{string(bound.Pod.UID)}
	}
	if bound.Node != nil {
		user.Extra[NodeNameKey] = []string{bound.Node.Name}
		if bound.Node.UID != "" {
			user.Extra[NodeUIDKey] = []string{string(bound.Node.UID)}
		}
	}
	return user
}

func intersection(a, b []string) []string {
	var both []string
	for _, s := range a {
		if slices.Contains(b, s) {
			both = append(both, s)
		}
	}
	return both
}

func algorithms(keys []key) []string {
	var names []string
	for _, k := range keys {
		if name := k.method.Alg(); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}
