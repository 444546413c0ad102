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
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// cluster is an API server of its own.
type cluster struct {
	t          *testing.T
	kubectl    string
	kubeconfig string
}

// startCluster runs the built API server, and skips the test where there is none.
func startCluster(t *testing.T) *cluster {
	t.Helper()
	bin := os.Getenv("SAMPAN_BIN")
	if bin == "" {
		t.Skip("SAMPAN_BIN does not name the folder of the built programs (make test does)")
	}
	c := &cluster{t: t, kubectl: filepath.Join(bin, "kubectl")}
	if _, err := os.Stat(c.kubectl); err != nil {
		found, err := exec.LookPath("kubectl")
		if err != nil {
			t.Skip("there is no kubectl")
		}
		c.kubectl = found
	}
	dir := t.TempDir()
	c.kubeconfig = filepath.Join(dir, "certs", "admin.kubeconfig")
	log, err := os.Create(filepath.Join(dir, "apiserver.log"))
	if err != nil {
		t.Fatal(err)
	}
	server := exec.Command(filepath.Join(bin, "apiserver"), "--data-dir="+filepath.Join(dir, "data"), "--cert-dir="+filepath.Join(dir, "certs"),
		"--bind-address=127.0.0.1", "--secure-port="+freePort(t), "--nats-listen-address=none", "--unsafe-no-fsync")
	server.Stdout, server.Stderr = log, log
	server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGTERM)
		_ = server.Wait()
		_ = log.Close()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("the API server's log ends with: %s", text[max(0, len(text)-2000):])
		}
	})
	c.eventually("the API server is ready", func() bool { out, err := c.run("", "get", "--raw", "/readyz"); return err == nil && out == "ok" })
	return c
}

func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func (c *cluster) run(input string, args ...string) (string, error) {
	command := exec.Command(c.kubectl, append([]string{"--kubeconfig", c.kubeconfig, "--cache-dir", filepath.Join(filepath.Dir(c.kubeconfig), "cache")}, args...)...)
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

func (c *cluster) eventually(what string, condition func() bool) {
	c.t.Helper()
	err := wait.PollUntilContextTimeout(context.Background(), 20*time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
		return condition(), nil
	})
	if err != nil {
		c.t.Fatalf("%s: %v", what, err)
	}
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
		ended <- run(ctx, options{listen: "127.0.0.1:0", certFile: certFile, keyFile: keyFile, kubeconfig: c.kubeconfig}, func(a string) { address <- a })
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
	c.eventually("kubectl explain knows boats", func() bool {
		out, err := c.run("", "explain", "boats.spec.masts")
		return err == nil && strings.Contains(out, "How many masts the boat has.")
	})
	watcher := exec.Command(c.kubectl, "--kubeconfig", c.kubeconfig, "get", "boats", "--watch", "-o", "name")
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
	config, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	secure, err := rest.TLSConfigFor(config)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := tls.Dial("tcp", strings.TrimPrefix(config.Host, "https://"), secure)
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
