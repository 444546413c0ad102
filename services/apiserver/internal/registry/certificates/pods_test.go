package certificates

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func newKey(t *testing.T, curve elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// certificate is a certificate for a key, in PEM.
func certificate(t *testing.T, key *ecdsa.PrivateKey, change func(*x509.Certificate)) string {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "pod"}, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Minute).Truncate(time.Second), NotAfter: time.Now().Add(6 * time.Hour).Truncate(time.Second),
	}
	change(template)
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func assertErrors(t *testing.T, got interface{ Error() string }, want string) {
	t.Helper()
	text := ""
	if got != nil {
		text = got.Error()
	}
	if !strings.Contains(text, want) || want == "" && text != "" {
		t.Errorf("got %q, want %q", text, want)
	}
}

func TestTrustBundleRefusals(t *testing.T) {
	key := newKey(t, elliptic.P256())
	authority := certificate(t, key, func(c *x509.Certificate) { c.IsCA = true })
	for _, test := range []struct{ name, signer, bundle, want string }{
		{"example.com:a:v1", "example.com/a", authority, ""},
		{"plain", "", authority, ""},
		{"plain", "example.com/a", authority, "ClusterTrustBundle for signerName example.com/a must be named with prefix example.com:a:"},
		{"example.com:a:v1", "", authority, "metadata.name: Invalid value"},
		{"plain", "", "", "at least one trust anchor must be provided"},
		{"plain", "", authority + authority, "duplicate trust anchor (indices [0 1])"},
		{"plain", "", certificate(t, key, func(*x509.Certificate) {}), "entry 0 does not have the CA bit set"},
		{"plain", "", strings.ReplaceAll(authority, "CERTIFICATE", "SECRET"), "entry 0 has bad block type: SECRET"},
	} {
		obj := &certificatesv1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: test.name}, Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: test.signer, TrustBundle: test.bundle}}
		assertErrors(t, ClusterTrustBundles().Strategy.Validate(context.Background(), obj).ToAggregate(), test.want)
	}
}

func newPodRequest(t *testing.T, key *ecdsa.PrivateKey) *podRequest {
	t.Helper()
	stub, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	obj := &podRequest{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "r"}, Spec: certificatesv1.PodCertificateRequestSpec{
		SignerName: "example.com/a", PodName: "p", PodUID: "1", ServiceAccountName: "default", ServiceAccountUID: "2", NodeName: "node-1", NodeUID: "3",
		StubPKCS10Request: stub,
	}}
	PodCertificateRequests().Strategy.Default(obj)
	return obj
}

func TestPodCertificateRequestRefusals(t *testing.T) {
	key := newKey(t, elliptic.P256())
	for _, test := range []struct {
		change func(*certificatesv1.PodCertificateRequestSpec)
		want   string
	}{
		{func(*certificatesv1.PodCertificateRequestSpec) {}, ""},
		{func(s *certificatesv1.PodCertificateRequestSpec) { s.PodUID = "" }, "spec.podUID: Invalid value: \"\": must not be empty"},
		{func(s *certificatesv1.PodCertificateRequestSpec) { *s.MaxExpirationSeconds = 60 }, "must be in the range [3600, 7862400]"},
		{func(s *certificatesv1.PodCertificateRequestSpec) {
			s.SignerName, *s.MaxExpirationSeconds = "kubernetes.io/x", 90000
		}, "must be in the range [3600, 86400]"},
		{func(s *certificatesv1.PodCertificateRequestSpec) { s.StubPKCS10Request = []byte("no") }, "spec.stubPKCS10Request: Invalid value"},
		{func(s *certificatesv1.PodCertificateRequestSpec) {
			s.UnverifiedUserAnnotations = map[string]string{"k": "v"}
		}, "domain-prefixed"},
		{func(s *certificatesv1.PodCertificateRequestSpec) {
			s.StubPKCS10Request = newPodRequest(t, newKey(t, elliptic.P224())).Spec.StubPKCS10Request
		}, "elliptic public keys must use curve"},
	} {
		obj := newPodRequest(t, key)
		test.change(&obj.Spec)
		assertErrors(t, PodCertificateRequests().Strategy.Validate(context.Background(), obj).ToAggregate(), test.want)
	}
}

func TestPodCertificatesAreIssuedOnce(t *testing.T) {
	key := newKey(t, elliptic.P256())
	old := newPodRequest(t, key)
	status := PodCertificateRequests().Subresources[0]
	issue := func(chain string) *podRequest {
		block, _ := pem.Decode([]byte(chain))
		leaf, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		obj := old.DeepCopy()
		begin, end, refresh := metav1.NewTime(leaf.NotBefore), metav1.NewTime(leaf.NotAfter), metav1.NewTime(leaf.NotBefore.Add(time.Hour))
		obj.Status = certificatesv1.PodCertificateRequestStatus{
			Conditions:       []metav1.Condition{{Type: "Issued", Status: "True", Reason: "Issued", LastTransitionTime: metav1.Now()}},
			CertificateChain: chain, NotBefore: &begin, NotAfter: &end, BeginRefreshAt: &refresh,
		}
		return obj
	}
	good := issue(certificate(t, key, func(*x509.Certificate) {}))
	check := func(obj, old *podRequest, want string) {
		t.Helper()
		assertErrors(t, status.Update.ValidateUpdate(context.Background(), obj, old).ToAggregate(), want)
	}
	check(good, old, "")
	check(issue(certificate(t, newKey(t, elliptic.P256()), func(*x509.Certificate) {})), old, "leaf certificate was not issued to the requested public key")
	check(issue(certificate(t, key, func(c *x509.Certificate) { c.NotAfter = c.NotBefore.Add(48 * time.Hour) })), old, "lifetime must be <= spec.maxExpirationSeconds")
	late := good.DeepCopy()
	late.Status.NotBefore = &metav1.Time{Time: time.Now().Add(-time.Hour)}
	check(late, old, "must be set to the NotBefore time encoded in the leaf certificate")
	changed := good.DeepCopy()
	changed.Status.CertificateChain = ""
	check(changed, good, "immutable after PodCertificateRequest is issued, denied, or failed")
	half := old.DeepCopy()
	half.Status.CertificateChain = "x"
	check(half, old, "status is immutable unless transitioning")
	denied := good.DeepCopy()
	denied.Status.Conditions[0].Type = "Denied"
	check(denied, old, "non-condition status fields must be empty when denying")
}
