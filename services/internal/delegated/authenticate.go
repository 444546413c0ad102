package delegated

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/internal/component"
)

var errNoCredentials = errors.New("neither a client certificate nor a token")

// Authenticate finds out who made the request. An error means nobody that is known.
func (g *Gate) Authenticate(r *http.Request) (User, error) {
	if g.certs != nil && r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		return g.certs.user(r.TLS.PeerCertificates)
	}
	scheme, token, _ := strings.Cut(strings.TrimSpace(r.Header.Get("Authorization")), " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return User{}, errNoCredentials
	}
	return g.byToken(r.Context(), token)
}

type tokenAnswer struct {
	user User
	ok   bool
}

// byToken asks the API server. Only a hash of the token is kept.
func (g *Gate) byToken(ctx context.Context, token string) (User, error) {
	key := sha256.Sum256([]byte(token))
	if answer, found := g.tokens.get(key); found {
		return answer.result()
	}
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	reviewed, err := g.cfg.Client.AuthenticationV1().TokenReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return User{}, fmt.Errorf("reviewing a token: %w", err)
	}
	answer := tokenAnswer{ok: reviewed.Status.Authenticated}
	if answer.ok {
		info := reviewed.Status.User
		answer.user = User{Name: info.Username, UID: info.UID, Groups: info.Groups, Extra: map[string][]string{}}
		for key, values := range info.Extra {
			answer.user.Extra[key] = values
		}
	}
	g.tokens.put(key, answer, g.cfg.TokenTTL)
	return answer.result()
}

func (a tokenAnswer) result() (User, error) {
	if !a.ok {
		return User{}, errors.New("the token is not valid")
	}
	return a.user, nil
}

// certificates checks clients' certificates against a file that may change.
type certificates struct {
	file string

	mu       sync.Mutex
	checked  time.Time
	modified time.Time
	loaded   *x509.CertPool
}

func (c *certificates) pool() (*x509.CertPool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.loaded != nil && time.Since(c.checked) < time.Second {
		return c.loaded, nil
	}
	c.checked = time.Now()
	info, err := os.Stat(c.file)
	if err == nil && c.loaded != nil && info.ModTime().Equal(c.modified) {
		return c.loaded, nil
	}
	pool, loadErr := component.CertPool(c.file)
	if loadErr != nil {
		if c.loaded != nil { // half-written; the old ones go on until the new ones parse
			return c.loaded, nil
		}
		return nil, loadErr
	}
	c.loaded = pool
	if err == nil {
		c.modified = info.ModTime()
	}
	return pool, nil
}

func (c *certificates) user(chain []*x509.Certificate) (User, error) {
	pool, err := c.pool()
	if err != nil {
		return User{}, err
	}
	intermediates := x509.NewCertPool()
	for _, certificate := range chain[1:] {
		intermediates.AddCert(certificate)
	}
	options := x509.VerifyOptions{Roots: pool, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if _, err := chain[0].Verify(options); err != nil {
		return User{}, fmt.Errorf("verifying a client certificate: %w", err)
	}
	subject := chain[0].Subject
	if subject.CommonName == "" {
		return User{}, errors.New("the client certificate has no common name")
	}
	groups := append(append([]string(nil), subject.Organization...), "system:authenticated")
	return User{Name: subject.CommonName, Groups: groups}, nil
}
