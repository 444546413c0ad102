package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"slices"
	"time"
)

// Request says what a leaf certificate certifies.
type Request struct {
	CommonName    string   // the user, for a client certificate
	Organizations []string // the groups
	DNSNames      []string
	IPs           []net.IP
	Server        bool          // may authenticate a server
	Client        bool          // may authenticate a client
	Lifetime      time.Duration // LeafLifetime when 0
}

// KeyPair is a certificate and its key, both in PEM.
type KeyPair struct {
	Certificate []byte
	Key         []byte
}

// Issue signs a certificate for a new key. It never outlives the authority.
func (a *Authority) Issue(request Request) (*KeyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generating key of %s: %w", request.CommonName, err)
	}
	certificate, err := a.Sign(request, key.Public())
	if err != nil {
		return nil, err
	}
	keyPEM, err := EncodeKey(key)
	if err != nil {
		return nil, err
	}
	return &KeyPair{Certificate: EncodeCertificate(certificate), Key: keyPEM}, nil
}

// Sign certifies another's public key as request says.
func (a *Authority) Sign(request Request, public crypto.PublicKey) (*x509.Certificate, error) {
	if request.CommonName == "" {
		return nil, fmt.Errorf("signing a certificate: the common name is empty")
	}
	if !request.Server && !request.Client {
		return nil, fmt.Errorf("signing certificate of %s: it is for neither a server nor a client", request.CommonName)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: request.CommonName, Organization: request.Organizations},
		DNSNames:              request.DNSNames,
		IPAddresses:           request.IPs,
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(request.lifetime()),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           request.usages(),
		BasicConstraintsValid: true,
	}
	if template.NotAfter.After(a.Certificate.NotAfter) {
		template.NotAfter = a.Certificate.NotAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.Certificate, public, a.Key)
	if err != nil {
		return nil, fmt.Errorf("signing certificate of %s: %w", request.CommonName, err)
	}
	return x509.ParseCertificate(der)
}

// Ensure makes sure that the two files hold a certificate of this authority for
// what request says and with enough life left (NeedsRenewal), and issues a new
// one otherwise. It says whether it did.
func (a *Authority) Ensure(certFile, keyFile string, request Request) (issued bool, err error) {
	if a.stillGood(certFile, keyFile, request) {
		return false, nil
	}
	pair, err := a.Issue(request)
	if err != nil {
		return false, err
	}
	return true, pair.Write(certFile, keyFile)
}

func (a *Authority) stillGood(certFile, keyFile string, request Request) bool {
	certificates, err := LoadCertificates(certFile)
	if err != nil {
		return false
	}
	key, err := LoadKey(keyFile)
	if err != nil {
		return false
	}
	have := certificates[0]
	return SamePublicKey(have.PublicKey, key.Public()) &&
		!NeedsRenewal(have, time.Now()) &&
		have.CheckSignatureFrom(a.Certificate) == nil &&
		request.matches(have)
}

// NeedsRenewal says whether less than a third of the certificate's life is left
// at now.
func NeedsRenewal(certificate *x509.Certificate, now time.Time) bool {
	return !now.Before(RenewAt(certificate))
}

// RenewAt is when the certificate should be renewed: a third of its life before
// its end.
func RenewAt(certificate *x509.Certificate) time.Time {
	return certificate.NotAfter.Add(-certificate.NotAfter.Sub(certificate.NotBefore) / 3)
}

func (r *Request) lifetime() time.Duration {
	if r.Lifetime == 0 {
		return LeafLifetime
	}
	return r.Lifetime
}

func (r *Request) usages() []x509.ExtKeyUsage {
	var usages []x509.ExtKeyUsage
	if r.Server {
		usages = append(usages, x509.ExtKeyUsageServerAuth)
	}
	if r.Client {
		usages = append(usages, x509.ExtKeyUsageClientAuth)
	}
	return usages
}

func (r *Request) matches(have *x509.Certificate) bool {
	return have.Subject.CommonName == r.CommonName &&
		sameStrings(have.Subject.Organization, r.Organizations) &&
		sameStrings(have.DNSNames, r.DNSNames) &&
		sameStrings(addresses(have.IPAddresses), addresses(r.IPs)) &&
		slices.Equal(have.ExtKeyUsage, r.usages())
}

func addresses(ips []net.IP) []string {
	out := make([]string, len(ips))
	for i, ip := range ips {
		out[i] = ip.String()
	}
	return out
}

func sameStrings(a, b []string) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}

// SamePublicKey says whether a and b are the same key.
func SamePublicKey(a, b crypto.PublicKey) bool {
	key, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && key.Equal(b)
}
