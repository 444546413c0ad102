package authn

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"sync"
	"time"
)

// bundleCheck is how often at most a bundle's file is looked at.
const bundleCheck = time.Second

// Bundle is the authorities in a PEM file, read again when the file changes. A
// change that does not parse leaves the authorities as they were.
type Bundle struct {
	path string

	mu       sync.Mutex
	checked  time.Time
	modified time.Time
	size     int64
	roots    *Roots
}

// Roots are the authorities of a bundle at some time. They are shared and must
// not be changed; each reading makes another *Roots.
type Roots struct {
	Pool         *x509.CertPool
	Certificates []*x509.Certificate
}

// NewBundle reads the file, which must hold a certificate.
func NewBundle(path string) (*Bundle, error) {
	b := &Bundle{path: path}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("reading client authorities: %w", err)
	}
	if b.roots, err = readRoots(path); err != nil {
		return nil, err
	}
	b.modified, b.size, b.checked = info.ModTime(), info.Size(), time.Now()
	return b, nil
}

// Roots are the present authorities.
func (b *Bundle) Roots() *Roots {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now := time.Now(); now.Sub(b.checked) >= bundleCheck {
		b.checked = now
		b.reload()
	}
	return b.roots
}

// reload reads a changed file. Caller must hold mu.
func (b *Bundle) reload() {
	info, err := os.Stat(b.path)
	if err != nil || info.ModTime().Equal(b.modified) && info.Size() == b.size {
		return
	}
	if roots, err := readRoots(b.path); err == nil {
		b.roots, b.modified, b.size = roots, info.ModTime(), info.Size()
	}
}

func readRoots(path string) (*Roots, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading client authorities: %w", err)
	}
	roots := &Roots{Pool: x509.NewCertPool()}
	for block := (*pem.Block)(nil); ; {
		block, content = pem.Decode(content)
		if block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("reading client authorities %s: %w", path, err)
		}
		roots.Pool.AddCert(certificate)
		roots.Certificates = append(roots.Certificates, certificate)
	}
	if len(roots.Certificates) == 0 {
		return nil, fmt.Errorf("reading client authorities %s: no PEM certificate", path)
	}
	return roots, nil
}

// RequestCertificates sets config to ask clients for a certificate of one of the
// bundles, as these are at the time of each handshake. The handshake accepts any
// certificate: it is the authenticators that verify it, so that one server can
// tell users, front proxies and strangers apart. Config must be otherwise
// complete; HTTP/2 is offered unless it says which protocols are.
func RequestCertificates(config *tls.Config, bundles ...*Bundle) {
	config.ClientAuth = tls.RequestClientCert
	if len(config.NextProtos) == 0 {
		config.NextProtos = []string{"h2", "http/1.1"}
	}
	base := config.Clone()
	var mu sync.Mutex
	var current *tls.Config
	seen := make([]*Roots, len(bundles))
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		mu.Lock()
		defer mu.Unlock()
		changed := current == nil
		for i, bundle := range bundles {
			if roots := bundle.Roots(); roots != seen[i] {
				seen[i], changed = roots, true
			}
		}
		if changed {
			current = base.Clone()
			current.ClientCAs = x509.NewCertPool()
			for _, roots := range seen {
				for _, certificate := range roots.Certificates {
					current.ClientCAs.AddCert(certificate)
				}
			}
		}
		return current, nil
	}
}
