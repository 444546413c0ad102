package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Modes of the files that this package writes.
const (
	PublicMode  fs.FileMode = 0o644
	PrivateMode fs.FileMode = 0o600
	directory   fs.FileMode = 0o755
)

// Write writes the pair to two files, the key first, so that whoever sees the
// new certificate finds its key. Missing directories are made.
func (p *KeyPair) Write(certFile, keyFile string) error {
	if err := WriteFile(keyFile, p.Key, PrivateMode); err != nil {
		return err
	}
	return WriteFile(certFile, p.Certificate, PublicMode)
}

// WriteFile replaces path by a file with that content and mode in one step: a
// reader, or a crash, sees the old file or the new one. Missing directories are
// made.
func WriteFile(path string, content []byte, mode fs.FileMode) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, directory); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	temporary, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	err = fill(temporary, content, mode)
	if err == nil {
		err = os.Rename(temporary.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("writing %s: %w", path, err), os.Remove(temporary.Name()))
	}
	return nil
}

func fill(file *os.File, content []byte, mode fs.FileMode) error {
	_, err := file.Write(content)
	if err == nil {
		err = file.Chmod(mode)
	}
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

// LoadCertificates reads the certificates of a PEM file, at least one. Blocks
// of other types are skipped.
func LoadCertificates(path string) ([]*x509.Certificate, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading certificate: %w", err)
	}
	certificates, err := ParseCertificates(content)
	if err != nil {
		return nil, fmt.Errorf("reading certificate %s: %w", path, err)
	}
	return certificates, nil
}

// ParseCertificates parses the CERTIFICATE blocks of content, at least one.
func ParseCertificates(content []byte) ([]*x509.Certificate, error) {
	var certificates []*x509.Certificate
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
			return nil, err
		}
		certificates = append(certificates, certificate)
	}
	if len(certificates) == 0 {
		return nil, errors.New("it holds no PEM certificate")
	}
	return certificates, nil
}

// LoadKey reads the first private key of a PEM file: PKCS #8, PKCS #1 or SEC 1.
func LoadKey(path string) (crypto.Signer, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading key: %w", err)
	}
	for block := (*pem.Block)(nil); ; {
		block, content = pem.Decode(content)
		if block == nil {
			return nil, fmt.Errorf("reading key %s: it holds no PEM private key", path)
		}
		key, err := parseKey(block)
		if err != nil {
			return nil, fmt.Errorf("reading key %s: %w", path, err)
		}
		if key != nil {
			return key, nil
		}
	}
}

func parseKey(block *pem.Block) (crypto.Signer, error) {
	switch block.Type {
	case "EC PRIVATE KEY":
		return x509.ParseECPrivateKey(block.Bytes)
	case "RSA PRIVATE KEY":
		return x509.ParsePKCS1PrivateKey(block.Bytes)
	case "PRIVATE KEY":
		key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if err != nil {
			return nil, err
		}
		signer, ok := key.(crypto.Signer)
		if !ok {
			return nil, fmt.Errorf("a key of type %T cannot sign", key)
		}
		return signer, nil
	}
	return nil, nil
}

// LoadPublicKeys reads every public key of a PEM file: public keys, and those of
// its private keys and certificates. It is how --service-account-key-file is
// read.
func LoadPublicKeys(path string) ([]crypto.PublicKey, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading public keys: %w", err)
	}
	var keys []crypto.PublicKey
	for block := (*pem.Block)(nil); ; {
		block, content = pem.Decode(content)
		if block == nil {
			break
		}
		key, err := parsePublicKey(block)
		if err != nil {
			return nil, fmt.Errorf("reading public keys %s: %w", path, err)
		}
		if key != nil {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("reading public keys %s: it holds no PEM key", path)
	}
	return keys, nil
}

func parsePublicKey(block *pem.Block) (crypto.PublicKey, error) {
	switch block.Type {
	case "PUBLIC KEY":
		return x509.ParsePKIXPublicKey(block.Bytes)
	case "RSA PUBLIC KEY":
		return x509.ParsePKCS1PublicKey(block.Bytes)
	case "CERTIFICATE":
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		return certificate.PublicKey, nil
	}
	key, err := parseKey(block)
	if err != nil || key == nil {
		return nil, err
	}
	return key.Public(), nil
}

// EncodeKey is key in PEM (PKCS #8).
func EncodeKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// EncodePublicKey is key in PEM (PKIX).
func EncodePublicKey(key crypto.PublicKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding public key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), nil
}

// EnsureSigningKey makes sure that keyFile holds a private key and publicFile
// its public half, as --service-account-signing-key-file and
// --service-account-key-file want them. An existing key is kept; a damaged one
// is an error. An empty publicFile is not written.
func EnsureSigningKey(keyFile, publicFile string) (crypto.Signer, error) {
	key, err := LoadKey(keyFile)
	if errors.Is(err, fs.ErrNotExist) {
		key, err = writeNewKey(keyFile)
	}
	if err != nil {
		return nil, err
	}
	if publicFile == "" {
		return key, nil
	}
	public, err := EncodePublicKey(key.Public())
	if err != nil {
		return nil, err
	}
	// A file that has more keys than this one was set up for a rotation.
	if have, err := os.ReadFile(publicFile); err == nil && bytes.Contains(have, public) {
		return key, nil
	}
	return key, WriteFile(publicFile, public, PublicMode)
}

func writeNewKey(path string) (crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generating key: %w", err)
	}
	content, err := EncodeKey(key)
	if err != nil {
		return nil, err
	}
	return key, WriteFile(path, content, PrivateMode)
}
