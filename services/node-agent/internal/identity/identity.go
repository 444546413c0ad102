// Package identity gets the node's certificates from the cluster and renews them, as the
// kubelet does: it makes certificate signing requests, which somebody approves and a signer
// of the cluster answers.
//
//	kubernetes.io/kube-apiserver-client-kubelet  what the node is to the API server
//	kubernetes.io/kubelet-serving                what its own API is to others
//
// Both are kept in files, <name>-current.pem, which point at the newest.
package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/certificate"
)

// Config says who the node is and where its certificates lie.
type Config struct {
	Node       string
	Dir        string // of the certificates
	Kubeconfig string // how the node reaches the API server; written when it is not there
	Bootstrap  string // path of a kubeconfig that may only ask for a certificate; may be empty
	Log        *slog.Logger
}

// Client is the node's certificate towards the API server.
type Client struct {
	cfg     Config
	store   certificate.FileStore
	manager certificate.Manager
}

const (
	clientFile  = "kubelet-client"
	servingFile = "kubelet-server"
)

// NewClient takes up what earlier runs have got, or else the certificate of the
// kubeconfig, or else asks for one by the bootstrap kubeconfig, which lasts until somebody
// approves the request.
func NewClient(ctx context.Context, cfg Config) (*Client, error) {
	c := &Client{cfg: cfg}
	var err error
	if c.store, err = newStore(cfg.Dir, clientFile); err != nil {
		return nil, err
	}
	if err := c.adopt(); err != nil {
		return nil, err
	}
	c.manager, err = certificate.NewManager(&certificate.Config{
		ClientsetFn: c.clientset, Template: template(cfg.Node, nil, nil), SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
		GetUsages: certificate.DefaultKubeletClientGetUsages, CertificateStore: c.store, Name: clientFile,
	})
	if err != nil {
		return nil, fmt.Errorf("client certificate: %w", err)
	}
	c.manager.Start()
	if err := c.await(ctx); err != nil {
		c.manager.Stop()
		return nil, err
	}
	return c, c.ensureKubeconfig()
}

// newStore opens the files of one certificate.
func newStore(dir, name string) (certificate.FileStore, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the folder of certificates: %w", err)
	}
	store, err := certificate.NewFileStore(name, dir, dir, "", "")
	if err != nil {
		return nil, fmt.Errorf("opening certificates: %w", err)
	}
	return store, nil
}

