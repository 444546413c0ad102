package app

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/internal/component"
	"github.com/sampan-io/sampan/services/internal/pki"
)

// bundles are the authorities that the server believes, read again when their
// files change. Each may be nil.
type bundles struct {
	client, frontProxy *authn.Bundle
}

// ensureCertificates makes what was not given: an authority, a serving
// certificate, and a kubeconfig of an administrator when nobody else could log
// in.
func (c *config) ensureCertificates(port int) error {
	if c.Serving.CertFile != "" && c.Identity.ClientCAFile != "" {
		return nil
	}
	dir := c.Serving.CertDir
	if c.Serving.CertFile != "" {
		return nil // whoever gave certificates says whom to trust, too
	}
	if c.useCertificateOf(dir) {
		return nil
	}
	authorityFile := filepath.Join(dir, "ca.crt")
	authority, err := pki.EnsureAuthority(authorityFile, filepath.Join(dir, "ca.key"), "sampan", pki.AuthorityLifetime)
	if err != nil {
		return err
	}
	c.Serving.CertFile, c.Serving.KeyFile = filepath.Join(dir, "apiserver.crt"), filepath.Join(dir, "apiserver.key")
	if _, err := authority.Ensure(c.Serving.CertFile, c.Serving.KeyFile, c.servingRequest()); err != nil {
		return err
	}
	if c.Identity.ClientCAFile != "" {
		return nil
	}
	c.Identity.ClientCAFile = authorityFile
	if err := c.ensureFrontProxy(dir); err != nil {
		return err
	}
	return c.ensureAdmin(authority, authorityFile, port)
}

// useCertificateOf takes a serving certificate that somebody else has put into
// the directory, as upstream does: it has no authority's key beside it.
func (c *config) useCertificateOf(dir string) bool {
	certificate, key := filepath.Join(dir, "apiserver.crt"), filepath.Join(dir, "apiserver.key")
	if exists(filepath.Join(dir, "ca.key")) || !exists(certificate) || !exists(key) {
		return false
	}
	c.Serving.CertFile, c.Serving.KeyFile = certificate, key
	return true
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (c *config) servingRequest() pki.Request {
	host, err := os.Hostname()
	names := []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}
	if err == nil && host != "" {
		names = append(names, host)
	}
	ips := []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback, c.advertise}
	for _, prefix := range c.deps.ServiceCIDRs {
		ips = append(ips, nth(prefix, 1))
	}
	return pki.Request{CommonName: "kube-apiserver", DNSNames: names, IPs: ips, Server: true}
}

// nth is the n-th address of a range.
func nth(prefix netip.Prefix, n int) net.IP {
	address := prefix.Addr()
	for range n {
		address = address.Next()
	}
	return net.IP(address.AsSlice())
}

// ensureAdmin writes DIR/admin.kubeconfig.
func (c *config) ensureAdmin(authority *pki.Authority, authorityFile string, port int) error {
	dir := c.Serving.CertDir
	certificate, key := filepath.Join(dir, "admin.crt"), filepath.Join(dir, "admin.key")
	request := pki.Request{CommonName: "kubernetes-admin", Organizations: []string{authn.MastersGroup}, Client: true}
	if _, err := authority.Ensure(certificate, key, request); err != nil {
		return err
	}
	path := filepath.Join(dir, "admin.kubeconfig")
	absolute := func(file string) string {
		if full, err := filepath.Abs(file); err == nil {
			return full
		}
		return file
	}
	host := "127.0.0.1"
	if ip := net.ParseIP(c.Serving.BindAddress); !ip.IsUnspecified() {
		host = c.Serving.BindAddress
	}
	err := pki.Kubeconfig{
		Server:  fmt.Sprintf("https://%s", net.JoinHostPort(host, fmt.Sprint(port))),
		Cluster: "sampan", User: "kubernetes-admin",
		AuthorityFile: absolute(authorityFile), CertificateFile: absolute(certificate), KeyFile: absolute(key),
	}.Write(path)
	if err == nil {
		c.log.Info("An administrator's kubeconfig is ready", "path", absolute(path))
	}
	return err
}

func (c *config) loadBundles() (bundles, error) {
	var b bundles
	var err error
	if c.Identity.ClientCAFile != "" {
		if b.client, err = authn.NewBundle(c.Identity.ClientCAFile); err != nil {
			return b, fmt.Errorf("--client-ca-file: %w", err)
		}
	}
	if c.Identity.FrontProxyCAFile != "" {
		if b.frontProxy, err = authn.NewBundle(c.Identity.FrontProxyCAFile); err != nil {
			return b, fmt.Errorf("--requestheader-client-ca-file: %w", err)
		}
	}
	return b, nil
}

// serverTLS asks clients for certificates of the bundles.
func (c *config) serverTLS(b bundles) (*tls.Config, error) {
	config, err := component.ServerTLS(c.Serving.CertFile, c.Serving.KeyFile, "")
	if err != nil {
		return nil, err
	}
	if c.Serving.MinVersion == "VersionTLS13" {
		config.MinVersion = tls.VersionTLS13
	}
	config.NextProtos = []string{"h2", "http/1.1"}
	if err := c.Hardening.apply(config); err != nil {
		return nil, err
	}
	var list []*authn.Bundle
	for _, bundle := range []*authn.Bundle{b.client, b.frontProxy} {
		if bundle != nil {
			list = append(list, bundle)
		}
	}
	if len(list) > 0 {
		authn.RequestCertificates(config, list...)
	}
	return config, nil
}

// agentTLS is how the server presents itself to node agents.
func (c *config) agentTLS() (*tls.Config, error) {
	o := c.Kubelet
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CAFile != "" {
		pool, err := component.CertPool(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("--kubelet-certificate-authority: %w", err)
		}
		config.RootCAs = pool
	} else {
		config.InsecureSkipVerify = true // as upstream without an authority; --help says so
	}
	if o.CertFile == "" {
		return config, nil
	}
	if _, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile); err != nil {
		return nil, fmt.Errorf("--kubelet-client-certificate: %w", err)
	}
	// Read at each handshake, so that a renewed certificate is used at once.
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
		return &pair, err
	}
	return config, nil
}
