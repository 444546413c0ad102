package authn

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// CredentialIDKey is the extra under which a user carries which credential
// authenticated it.
const CredentialIDKey = "authentication.kubernetes.io/credential-id"

// maxVerified bounds the remembered certificates.
const maxVerified = 4096

// Certificates authenticates by client certificate: the common name is the user,
// the organizations are the groups.
type Certificates struct {
	verifier verifier
	left     prometheus.Histogram
}

// NewCertificates trusts the authorities of bundle.
func NewCertificates(bundle *Bundle) *Certificates {
	const hour = 3600
	return &Certificates{
		verifier: verifier{bundle: bundle, identify: identityOf},
		left: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "apiserver_client_certificate_expiration_seconds",
			Help:    "Distribution of the remaining lifetime on the certificate used to authenticate a request.",
			Buckets: []float64{0, hour / 2, hour, 2 * hour, 6 * hour, 12 * hour, 24 * hour, 48 * hour, 96 * hour, 168 * hour, 720 * hour, 2160 * hour, 4320 * hour, 8640 * hour},
		}),
	}
}

// Metrics is what the authenticator measures.
func (c *Certificates) Metrics() prometheus.Collector { return c.left }

// Authenticate implements Authenticator. A certificate of unknown authority is an
// error, as is one that has expired or is not for clients.
func (c *Certificates) Authenticate(r *http.Request) (*User, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil, nil
	}
	now := time.Now()
	user, err := c.verifier.verify(r.TLS.PeerCertificates, now)
	if err == nil {
		c.left.Observe(r.TLS.PeerCertificates[0].NotAfter.Sub(now).Seconds())
	}
	return user, err
}

func identityOf(certificate *x509.Certificate) (*User, error) {
	if certificate.Subject.CommonName == "" {
		return nil, errors.New("client certificate has no common name")
	}
	sum := sha256.Sum256(certificate.Raw)
	return &User{
		Name:   certificate.Subject.CommonName,
		Groups: append(append([]string(nil), certificate.Subject.Organization...), AuthenticatedGroup),
		Extra:  map[string][]string{CredentialIDKey: {"X509SHA256=" + hex.EncodeToString(sum[:])}},
	}, nil
}

// verifier verifies chains, and remembers the leaves that it verified: a
// verification costs a signature check, and each request would pay for it.
type verifier struct {
	bundle   *Bundle
	identify func(*x509.Certificate) (*User, error)

	mu    sync.RWMutex
	roots *Roots // that the remembered leaves were verified against
	known map[*x509.Certificate]verified
}

type verified struct {
	user  *User
	until time.Time // the earliest end in the chain
}

func (v *verifier) verify(chain []*x509.Certificate, now time.Time) (*User, error) {
	roots := v.bundle.Roots()
	leaf := chain[0]
	v.mu.RLock()
	hit, ok := v.known[leaf]
	ok = ok && v.roots == roots
	v.mu.RUnlock()
	if ok && now.Before(hit.until) {
		return hit.user, nil
	}
	intermediates := x509.NewCertPool()
	for _, certificate := range chain[1:] {
		intermediates.AddCert(certificate)
	}
	chains, err := leaf.Verify(x509.VerifyOptions{
		Roots: roots.Pool, Intermediates: intermediates, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return nil, fmt.Errorf("verifying client certificate of %q: %w", leaf.Subject.CommonName, err)
	}
	user, err := v.identify(leaf)
	if err != nil {
		return nil, err
	}
	v.remember(roots, leaf, verified{user: user, until: endOf(chains[0])})
	return user, nil
}

func (v *verifier) remember(roots *Roots, leaf *x509.Certificate, result verified) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.roots != roots || len(v.known) >= maxVerified {
		v.roots, v.known = roots, map[*x509.Certificate]verified{}
	}
	v.known[leaf] = result
}

func endOf(chain []*x509.Certificate) time.Time {
	end := chain[0].NotAfter
	for _, certificate := range chain[1:] {
		if certificate.NotAfter.Before(end) {
			end = certificate.NotAfter
		}
	}
	return end
}