// adopt begins with the certificate of the kubeconfig if there is no other.
func (c *Client) adopt() error {
	_, err := c.store.Current()
	var none *certificate.NoCertKeyError
	if !errors.As(err, &none) {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", c.cfg.Kubeconfig)
	if errors.Is(err, os.ErrNotExist) && c.cfg.Bootstrap != "" {
		return nil
	}
	if err == nil {
		err = rest.LoadTLSFiles(config)
	}
	if err != nil {
		return fmt.Errorf("reading kubeconfig %q: %w", c.cfg.Kubeconfig, err)
	}
	if len(config.CertData) == 0 {
		return fmt.Errorf("kubeconfig %q has no client certificate to renew", c.cfg.Kubeconfig)
	}
	if _, err := c.store.Update(config.CertData, config.KeyData); err != nil {
		return fmt.Errorf("taking up the certificate of kubeconfig %q: %w", c.cfg.Kubeconfig, err)
	}
	return nil
}

// clientset asks with the node's own certificate, or without one by the bootstrap
// kubeconfig.
func (c *Client) clientset(current *tls.Certificate) (kubernetes.Interface, error) {
	path := c.cfg.Kubeconfig
	if current == nil {
		if path = c.cfg.Bootstrap; path == "" {
			return nil, errors.New("the node's certificate has expired, and there is no bootstrap kubeconfig to ask for another")
		}
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("reading kubeconfig %q: %w", path, err)
	}
	if current != nil {
		c.use(config)
	}
	return kubernetes.NewForConfig(config)
}

// await waits for a certificate.
func (c *Client) await(ctx context.Context) error {
	if c.manager.Current() != nil {
		return nil
	}
	if c.cfg.Bootstrap == "" {
		return errors.New("the node's certificate has expired, and there is no bootstrap kubeconfig to ask for another")
	}
	c.cfg.Log.InfoContext(ctx, "Asking for a client certificate; the request has to be approved", "node", c.cfg.Node, "signer", certificatesv1.KubeAPIServerClientKubeletSignerName)
	const look = 100 * time.Millisecond // the library tells of it in no other way
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for c.manager.Current() == nil {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
	return nil
}

// ensureKubeconfig writes one that names the certificate's file, unless there is one.
func (c *Client) ensureKubeconfig() error {
	if _, err := os.Stat(c.cfg.Kubeconfig); err == nil || !errors.Is(err, os.ErrNotExist) {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", c.cfg.Bootstrap)
	if err != nil {
		return fmt.Errorf("reading kubeconfig %q: %w", c.cfg.Bootstrap, err)
	}
	const name = "default"
	out := clientcmdapi.NewConfig()
	out.Clusters[name] = &clientcmdapi.Cluster{
		Server: config.Host, CertificateAuthority: config.CAFile, CertificateAuthorityData: config.CAData, TLSServerName: config.ServerName, InsecureSkipTLSVerify: config.Insecure,
	}
	out.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificate: c.store.CurrentPath(), ClientKey: c.store.CurrentPath()}
	out.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	out.CurrentContext = name
	if err := clientcmd.WriteToFile(*out, c.cfg.Kubeconfig); err != nil {
		return fmt.Errorf("writing kubeconfig %q: %w", c.cfg.Kubeconfig, err)
	}
	return nil
}

// Use lets clients of the configuration present the newest certificate: they look at its
// file from time to time, and connect anew when it has changed.
func (c *Client) Use(config *rest.Config) { c.use(config) }

func (c *Client) use(config *rest.Config) {
	config.CertData, config.KeyData = nil, nil
	config.CertFile, config.KeyFile = c.store.CurrentPath(), c.store.CurrentPath()
	config.BearerToken, config.BearerTokenFile = "", ""
}

// Stop ends the renewal.
func (c *Client) Stop() { c.manager.Stop() }

// Serving is the certificate of the node's own API.
type Serving struct{ manager certificate.Manager }

// NewServing asks for one, and for another before it expires. It does not wait: until the
// first has come, connections are refused.
func NewServing(cfg Config, client kubernetes.Interface, addresses []netip.Addr) (*Serving, error) {
	store, err := newStore(cfg.Dir, servingFile)
	if err != nil {
		return nil, err
	}
	var ips []net.IP
	for _, address := range addresses {
		ips = append(ips, address.AsSlice())
	}
	manager, err := certificate.NewManager(&certificate.Config{
		ClientsetFn: func(*tls.Certificate) (kubernetes.Interface, error) { return client, nil },
		Template:    template(cfg.Node, []string{cfg.Node}, ips), SignerName: certificatesv1.KubeletServingSignerName,
		GetUsages: certificate.DefaultKubeletServingGetUsages, CertificateStore: store, Name: servingFile,
	})
	if err != nil {
		return nil, fmt.Errorf("serving certificate: %w", err)
	}
	manager.Start()
	return &Serving{manager: manager}, nil
}

// Certificate is for tls.Config.
func (s *Serving) Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	current := s.manager.Current()
	if current == nil {
		return nil, errors.New("no serving certificate available for the node: its request has not been approved yet")
	}
	return current, nil
}

// Stop ends the renewal.
func (s *Serving) Stop() { s.manager.Stop() }

// template is what every signer of nodes asks for.
func template(node string, names []string, ips []net.IP) *x509.CertificateRequest {
	return &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}, DNSNames: names, IPAddresses: ips,
	}
}

// DefaultDir is where certificates lie below the agent's root.
func DefaultDir(root string) string { return filepath.Join(root, "pki") }
