package identities

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/nats-io/nkeys"

	"github.com/sampan-io/sampan/services/internal/pki"
)

// bus makes the identity of a NATS server that runs on its own, and the two keys
// by which it knows the API server: the one that it connects with, and the one
// that it signs with whom it lets in. The server gets their public parts only.
func (m maker) bus() error {
	if len(m.BusNames) == 0 {
		return nil
	}
	if err := m.folder("bus"); err != nil {
		return err
	}
	names, ips := split(m.BusNames)
	if err := m.pair("bus", "serving", pki.Request{CommonName: "sampan-bus", Server: true, DNSNames: names, IPs: ips}); err != nil {
		return err
	}
	publisher, err := ensureSeed(m.path("apiserver", "bus-user.seed"), nkeys.CreateUser)
	if err != nil {
		return err
	}
	issuer, err := ensureSeed(m.path("apiserver", "bus-issuer.seed"), nkeys.CreateAccount)
	if err != nil {
		return err
	}
	return pki.WriteFile(m.path("bus", "keys.conf"), fmt.Appendf(nil, "PUBLISHER = %s\nISSUER = %s\n", publisher, issuer), pki.PublicMode)
}

// ensureSeed keeps a key's seed in a file and returns its public part.
func ensureSeed(path string, create func() (nkeys.KeyPair, error)) (string, error) {
	seed, err := os.ReadFile(path)
	switch {
	case err == nil:
		pair, err := nkeys.FromSeed(seed)
		if err != nil {
			return "", fmt.Errorf("reading seed %s: %w", path, err)
		}
		return pair.PublicKey()
	case !errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("reading seed: %w", err)
	}
	pair, err := create()
	if err != nil {
		return "", fmt.Errorf("generating a key of the bus: %w", err)
	}
	if seed, err = pair.Seed(); err != nil {
		return "", fmt.Errorf("generating a key of the bus: %w", err)
	}
	if err := pki.WriteFile(path, seed, pki.PrivateMode); err != nil {
		return "", err
	}
	return pair.PublicKey()
}
