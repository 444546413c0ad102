package tokens

import (
	"crypto"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"
)

// Config says how tokens are signed and which are accepted.
type Config struct {
	// Issuers are accepted in a token's iss; the first is written into new ones
	// (--service-account-issuer).
	Issuers []string
	// Audiences are the API server's own (--api-audiences); the first issuer when
	// empty.
	Audiences []string
	// SigningKey signs (--service-account-signing-key-file). Nil issues nothing.
	SigningKey crypto.Signer
	// Keys verify besides the signing key's public half, so that keys can be
	// rotated (--service-account-key-file).
	Keys []crypto.PublicKey
	// MaxExpiration caps lifetimes (--service-account-max-token-expiration); 0 is
	// without a cap.
	MaxExpiration time.Duration
	// Extend lets the tokens that admission mounts into pods live for a year, and
	// warn after the requested time, for clients that do not read them again
	// (--service-account-extend-token-expiration, upstream's default).
	Extend bool
}

func (c *Config) complete() error {
	if len(c.Issuers) == 0 || c.Issuers[0] == "" {
		return errors.New("service-account tokens need an issuer")
	}
	for _, issuer := range c.Issuers {
		if strings.Contains(issuer, ":") {
			if _, err := url.Parse(issuer); err != nil {
				return fmt.Errorf("service-account issuer %q is neither a plain name nor a URL: %w", issuer, err)
			}
		}
	}
	if len(c.Audiences) == 0 {
		c.Audiences = c.Issuers[:1]
	}
	return nil
}

// Issuer signs tokens.
type Issuer struct {
	config Config
	key    key
	now    func() time.Time
}

// NewIssuer refuses a configuration without an issuer's name or a usable signing
// key.
func NewIssuer(config Config) (*Issuer, error) {
	if err := config.complete(); err != nil {
		return nil, err
	}
	if config.SigningKey == nil {
		return nil, errors.New("service-account tokens need a signing key")
	}
	k, err := newKey(config.SigningKey.Public())
	if err != nil {
		return nil, err
	}
	return &Issuer{config: config, key: k, now: time.Now}, nil
}

// Lifetimes of mounted tokens, upstream's figures: the one that admission asks
// for, and the one that they get when extended.
const (
	MountedExpirationSeconds  = 3607
	extendedExpirationSeconds = 365 * 24 * 3600
)

// Grant is what a token is issued for.
type Grant struct {
	Bound             Bound // WarnAfter is filled in
	Audiences         []string
	ExpirationSeconds int64
}

// Issue signs a token and says when it expires.
func (i *Issuer) Issue(grant Grant) (token string, expires time.Time, err error) {
	now := i.now()
	lifetime, warn := i.lifetime(grant)
	if warn > 0 {
		grant.Bound.WarnAfter = jwt.NewNumericDate(now.Add(warn))
	}
	expires = now.Add(lifetime)
	claims := Claims{
		RegisteredClaims: jwt.RegisteredClaims{
			Issuer:    i.config.Issuers[0],
			Subject:   UserName(grant.Bound.Namespace, grant.Bound.ServiceAccount.Name),
			Audience:  grant.Audiences,
			IssuedAt:  jwt.NewNumericDate(now),
			NotBefore: jwt.NewNumericDate(now),
			ExpiresAt: jwt.NewNumericDate(expires),
			ID:        uuid.NewString(),
		},
		Kubernetes: grant.Bound,
	}
	unsigned := jwt.NewWithClaims(i.key.method, claims)
	unsigned.Header["kid"] = i.key.id
	token, err = unsigned.SignedString(i.config.SigningKey)
	if err != nil {
		return "", time.Time{}, fmt.Errorf("signing token of %s: %w", claims.Subject, err)
	}
	return token, expires, nil
}

func (i *Issuer) lifetime(grant Grant) (lifetime, warn time.Duration) {
	seconds := grant.ExpirationSeconds
	extend := i.config.Extend && grant.Bound.Pod != nil && seconds == MountedExpirationSeconds && i.ownAudiences(grant.Audiences)
	if extend {
		warn = time.Duration(seconds) * time.Second
		seconds = extendedExpirationSeconds
	}
	lifetime = time.Duration(seconds) * time.Second
	if i.config.MaxExpiration > 0 && lifetime > i.config.MaxExpiration {
		lifetime = i.config.MaxExpiration
	}
	return lifetime, warn
}

func (i *Issuer) ownAudiences(audiences []string) bool {
	return len(audiences) > 0 && len(intersection(audiences, i.config.Audiences)) == len(audiences)
}
