package webhook

import (
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// Credentials are by whom the server is known to webhooks: the users of a
// kubeconfig, each under the host that it is for.
type Credentials struct {
	users map[string]*api.AuthInfo
}

// LoadCredentials reads a kubeconfig. It refuses users whose credentials it could
// not present.
func LoadCredentials(path string) (*Credentials, error) {
	config, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return nil, err
	}
	if err := clientcmd.ResolveLocalPaths(config); err != nil {
		return nil, err
	}
	for name, user := range config.AuthInfos {
		if user.Exec != nil || user.AuthProvider != nil {
			return nil, fmt.Errorf("%s: user %q: exec plugins and auth providers are not supported for webhooks", path, name)
		}
		if (len(user.ClientCertificateData) > 0 || user.ClientCertificate != "") != (len(user.ClientKeyData) > 0 || user.ClientKey != "") {
			return nil, fmt.Errorf("%s: user %q must have both a client certificate and its key", path, name)
		}
	}
	return &Credentials{users: config.AuthInfos}, nil
}

// identity is one user.
type identity struct{ *api.AuthInfo }

// of is the user for a host (name.namespace.svc, or host:port): its own, that of
// a wildcard for its domain, or "*". Without one the server stays anonymous.
func (c *Credentials) of(host string) identity {
	if user := c.users[host]; user != nil {
		return identity{user}
	}
	steps := strings.Split(host, ".")
	for i := 1; i < len(steps); i++ {
		if user := c.users["*."+strings.Join(steps[i:], ".")]; user != nil {
			return identity{user}
		}
	}
	if user := c.users["*"]; user != nil {
		return identity{user}
	}
	return identity{&api.AuthInfo{}}
}

// apply presents the user's certificate. Files are read again for each
// connection, so that renewed ones are used.
func (i identity) apply(config *tls.Config) {
	switch {
	case len(i.ClientCertificateData) > 0:
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.X509KeyPair(i.ClientCertificateData, i.ClientKeyData)
			return &pair, err
		}
	case i.ClientCertificate != "":
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(i.ClientCertificate, i.ClientKey)
			return &pair, err
		}
	}
}

// headers presents a token or a password.
func (i identity) headers(header http.Header) error {
	switch {
	case i.TokenFile != "":
		token, err := os.ReadFile(i.TokenFile)
		if err != nil {
			return fmt.Errorf("reading the webhooks' token: %w", err)
		}
		if len(strings.TrimSpace(string(token))) == 0 {
			return errors.New("the webhooks' token file is empty")
		}
		header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	case i.Token != "":
		header.Set("Authorization", "Bearer "+i.Token)
	case i.Username != "":
		header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(i.Username+":"+i.Password)))
	}
	return nil
}
