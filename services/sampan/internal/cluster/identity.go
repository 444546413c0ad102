package cluster

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/sampan-io/sampan/services/internal/pki"
)

const authorityLifetime = 10 * 365 * 24 * time.Hour

// identity is one certificate of the cluster, kept in pki/<name>.crt and .key.
type identity struct {
	name    string
	request pki.Request
	// kubeconfig says that the identity is a client of the API server and gets a
	// kubeconfig of its name.
	kubeconfig bool
}

func identities(config Config) []identity {
	list := []identity{
		{name: "apiserver", request: pki.Request{CommonName: "kube-apiserver", Server: true,
			DNSNames: []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + ClusterDomain, "localhost"},
			IPs:      []net.IP{net.ParseIP("10.96.0.1"), net.ParseIP(HostAddress), net.ParseIP("127.0.0.1")}}},
		{name: "apiserver-kubelet-client", request: pki.Request{CommonName: "kube-apiserver-kubelet-client", Client: true}},
		{name: "scheduler", request: client("system:kube-scheduler"), kubeconfig: true},
		{name: "controller-manager", request: client("system:kube-controller-manager"), kubeconfig: true},
	}
	for i := 1; i <= config.Nodes; i++ {
		node := NodeName(i)
		list = append(list,
			identity{name: "node-agent-" + node, request: client("system:node:"+node, "system:nodes"), kubeconfig: true},
			identity{name: "node-agent-" + node + "-server", request: pki.Request{CommonName: "system:node:" + node, Organizations: []string{"system:nodes"}, Server: true, DNSNames: []string{node}, IPs: []net.IP{NodeAddress(i)}}},
			identity{name: "proxy-" + node, request: client("system:kube-proxy"), kubeconfig: true},
		)
	}
	return list
}

func client(user string, groups ...string) pki.Request {
	return pki.Request{CommonName: user, Organizations: groups, Client: true}
}

// EnsureIdentities makes or renews every certificate and kubeconfig of the
// cluster. What is still good stays as it is, so it may be called at any time;
// services read renewed files without a restart.
func (l Layout) EnsureIdentities(config Config) error {
	for _, dir := range []string{l.PKI(""), filepath.Dir(l.Kubeconfig("x")), filepath.Dir(l.Log("x")), l.Data(), l.Nodes()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("making folder: %w", err)
		}
	}
	authority, err := pki.EnsureAuthority(l.PKI("ca.crt"), l.PKI("ca.key"), "sampan", authorityLifetime)
	if err != nil {
		return err
	}
	if _, err := pki.EnsureSigningKey(l.PKI("sa.key"), l.PKI("sa.pub")); err != nil {
		return err
	}
	if _, err := pki.EnsureFrontProxy(l.PKI(""), 0); err != nil {
		return err
	}
	for _, id := range identities(config) {
		if _, err := authority.Ensure(l.PKI(id.name+".crt"), l.PKI(id.name+".key"), id.request); err != nil {
			return err
		}
		if !id.kubeconfig {
			continue
		}
		server := HostAddress
		if id.name == "scheduler" || id.name == "controller-manager" {
			server = "127.0.0.1"
		}
		if err := (pki.Kubeconfig{
			Server: "https://" + net.JoinHostPort(server, strconv.Itoa(SecurePort)), Cluster: "sampan", User: id.request.CommonName,
			AuthorityFile: l.PKI("ca.crt"), CertificateFile: l.PKI(id.name + ".crt"), KeyFile: l.PKI(id.name + ".key"),
		}).Write(l.Kubeconfig(id.name)); err != nil {
			return err
		}
	}
	return l.ensureAdmin(authority)
}

// ensureAdmin writes the operator's kubeconfig. It holds its certificate, so
// that it can be copied elsewhere.
func (l Layout) ensureAdmin(authority *pki.Authority) error {
	certFile, keyFile := l.PKI("admin.crt"), l.PKI("admin.key")
	request := client("kubernetes-admin", "system:masters")
	request.Lifetime = 365 * 24 * time.Hour
	if _, err := authority.Ensure(certFile, keyFile, request); err != nil {
		return err
	}
	certificate, err := os.ReadFile(certFile)
	if err != nil {
		return fmt.Errorf("reading certificate: %w", err)
	}
	key, err := os.ReadFile(keyFile)
	if err != nil {
		return fmt.Errorf("reading key: %w", err)
	}
	return pki.Kubeconfig{
		Server: "https://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(SecurePort)), Cluster: "sampan", User: "kubernetes-admin",
		Authority: authority.PEM(), KeyPair: &pki.KeyPair{Certificate: certificate, Key: key},
	}.Write(l.AdminKubeconfig())
}
