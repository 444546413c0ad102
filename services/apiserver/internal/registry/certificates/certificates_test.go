package certificates

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
)

func newRequest(t *testing.T) *csr {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return &csr{Spec: certificatesv1.CertificateSigningRequestSpec{
		Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
		SignerName: "kubernetes.io/kube-apiserver-client", Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
	}}
}

func subresource(name string) *registry.Strategy {
	for _, s := range CertificateSigningRequests().Subresources {
		if s.Name == name {
			return s.Update
		}
	}
	return nil
}

func decided(obj *csr, kind certificatesv1.RequestConditionType) *csr {
	obj = obj.DeepCopy()
	obj.Status.Conditions = append(obj.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{Type: kind, Status: corev1.ConditionTrue})
	return obj
}

func TestRequestorIsWhoAsked(t *testing.T) {
	obj := newRequest(t)
	obj.Spec.Username, obj.Spec.Groups = "admin", []string{"system:masters"}
	ctx := request.WithUser(context.Background(), &authn.User{Name: "ann", UID: "7", Groups: []string{"g"}, Extra: map[string][]string{"k": {"v"}}})
	r := CertificateSigningRequests()
	r.Strategy.PrepareForCreate(ctx, obj)
	if obj.Spec.Username != "ann" || obj.Spec.UID != "7" || strings.Join(obj.Spec.Groups, ",") != "g" || obj.Spec.Extra["k"][0] != "v" {
		t.Errorf("spec is %+v", obj.Spec)
	}
	if errs := r.Strategy.Validate(ctx, obj); len(errs) > 0 {
		t.Error(errs)
	}
	changed := obj.DeepCopy()
	changed.Spec.Username = "admin"
	changed.Status.Certificate = []byte("x")
	r.Strategy.PrepareForUpdate(ctx, changed, obj)
	if changed.Spec.Username != "ann" || changed.Status.Certificate != nil {
		t.Error("an update changed the request")
	}
}

func TestValidation(t *testing.T) {
	good := newRequest(t)
	for want, change := range map[string]func(*certificatesv1.CertificateSigningRequestSpec){
		"spec.usages: Required value":                                                                       func(s *certificatesv1.CertificateSigningRequestSpec) { s.Usages = nil },
		`spec.usages[0]: Unsupported value: "fly": supported values: `:                                      func(s *certificatesv1.CertificateSigningRequestSpec) { s.Usages[0] = "fly" },
		"PEM block type must be CERTIFICATE REQUEST":                                                        func(s *certificatesv1.CertificateSigningRequestSpec) { s.Request = []byte("x") },
		"spec.signerName: Required value":                                                                   func(s *certificatesv1.CertificateSigningRequestSpec) { s.SignerName = "" },
		"the legacy signerName is not allowed via this API version":                                         func(s *certificatesv1.CertificateSigningRequestSpec) { s.SignerName = "kubernetes.io/legacy-unknown" },
		"spec.expirationSeconds: Invalid value: 5: may not specify a duration less than 600 seconds (10 mi": func(s *certificatesv1.CertificateSigningRequestSpec) { n := int32(5); s.ExpirationSeconds = &n },
	} {
		obj := good.DeepCopy()
		change(&obj.Spec)
		err := CertificateSigningRequests().Strategy.Validate(context.Background(), obj).ToAggregate()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestDecisions(t *testing.T) {
	pending := newRequest(t)
	approved, denied := decided(pending, certificatesv1.CertificateApproved), decided(pending, certificatesv1.CertificateDenied)
	both := decided(approved, certificatesv1.CertificateDenied)
	for _, c := range []struct {
		sub      string
		obj, old *csr
		want     string
	}{
		{"approval", approved, pending, ""},
		{"approval", denied, pending, ""},
		{"approval", both, approved, "Approved and Denied conditions are mutually exclusive"},
		{"approval", pending, approved, `status.conditions: Forbidden: updates may not remove a condition of type "Approved"`},
		{"status", approved, pending, `status.conditions: Forbidden: updates may not add a condition of type "Approved"`},
		{"status", decided(pending, certificatesv1.CertificateFailed), pending, ""},
	} {
		got := ""
		if err := subresource(c.sub).ValidateUpdate(context.Background(), c.obj, c.old).ToAggregate(); err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, c.want) || (c.want == "" && got != "") {
			t.Errorf("%s: got %q, want %q", c.sub, got, c.want)
		}
	}
	obj := approved.DeepCopy()
	obj.Status.Certificate = []byte("x")
	subresource("approval").PrepareForUpdate(context.Background(), obj, pending)
	if obj.Status.Certificate != nil || obj.Status.Conditions[0].LastUpdateTime.IsZero() || obj.Status.Conditions[0].LastTransitionTime.IsZero() {
		t.Errorf("status is %+v", obj.Status)
	}
	if got := condition(decided(approved, certificatesv1.CertificateFailed)); got != "Approved,Failed" {
		t.Errorf("condition is %q", got)
	}
}
