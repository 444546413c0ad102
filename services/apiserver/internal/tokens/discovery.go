package tokens

import (
	"crypto/ecdsa"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"strings"
)

// Paths of the discovery documents.
const (
	ConfigurationPath = "/.well-known/openid-configuration"
	KeysPath          = "/openid/v1/jwks"
)

// Discovery serves the OpenID Connect documents by which others verify the
// cluster's tokens.
type Discovery struct {
	configuration, keys []byte
}

// NewDiscovery prepares the documents. KeysURI is the public address of the keys
// (--service-account-jwks-uri); empty is KeysPath below apiURL ("https://host:port").
func NewDiscovery(config Config, keysURI, apiURL string) (*Discovery, error) {
	if err := config.complete(); err != nil {
		return nil, err
	}
	keys, err := keysOf(config.SigningKey, config.Keys)
	if err != nil {
		return nil, err
	}
	if keysURI == "" {
		keysURI = strings.TrimSuffix(apiURL, "/") + KeysPath
	}
	d := &Discovery{}
	d.configuration, err = json.Marshal(map[string]any{
		"issuer":                                config.Issuers[0],
		"jwks_uri":                              keysURI,
		"response_types_supported":              []string{"id_token"},
		"subject_types_supported":               []string{"public"},
		"id_token_signing_alg_values_supported": algorithms(keys),
	})
	if err != nil {
		return nil, fmt.Errorf("encoding OpenID configuration: %w", err)
	}
	d.keys, err = json.Marshal(map[string]any{"keys": webKeys(keys)})
	if err != nil {
		return nil, fmt.Errorf("encoding token keys: %w", err)
	}
	return d, nil
}

// ServeConfiguration answers ConfigurationPath.
func (d *Discovery) ServeConfiguration(w http.ResponseWriter, _ *http.Request) {
	serve(w, "application/json", d.configuration)
}

// ServeKeys answers KeysPath.
func (d *Discovery) ServeKeys(w http.ResponseWriter, _ *http.Request) {
	serve(w, "application/jwk-set+json", d.keys)
}

func serve(w http.ResponseWriter, mediaType string, body []byte) {
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Cache-Control", "public, max-age=3600")
	_, _ = w.Write(body)
}

// webKey is a public key as RFC 7517 and 7518 spell it.
type webKey struct {
	Use       string `json:"use"`
	Type      string `json:"kty"`
	ID        string `json:"kid"`
	Curve     string `json:"crv,omitempty"`
	Algorithm string `json:"alg"`
	N         string `json:"n,omitempty"`
	E         string `json:"e,omitempty"`
	X         string `json:"x,omitempty"`
	Y         string `json:"y,omitempty"`
}

func webKeys(keys []key) []webKey {
	list := make([]webKey, 0, len(keys))
	for _, k := range keys {
		entry := webKey{Use: "sig", ID: k.id, Algorithm: k.method.Alg()}
		switch public := k.public.(type) {
		case *ecdsa.PublicKey:
			entry.Type, entry.Curve = "EC", public.Curve.Params().Name
			entry.X, entry.Y = coordinates(public)
		case *rsa.PublicKey:
			entry.Type = "RSA"
			entry.N = base64.RawURLEncoding.EncodeToString(public.N.Bytes())
			entry.E = base64.RawURLEncoding.EncodeToString(big.NewInt(int64(public.E)).Bytes())
		}
		list = append(list, entry)
	}
	return list
}

// coordinates are the point's, each padded to the curve's size.
func coordinates(public *ecdsa.PublicKey) (x, y string) {
	point, err := public.Bytes() // 4, then both coordinates
	if err != nil {
		return "", "" // not on its curve, and then no signature verifies either
	}
	size := (len(point) - 1) / 2
	return base64.RawURLEncoding.EncodeToString(point[1 : 1+size]), base64.RawURLEncoding.EncodeToString(point[1+size:])
}
