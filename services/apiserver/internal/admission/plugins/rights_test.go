package plugins_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"slices"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/admission/plugins"
	"github.com/sampan-io/sampan/services/apiserver/internal/authz"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// rights allows the actions that it lists: "verb resource[/subresource] name".
type rights []string

func (r rights) Authorize(_ context.Context, a authz.Attributes) (authz.Decision, string, error) {
	resource := a.Resource
	if a.Subresource != "" {
		resource += "/" + a.Subresource
	}
	if slices.Contains(r, a.Verb+" "+resource+" "+a.Name) {
		return authz.Allow, "", nil
	}
	return authz.NoOpinion, "", nil
}

func with(list ...string) func(*plugins.Config) {
	return func(c *plugins.Config) { c.Authorizer = rights(list) }
}

func signingRequest(signer string) *certificatesv1.CertificateSigningRequest {
	return &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Spec: certificatesv1.CertificateSigningRequestSpec{SignerName: signer}}
}

func TestSignersHaveRights(t *testing.T) {
	const csr = "certificatesigningrequests.certificates.k8s.io"
	old := signingRequest("example.com/a")
	issued := signingRequest("example.com/a")
	issued.Status.Certificate = []byte("x")
	failed := signingRequest("example.com/a")
	failed.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateFailed}}
	bundle := &certificatesv1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: "example.com/a"}}
	unsigned := &certificatesv1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: "b"}}
	for _, c := range []struct {
		plugin   string
		resource string
		obj, old registry.Object
		right    string
		needs    bool
	}{
		{"CertificateApproval", csr + "/approval", old, old, "approve signers example.com/a", true},
		{"CertificateApproval", csr + "/approval", old, old, "approve signers example.com/*", true},
		{"CertificateApproval", csr, old, old, "", false},
		{"CertificateSigning", csr + "/status", issued, old, "sign signers example.com/a", true},
		{"CertificateSigning", csr + "/status", failed, old, "sign signers example.com/*", true},
		{"CertificateSigning", csr + "/status", old, old, "", false},
		{"ClusterTrustBundleAttest", "clustertrustbundles.certificates.k8s.io", bundle, bundle, "attest signers example.com/a", true},
		{"ClusterTrustBundleAttest", "clustertrustbundles.certificates.k8s.io", unsigned, unsigned, "", false},
	} {
		without := run(t.Context(), only(t, newState(), c.plugin, with("approve signers example.com/b")), write(admission.Update, c.resource, c.obj, c.old))
		if c.needs {
			assertRefused(t, without, `with signerName "example.com/a"`)
		} else if without != nil {
			t.Errorf("%s %s: %v", c.plugin, c.resource, without)
		}
		if err := run(t.Context(), only(t, newState(), c.plugin, with(c.right)), write(admission.Update, c.resource, c.obj, c.old)); err != nil {
			t.Errorf("%s with %q: %v", c.plugin, c.right, err)
		}
	}
}

func TestNobodyAsksForAMastersCertificate(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	request := func(signer, organization string) *certificatesv1.CertificateSigningRequest {
		der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "x", Organization: []string{organization}}}, key)
		if err != nil {
			t.Fatal(err)
		}
		r := signingRequest(signer)
		r.Spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
		return r
	}
	chain := only(t, newState(), "CertificateSubjectRestriction")
	create := func(r *certificatesv1.CertificateSigningRequest) error {
		return run(t.Context(), chain, write(admission.Create, "certificatesigningrequests.certificates.k8s.io", r, nil))
	}
	assertRefused(t, create(request("kubernetes.io/kube-apiserver-client", "system:masters")), "system:masters group is not allowed")
	assertRefused(t, create(signingRequest("kubernetes.io/kube-apiserver-client")), "failed to parse CSR")
	for _, r := range []*certificatesv1.CertificateSigningRequest{request("kubernetes.io/kube-apiserver-client", "dev"), request("example.com/a", "system:masters")} {
		if err := create(r); err != nil {
			t.Error(err)
		}
	}
}

func TestOwnersNeedRights(t *testing.T) {
	owned := func(block bool) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "c", OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "apps/v1", Kind: "Deployment", Name: "d", UID: "1", BlockOwnerDeletion: new(block)},
		}}}
	}
	free := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "c"}}
	try := func(obj, old *corev1.ConfigMap, list ...string) error {
		chain := only(t, newState(), "OwnerReferencesPermissionEnforcement", with(list...), func(c *plugins.Config) {
			c.ResourcesOf = func(kind schema.GroupVersionKind) []*registry.Resource {
				if kind.Kind != "Deployment" {
					return nil
				}
				return []*registry.Resource{{GroupVersionResource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, Namespaced: true}}
			}
		})
		return run(t.Context(), chain, write(admission.Update, "configmaps", obj, old))
	}
	assertRefused(t, try(owned(false), free), "cannot set an ownerRef on a resource you can't delete")
	assertRefused(t, try(owned(true), free, "delete configmaps c"), "you can't set finalizers on")
	assertRefused(t, try(free, owned(false)), "cannot set an ownerRef on a resource you can't delete")
	for _, err := range []error{
		try(owned(false), free, "delete configmaps c"),
		try(owned(true), free, "delete configmaps c", "update deployments/finalizers d"),
		try(owned(true), owned(true)),
		try(owned(false), owned(true), "delete configmaps c"),
	} {
		if err != nil {
			t.Error(err)
		}
	}
}
