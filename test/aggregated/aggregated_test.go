package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/sampan-io/sampan/test/standalone"
)

// cluster is an API server of its own, driven with kubectl.
type cluster struct {
	*standalone.Cluster
	t       *testing.T
	kubectl string
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	c := standalone.Start(t)
	return &cluster{Cluster: c, t: t, kubectl: c.Kubectl(t)}
}

func (c *cluster) run(input string, args ...string) (string, error) {
	command := exec.Command(c.kubectl, append([]string{"--kubeconfig", c.Kubeconfig, "--cache-dir", filepath.Join(filepath.Dir(c.Kubeconfig), "cache")}, args...)...)
	command.Stdin = strings.NewReader(input)
	out, err := command.CombinedOutput()
	return string(out), err
}

func (c *cluster) must(input string, args ...string) string {
	c.t.Helper()
	out, err := c.run(input, args...)
	if err != nil {
		c.t.Fatalf("kubectl %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return out
}

// certificate is one for the Service's name that vouches for itself.
func certificate(t *testing.T) (certFile, keyFile string, authority []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "fleet"}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"fleet.default.svc"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	authority = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(certFile, authority, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600); err != nil {
		t.Fatal(err)
	}
	return certFile, keyFile, authority
}

// join runs the fleet's server and registers it.
func (c *cluster) join() {
	c.t.Helper()
	certFile, keyFile, authority := certificate(c.t)
	ctx, cancel := context.WithCancel(context.Background())
	address, ended := make(chan string, 1), make(chan error, 1)
	go func() {
		ended <- run(ctx, options{listen: "127.0.0.1:0", certFile: certFile, keyFile: keyFile, kubeconfig: c.Kubeconfig}, func(a string) { address <- a })
	}()
	c.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			c.t.Errorf("the fleet's server ended with %v", err)
		}
	})
	var port string
	select {
	case err := <-ended:
		ended <- nil
		c.t.Fatalf("the fleet's server: %v", err)
	case a := <-address:
		_, port, _ = net.SplitHostPort(a)
	}
	c.must(fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: fleet, namespace: default}
spec: {type: ExternalName, externalName: localhost}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.fleet.example.com}
spec:
  group: fleet.example.com
  version: v1
  groupPriorityMinimum: 1000
  versionPriority: 10
  caBundle: %s
  service: {namespace: default, name: fleet, port: %s}
`, base64.StdEncoding.EncodeToString(authority), port), "apply", "-f", "-")
	c.must("", "wait", "apiservice/v1.fleet.example.com", "--for=condition=Available", "--timeout=30s")
}

const boat = `{"apiVersion":"fleet.example.com/v1","kind":"Boat","metadata":{"name":"junk"},"spec":{"masts":3}}`

func TestAggregatedServerThroughKubectl(t *testing.T) {
	c := startCluster(t)
	c.join()
	if out := c.must("", "api-resources", "--api-group=fleet.example.com"); !strings.Contains(out, "boats") || !strings.Contains(out, "bo ") {
		t.Errorf("api-resources: %s", out)
	}
	standalone.Eventually(t, "kubectl explain knows boats", func(context.Context) bool {
		out, err := c.run("", "explain", "boats.spec.masts")
		return err == nil && strings.Contains(out, "How many masts the boat has.")
	})
	watcher := exec.Command(c.kubectl, "--kubeconfig", c.Kubeconfig, "get", "boats", "--watch", "-o", "name")
	events, err := watcher.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := watcher.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = watcher.Process.Kill(); _ = watcher.Wait() })
	c.must(boat, "create", "-f", "-")
	if line, err := bufio.NewReader(events).ReadString('\n'); err != nil || line != "boat.fleet.example.com/junk\n" {
		t.Errorf("watch: %q, %v", line, err)
	}
	if out := c.must("", "get", "bo", "junk", "-o", "jsonpath={.spec.masts} {.metadata.annotations}"); !strings.Contains(out, "3 ") || !strings.Contains(out, "kubernetes-admin") {
		t.Errorf("get: %s", out)
	}
	if out, err := c.run(boat, "create", "-f", "-", "--as=nobody"); err == nil || !strings.Contains(out, "forbidden") {
		t.Errorf("without rights: %s", out)
	}
	c.must("", "delete", "boat", "junk")
	if out, err := c.run("", "get", "boat", "junk"); err == nil || !strings.Contains(out, "not found") {
		t.Errorf("after its deletion: %s", out)
	}
}

func TestAggregatedServerUpgradesConnections(t *testing.T) {
	c := startCluster(t)
	c.join()
	secure, err := rest.TLSConfigFor(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := tls.Dial("tcp", strings.TrimPrefix(c.Config.Host, "https://"), secure)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_, _ = fmt.Fprintf(conn, "GET %s/namespaces/default/boats/any/radio HTTP/1.1\r\nHost: any\r\nConnection: Upgrade\r\nUpgrade: radio\r\n\r\n", root)
	reader := bufio.NewReader(conn)
	answer, err := http.ReadResponse(reader, nil)
	if err != nil || answer.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%+v, %v", answer, err)
	}
	_, _ = io.WriteString(conn, "ahoy\n")
	if line, err := reader.ReadString('\n'); err != nil || line != "ahoy\n" {
		t.Errorf("heard %q, %v", line, err)
	}
}

// Who goes to the fleet's server past the API server cannot say who he is.
func TestAggregatedServerTrustsOnlyTheFrontProxy(t *testing.T) {
	proxy := &frontProxy{authorities: x509.NewCertPool(), userHeaders: []string{"X-Remote-User"}}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, root, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("X-Remote-User", "admin")
	if proxy.trusts(request) {
		t.Error("a client without a certificate is trusted")
	}
}
