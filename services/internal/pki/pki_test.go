package pki_test

import (
	"crypto/tls"
	"crypto/x509"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/sampan-io/sampan/services/internal/pki"
)

func mustAuthority(t *testing.T, dir string) *pki.Authority {
	t.Helper()
	authority, err := pki.EnsureAuthority(filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key"), "sampan-ca", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return authority
}

func assertMode(t *testing.T, path string, want fs.FileMode) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != want {
		t.Errorf("mode of %s is %o, want %o", path, info.Mode().Perm(), want)
	}
}

func TestEnsureAuthorityKeepsWhatIsThere(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	first := mustAuthority(t, dir)
	second := mustAuthority(t, dir)
	if !first.Certificate.Equal(second.Certificate) {
		t.Error("a second call made another authority")
	}
	if first.Pin() != second.Pin() || !strings.HasPrefix(first.Pin(), "sha256:") {
		t.Errorf("pins %s and %s", first.Pin(), second.Pin())
	}
	assertMode(t, filepath.Join(dir, "ca.crt"), 0o644)
	assertMode(t, filepath.Join(dir, "ca.key"), 0o600)
}

func TestEnsureAuthorityNeverReplacesDamagedFiles(t *testing.T) {
	for name, damage := range map[string]func(dir string) error{
		"key lost":    func(dir string) error { return os.Remove(filepath.Join(dir, "ca.key")) },
		"key garbled": func(dir string) error { return os.WriteFile(filepath.Join(dir, "ca.key"), []byte("x"), 0o600) },
		"cert empty":  func(dir string) error { return os.Truncate(filepath.Join(dir, "ca.crt"), 0) },
		"other key": func(dir string) error {
			_, err := pki.EnsureSigningKey(filepath.Join(dir, "other.key"), "")
			if err != nil {
				return err
			}
			return os.Rename(filepath.Join(dir, "other.key"), filepath.Join(dir, "ca.key"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			mustAuthority(t, dir)
			if err := damage(dir); err != nil {
				t.Fatal(err)
			}
			if _, err := pki.EnsureAuthority(filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key"), "sampan-ca", time.Hour); err == nil {
				t.Error("damaged authority was accepted or replaced")
			}
		})
	}
}

func TestEnsureAuthorityAfterInterruptedFirstRun(t *testing.T) {
	dir := t.TempDir()
	if _, err := pki.EnsureSigningKey(filepath.Join(dir, "ca.key"), ""); err != nil {
		t.Fatal(err)
	}
	mustAuthority(t, dir)
}

func TestIssuedCertificatesAuthenticateBothSides(t *testing.T) {
	dir := t.TempDir()
	authority := mustAuthority(t, dir)
	serverPair, err := authority.Issue(pki.Request{CommonName: "kube-apiserver", DNSNames: []string{"kubernetes"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true})
	if err != nil {
		t.Fatal(err)
	}
	clientPair, err := authority.Issue(pki.Request{CommonName: "system:node:node-1", Organizations: []string{"system:nodes"}, Client: true})
	if err != nil {
		t.Fatal(err)
	}
	serverCert, err := tls.X509KeyPair(serverPair.Certificate, serverPair.Key)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		subject := r.TLS.VerifiedChains[0][0].Subject
		w.Header().Set("X-Who", subject.CommonName+" "+strings.Join(subject.Organization, ","))
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{serverCert}, ClientCAs: authority.Pool(), ClientAuth: tls.RequireAndVerifyClientCert}
	server.StartTLS()
	defer server.Close()

	clientCert, err := tls.X509KeyPair(clientPair.Certificate, clientPair.Key)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: authority.Pool(), Certificates: []tls.Certificate{clientCert}}}}
	defer client.CloseIdleConnections()
	response, err := client.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if got, want := response.Header.Get("X-Who"), "system:node:node-1 system:nodes"; got != want {
		t.Errorf("server saw %q, want %q", got, want)
	}
}

func TestIssueRefusesNamelessAndUseless(t *testing.T) {
	authority := mustAuthority(t, t.TempDir())
	if _, err := authority.Issue(pki.Request{Client: true}); err == nil {
		t.Error("a certificate without a name was issued")
	}
	if _, err := authority.Issue(pki.Request{CommonName: "x"}); err == nil {
		t.Error("a certificate without a use was issued")
	}
}

