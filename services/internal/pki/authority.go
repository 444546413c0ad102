// Package pki makes and keeps the certificates and keys of a cluster: its
// authorities, the serving and client certificates that they sign, the key that
// signs service-account tokens, and the kubeconfig files that hold them.
//
// Every key is ECDSA P-256. Files are replaced atomically, keys are readable by
// their owner only, and the Ensure functions change nothing that is still good,
// so that they may be called at every start and by a renewal loop.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"time"
)

// Lifetimes of what Ensure functions make when the caller names none.
const (
	AuthorityLifetime = 10 * 365 * 24 * time.Hour
	LeafLifetime      = 30 * 24 * time.Hour
)

// backdate is how long before now a certificate begins, for clocks that run
// behind.
const backdate = 5 * time.Minute

// Authority is a certificate authority with its key.
type Authority struct {
	Certificate *x509.Certificate
	Key         crypto.Signer
}

// NewAuthority makes a self-signed authority that lives for lifetime and signs
// leaf certificates only.
func NewAuthority(commonName string, lifetime time.Duration) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generating key of authority %s: %w", commonName, err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: commonName},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(lifetime),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("signing authority %s: %w", commonName, err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parsing authority %s: %w", commonName, err)
	}
	return &Authority{Certificate: certificate, Key: key}, nil
}

// LoadAuthority reads an authority from its two PEM files. It refuses a
// certificate that may not sign, and a key that is not the certificate's.
func LoadAuthority(certFile, keyFile string) (*Authority, error) {
	certificates, err := LoadCertificates(certFile)
	if err != nil {
		return nil, err
	}
	key, err := LoadKey(keyFile)
	if err != nil {
		return nil, err
	}
	certificate := certificates[0]
	if !certificate.IsCA {
		return nil, fmt.Errorf("certificate %s is not an authority's", certFile)
	}
	if !SamePublicKey(certificate.PublicKey, key.Public()) {
		return nil, fmt.Errorf("key %s does not belong to certificate %s", keyFile, certFile)
	}
	return &Authority{Certificate: certificate, Key: key}, nil
}

// EnsureAuthority loads the authority, or makes and writes one when neither
// file exists. Damaged or expired files are an error and never replaced, since
// everything that the authority signed would become worthless.
func EnsureAuthority(certFile, keyFile, commonName string, lifetime time.Duration) (*Authority, error) {
	authority, err := LoadAuthority(certFile, keyFile)
	switch {
	case err == nil:
		if time.Now().After(authority.Certificate.NotAfter) {
			return nil, fmt.Errorf("authority %s expired on %s: remove %s and %s to make a new one", certFile,
				authority.Certificate.NotAfter.Format(time.RFC3339), certFile, keyFile)
		}
		return authority, nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	// The key is written before the certificate, so a lone key is what an
	// interrupted first run leaves: nothing can have been signed with it.
	if _, statErr := os.Lstat(certFile); statErr == nil {
		return nil, fmt.Errorf("authority %s has lost its key: %w", certFile, err)
	}
	authority, err = NewAuthority(commonName, lifetime)
	if err != nil {
		return nil, err
	}
	keyPEM, err := EncodeKey(authority.Key)
	if err != nil {
		return nil, err
	}
	return authority, (&KeyPair{Certificate: authority.PEM(), Key: keyPEM}).Write(certFile, keyFile)
}

// PEM is the authority's certificate in PEM.
func (a *Authority) PEM() []byte { return EncodeCertificate(a.Certificate) }

// Pin is the hash by which a joining node recognizes the authority: "sha256:"
// and the hexadecimal SHA-256 of its public key (RFC 7469, kubeadm's
// discovery-token-ca-cert-hash).
func (a *Authority) Pin() string {
	sum := sha256.Sum256(a.Certificate.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Pool holds the authority alone.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.Certificate)
	return pool
}

func newSerial() (*big.Int, error) {
	// RFC 5280 allows 20 octets, and asks for a positive number.
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 158))
	if err != nil {
		return nil, fmt.Errorf("drawing a serial number: %w", err)
	}
	return serial.Add(serial, big.NewInt(1)), nil
}

// EncodeCertificate is certificate in PEM.
func EncodeCertificate(certificate *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw})
}
