// Package identities makes what the services of a cluster prove themselves with
// when they do not run under the supervisor: certificates, keys, kubeconfigs.
package identities

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/sampan-io/sampan/services/internal/pki"
	"github.com/sampan-io/sampan/services/sampan/internal/cluster"
)

// Plan says whose identities to make, and how the services reach each other.
// Each service has a folder of its own below Dir with all that it needs and
// nothing else, so that it can be given that folder alone; files name each other
// by their paths below Dir.
type Plan struct {
	Dir         string // absolute
	Server      string // URL at which services reach the API server
	AdminServer string // URL at which the operator reaches it
	// Names are more names and addresses of the API server; its Service's, and
	// loopback, are always in its certificate.
	Names    []string
	BusNames []string // names and addresses of a bus that runs on its own; empty makes no identity for one
	Nodes    []string
	Lifetime time.Duration // of certificates
}

const (
	clusterName = "sampan"
	// Users that the cluster's roles know.
	scheduler         = "system:kube-scheduler"
	controllerManager = "system:kube-controller-manager"
	proxy             = "system:kube-proxy"
	nodePrefix        = "system:node:"
	nodesGroup        = "system:nodes"
	adminUser         = "kubernetes-admin"
	adminGroup        = "system:masters"
)

// Ensure makes what is missing and renews what has less than a third of its life
// left; what is still good stays as it is.
func (p Plan) Ensure() error {
	authority, err := pki.EnsureAuthority(p.path("ca", "ca.crt"), p.path("ca", "ca.key"), clusterName, pki.AuthorityLifetime)
	if err != nil {
		return err
	}
	m := maker{Plan: p, authority: authority}
	for _, step := range []func() error{m.server, m.bus, m.controlPlane, m.nodes, m.admin} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// AdminKubeconfig is the path of the operator's kubeconfig. It holds its
// certificate, so that it can be copied elsewhere.
func (p Plan) AdminKubeconfig() string { return p.path("admin", "kubeconfig") }

func (p Plan) path(parts ...string) string {
	return filepath.Join(append([]string{p.Dir}, parts...)...)
}

type maker struct {
	Plan
	authority *pki.Authority
}

// folder makes a service's folder and puts the authority's certificate into it.
func (m maker) folder(name string) error {
	if err := os.MkdirAll(m.path(name), 0o700); err != nil {
		return fmt.Errorf("making folder: %w", err)
	}
	return pki.WriteFile(m.path(name, "ca.crt"), m.authority.PEM(), pki.PublicMode)
}

// pair keeps a certificate in <folder>/<name>.crt and .key.
func (m maker) pair(folder, name string, request pki.Request) error {
	request.Lifetime = m.Lifetime
	_, err := m.authority.Ensure(m.path(folder, name+".crt"), m.path(folder, name+".key"), request)
	return err
}

func (m maker) server() error {
	names, ips := split(append([]string{
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + cluster.ClusterDomain, "localhost",
		"10.96.0.1", "127.0.0.1"}, m.Names...))
	if err := m.folder("apiserver"); err != nil {
		return err
	}
	if err := m.pair("apiserver", "serving", pki.Request{CommonName: "kube-apiserver", Server: true, DNSNames: names, IPs: ips}); err != nil {
		return err
	}
	if err := m.pair("apiserver", "kubelet-client", pki.Request{CommonName: "kube-apiserver-kubelet-client", Client: true}); err != nil {
		return err
	}
	if _, err := pki.EnsureFrontProxy(m.path("apiserver"), m.Lifetime); err != nil {
		return err
	}
	_, err := pki.EnsureSigningKey(m.path("apiserver", "sa.key"), m.path("apiserver", "sa.pub"))
	return err
}

func (m maker) controlPlane() error {
	for folder, user := range map[string]string{"scheduler": scheduler, "controller-manager": controllerManager} {
		if err := m.client(folder, "", user); err != nil {
			return err
		}
	}
	// The controller manager signs the tokens of Secrets.
	key, err := os.ReadFile(m.path("apiserver", "sa.key"))
	if err != nil {
		return fmt.Errorf("reading signing key: %w", err)
	}
	return pki.WriteFile(m.path("controller-manager", "sa.key"), key, pki.PrivateMode)
}

func (m maker) nodes() error {
	if err := m.client("node", "proxy", proxy); err != nil {
		return err
	}
	for _, name := range m.Nodes {
		if err := m.client(filepath.Join("node", name), "", nodePrefix+name, nodesGroup); err != nil {
			return err
		}
	}
	return nil
}

// client makes a client's certificate and kubeconfig; prefix keeps several in a
// folder apart.
func (m maker) client(folder, prefix, user string, groups ...string) error {
	if err := m.folder(folder); err != nil {
		return err
	}
	name, kubeconfig := "client", "kubeconfig"
	if prefix != "" {
		name, kubeconfig = prefix, prefix+".kubeconfig"
	}
	if err := m.pair(folder, name, pki.Request{CommonName: user, Organizations: groups, Client: true}); err != nil {
		return err
	}
	return pki.Kubeconfig{
		Server: m.Server, Cluster: clusterName, User: user, AuthorityFile: m.path(folder, "ca.crt"),
		CertificateFile: m.path(folder, name+".crt"), KeyFile: m.path(folder, name+".key"),
	}.Write(m.path(folder, kubeconfig))
}

func (m maker) admin() error {
	if err := m.pair("admin", "admin", pki.Request{CommonName: adminUser, Organizations: []string{adminGroup}, Client: true}); err != nil {
		return err
	}
	certificate, err := os.ReadFile(m.path("admin", "admin.crt"))
	if err != nil {
		return fmt.Errorf("reading certificate: %w", err)
	}
	key, err := os.ReadFile(m.path("admin", "admin.key"))
	if err != nil {
		return fmt.Errorf("reading key: %w", err)
	}
	return pki.Kubeconfig{
		Server: m.AdminServer, Cluster: clusterName, User: adminUser,
		Authority: m.authority.PEM(), KeyPair: &pki.KeyPair{Certificate: certificate, Key: key},
	}.Write(m.AdminKubeconfig())
}

// split tells addresses from names.
func split(hosts []string) (names []string, ips []net.IP) {
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			ips = append(ips, ip)
		} else {
			names = append(names, host)
		}
	}
	return names, ips
}