func TestEnsureRenewsOnlyWhatMust(t *testing.T) {
	dir := t.TempDir()
	authority := mustAuthority(t, dir)
	cert, key := filepath.Join(dir, "a", "tls.crt"), filepath.Join(dir, "a", "tls.key")
	request := pki.Request{CommonName: "x", DNSNames: []string{"b", "a"}, IPs: []net.IP{net.IPv4(10, 0, 0, 1)}, Server: true, Lifetime: 30 * time.Minute}
	ensure := func(authority *pki.Authority, request pki.Request, want bool) {
		t.Helper()
		issued, err := authority.Ensure(cert, key, request)
		if err != nil {
			t.Fatal(err)
		}
		if issued != want {
			t.Errorf("issued = %v, want %v", issued, want)
		}
	}
	ensure(authority, request, true)
	ensure(authority, request, false)
	request.DNSNames = []string{"a", "b"}
	ensure(authority, request, false)
	request.IPs = append(request.IPs, net.IPv4(10, 0, 0, 2))
	ensure(authority, request, true)
	request.Lifetime = time.Minute // mostly spent by the backdating
	if _, err := authority.Ensure(cert, key, pki.Request{CommonName: "y", Server: true, Lifetime: time.Minute}); err != nil {
		t.Fatal(err)
	}
	ensure(authority, pki.Request{CommonName: "y", Server: true}, true)
	ensure(mustAuthority(t, t.TempDir()), pki.Request{CommonName: "y", Server: true}, true)
	assertMode(t, key, 0o600)
}

func TestLeafNeverOutlivesItsAuthority(t *testing.T) {
	authority := mustAuthority(t, t.TempDir())
	pair, err := authority.Issue(pki.Request{CommonName: "x", Client: true, Lifetime: 100 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := pki.ParseCertificates(pair.Certificate)
	if err != nil {
		t.Fatal(err)
	}
	if leaf[0].NotAfter.After(authority.Certificate.NotAfter) {
		t.Error("leaf ends after its authority")
	}
}

func TestNeedsRenewalInTheLastThird(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	certificate := &x509.Certificate{NotBefore: start, NotAfter: start.Add(90 * time.Hour)}
	if pki.NeedsRenewal(certificate, start.Add(59*time.Hour)) {
		t.Error("renewed too early")
	}
	if !pki.NeedsRenewal(certificate, start.Add(60*time.Hour)) {
		t.Error("not renewed in its last third")
	}
}

func TestSigningKeyIsKeptWithItsPublicHalf(t *testing.T) {
	dir := t.TempDir()
	key, err := pki.EnsureSigningKey(filepath.Join(dir, "sa.key"), filepath.Join(dir, "sa.pub"))
	if err != nil {
		t.Fatal(err)
	}
	again, err := pki.EnsureSigningKey(filepath.Join(dir, "sa.key"), filepath.Join(dir, "sa.pub"))
	if err != nil {
		t.Fatal(err)
	}
	public, err := pki.LoadPublicKeys(filepath.Join(dir, "sa.pub"))
	if err != nil {
		t.Fatal(err)
	}
	if len(public) != 1 || !pki.SamePublicKey(public[0], key.Public()) || !pki.SamePublicKey(key.Public(), again.Public()) {
		t.Error("the key changed, or its public half is another's")
	}
}

func TestKubeconfigIsUsable(t *testing.T) {
	authority := mustAuthority(t, t.TempDir())
	pair, err := authority.Issue(pki.Request{CommonName: "kubernetes-admin", Organizations: []string{"system:masters"}, Client: true})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	config := pki.Kubeconfig{Server: "https://127.0.0.1:6443", Cluster: "sampan", User: "kubernetes-admin", Authority: authority.PEM(), KeyPair: pair}
	if err := config.Write(path); err != nil {
		t.Fatal(err)
	}
	assertMode(t, path, 0o600)
	rest, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	if rest.Host != "https://127.0.0.1:6443" || len(rest.CertData) == 0 || len(rest.CAData) == 0 {
		t.Errorf("config %+v", rest)
	}
}

func FuzzParseCertificates(f *testing.F) {
	authority, err := pki.NewAuthority("x", time.Hour)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(authority.PEM())
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		certificates, err := pki.ParseCertificates(content)
		if err == nil && len(certificates) == 0 {
			t.Error("no certificate and no error")
		}
	})
}
