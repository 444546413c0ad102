package pki

import (
	"path/filepath"
	"time"
)

// FrontProxyName is the common name of an API server's certificate towards
// aggregated API servers.
const FrontProxyName = "front-proxy-client"

// FrontProxy is by what aggregated API servers know that it is the API server who
// names users to them: an authority of its own, for one that signs users'
// certificates would let every user do so.
type FrontProxy struct {
	AuthorityFile     string
	CertFile, KeyFile string
}

// FrontProxyIn names the files in a folder, as kubeadm does.
func FrontProxyIn(dir string) FrontProxy {
	return FrontProxy{
		AuthorityFile: filepath.Join(dir, "front-proxy-ca.crt"),
		CertFile:      filepath.Join(dir, "front-proxy-client.crt"), KeyFile: filepath.Join(dir, "front-proxy-client.key"),
	}
}

// EnsureFrontProxy makes what is missing in dir, and renews the certificate, whose
// lifetime 0 is the usual one.
func EnsureFrontProxy(dir string, lifetime time.Duration) (FrontProxy, error) {
	files := FrontProxyIn(dir)
	authority, err := EnsureAuthority(files.AuthorityFile, filepath.Join(dir, "front-proxy-ca.key"), "front-proxy-ca", AuthorityLifetime)
	if err != nil {
		return files, err
	}
	_, err = authority.Ensure(files.CertFile, files.KeyFile, Request{CommonName: FrontProxyName, Client: true, Lifetime: lifetime})
	return files, err
}
