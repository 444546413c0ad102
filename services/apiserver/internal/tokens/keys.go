// Package tokens issues and checks service-account tokens: JSON web tokens that
// are bound to a time, an audience and, mostly, to the pod that uses them.
//
// Issuer signs them and answers TokenRequests; Authenticator checks them, and
// checks on every use that the account and the bound object still exist;
// Discovery serves the keys to whoever verifies tokens elsewhere (OpenID
// Connect discovery).
package tokens

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"fmt"

	"github.com/golang-jwt/jwt/v5"
)

// key is a public key with its id and the one algorithm that it is used with.
type key struct {
	id     string
	method jwt.SigningMethod
	public crypto.PublicKey
}

func newKey(public crypto.PublicKey) (key, error) {
	method, err := methodOf(public)
	if err != nil {
		return key{}, err
	}
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return key{}, fmt.Errorf("encoding token key: %w", err)
	}
	sum := sha256.Sum256(der)
	return key{id: base64.RawURLEncoding.EncodeToString(sum[:]), method: method, public: public}, nil
}

func methodOf(public crypto.PublicKey) (jwt.SigningMethod, error) {
	switch public := public.(type) {
	case *rsa.PublicKey:
		return jwt.SigningMethodRS256, nil
	case *ecdsa.PublicKey:
		switch public.Curve.Params().BitSize {
		case 256:
			return jwt.SigningMethodES256, nil
		case 384:
			return jwt.SigningMethodES384, nil
		case 521:
			return jwt.SigningMethodES512, nil
		}
	}
	return nil, fmt.Errorf("a key of type %T cannot sign or verify service-account tokens: use ECDSA or RSA", public)
}

// keysOf are the keys of signer (which may be nil) and of public, each once.
func keysOf(signer crypto.Signer, public []crypto.PublicKey) ([]key, error) {
	if signer != nil {
		public = append([]crypto.PublicKey{signer.Public()}, public...)
	}
	var keys []key
	seen := map[string]bool{}
	for _, p := range public {
		k, err := newKey(p)
		if err != nil {
			return nil, err
		}
		if !seen[k.id] {
			seen[k.id] = true
			keys = append(keys, k)
		}
	}
	return keys, nil
}
