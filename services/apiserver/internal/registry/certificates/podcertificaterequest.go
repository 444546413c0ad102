package certificates

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"fmt"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
)

type podRequest = certificatesv1.PodCertificateRequest

// Lifetimes that a pod's certificate may be asked for, in seconds.
const (
	minPodLifetime        = 3600
	defaultPodLifetime    = 24 * 3600
	maxKubernetesLifetime = 24 * 3600 // of the project's own signers
	maxPodLifetime        = 91 * 24 * 3600
)

// Bounds of what a request and its answer hold, in bytes.
const (
	maxUID        = 128
	maxRequest    = 10 * 1024
	maxChain      = 100 * 1024
	minKeyBitsRSA = 3072
	maxKeyBitsRSA = 4096
)

// PodCertificateRequests ask a signer for the certificate of a pod.
func PodCertificateRequests() *registry.Resource {
	main := registry.Behaviour[*podRequest]{
		Default: func(obj *podRequest) {
			if obj.Spec.MaxExpirationSeconds == nil {
				obj.Spec.MaxExpirationSeconds = ptr.To(int32(defaultPodLifetime))
			}
		},
		PrepareForCreate: func(_ context.Context, obj *podRequest) { obj.Status = certificatesv1.PodCertificateRequestStatus{} },
		PrepareForUpdate: func(_ context.Context, obj, old *podRequest) { obj.Status = old.Status },
		Validate:         func(_ context.Context, obj *podRequest) field.ErrorList { return validatePodRequest(&obj.Spec) },
		ValidateUpdate: func(_ context.Context, obj, old *podRequest) field.ErrorList {
			return apivalidation.ValidateImmutableField(obj.Spec, old.Spec, field.NewPath("spec"))
		},
		ResetFields: []string{"status"},
	}
	status := main
	status.PrepareForUpdate = func(_ context.Context, obj, old *podRequest) {
		obj.Spec = old.Spec
		metav1.ResetObjectMetaForStatus(obj, old)
	}
	status.ValidateUpdate = func(_ context.Context, obj, old *podRequest) field.ErrorList { return validateIssue(obj, old) }
	status.ResetFields = []string{"metadata", "spec"}
	return registry.Define(registry.Definition[*podRequest]{
		GroupVersion: certificatesv1.SchemeGroupVersion, Resource: "podcertificaterequests", Kind: "PodCertificateRequest", Singular: "podcertificaterequest",
		Namespaced: true,
		New:        func() *podRequest { return &podRequest{} },
		NewList:    func() runtime.Object { return &certificatesv1.PodCertificateRequestList{} },
		KeyPrefix:  "/registry/podcertificaterequests",
		Fields: func(obj *podRequest) fields.Set {
			return fields.Set{"spec.signerName": obj.Spec.SignerName, "spec.podName": obj.Spec.PodName, "spec.nodeName": string(obj.Spec.NodeName)}
		},
		Indexed:  []string{"spec.nodeName"},
		Strategy: main,
		Subresources: []registry.Subresource{
			{Name: "status", Verbs: []string{"get", "patch", "update"}, Update: registry.Erase(status)},
		},
	})
}

func validatePodRequest(spec *certificatesv1.PodCertificateRequestSpec) field.ErrorList {
	path := field.NewPath("spec")
	errs := podspec.ValidateSignerName(spec.SignerName, path.Child("signerName"))
	names := []struct {
		name, value string
		check       func(string, bool) []string
	}{
		{"podName", spec.PodName, apivalidation.NameIsDNSSubdomain},
		{"serviceAccountName", spec.ServiceAccountName, apivalidation.ValidateServiceAccountName},
		{"nodeName", string(spec.NodeName), apivalidation.NameIsDNSSubdomain},
	}
	for _, n := range names {
		for _, msg := range n.check(n.value, false) {
			errs = append(errs, field.Invalid(path.Child(n.name), n.value, msg))
		}
	}
	for _, id := range []struct{ name, value string }{
		{"podUID", string(spec.PodUID)}, {"serviceAccountUID", string(spec.ServiceAccountUID)}, {"nodeUID", string(spec.NodeUID)},
	} {
		if id.value == "" {
			errs = append(errs, field.Invalid(path.Child(id.name), id.value, "must not be empty"))
		}
		if len(id.value) > maxUID {
			errs = append(errs, field.TooLong(path.Child(id.name), id.value, maxUID))
		}
	}
	errs = append(errs, validateUserAnnotations(spec.UnverifiedUserAnnotations, path.Child("unverifiedUserAnnotations"))...)
	errs = append(errs, validateLifetime(spec, path.Child("maxExpirationSeconds"))...)
	if len(errs) > 0 {
		return errs
	}
	return validateStub(spec.StubPKCS10Request, path.Child("stubPKCS10Request"))
}

func validateUserAnnotations(annotations map[string]string, path *field.Path) field.ErrorList {
	errs := apivalidation.ValidateAnnotations(annotations, path)
	for key := range annotations {
		if !strings.Contains(key, "/") {
			errs = append(errs, field.Invalid(path.Key(key), key, "must be a domain-prefixed key (such as \"acme.io/foo\")"))
		}
	}
	return errs
}

func validateLifetime(spec *certificatesv1.PodCertificateRequestSpec, path *field.Path) field.ErrorList {
	if spec.MaxExpirationSeconds == nil {
		return field.ErrorList{field.Required(path, "must be set")}
	}
	most := int32(maxPodLifetime)
	if domain, _, _ := strings.Cut(spec.SignerName, "/"); domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io") {
		most = maxKubernetesLifetime
	}
	if s := *spec.MaxExpirationSeconds; s < minPodLifetime || s > most {
		return field.ErrorList{field.Invalid(path, s, fmt.Sprintf("must be in the range [%d, %d]", minPodLifetime, most))}
	}
	return nil
}

// validateStub wants a request that is signed by a key of a kind that signers
// know.
func validateStub(der []byte, path *field.Path) field.ErrorList {
	if len(der) > maxRequest {
		return field.ErrorList{field.TooLong(path, "", maxRequest)}
	}
	request, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return field.ErrorList{field.Invalid(path, omitted, "must be a valid PKCS#10 certificate signing request")}
	}
	if err := request.CheckSignature(); err != nil {
		return field.ErrorList{field.Invalid(path, omitted, "must be signed by the key that it names")}
	}
	switch key := request.PublicKey.(type) {
	case ed25519.PublicKey:
	case *ecdsa.PublicKey:
		if key.Curve != elliptic.P256() && key.Curve != elliptic.P384() && key.Curve != elliptic.P521() {
			return field.ErrorList{field.Invalid(path, "curve "+key.Curve.Params().Name, "elliptic public keys must use curve P256, P384 or P521")}
		}
	case *rsa.PublicKey:
		if bits := key.Size() * 8; bits != minKeyBitsRSA && bits != maxKeyBitsRSA {
			return field.ErrorList{field.Invalid(path, fmt.Sprintf("%d-bit modulus", bits), "RSA keys must have modulus size 3072 or 4096")}
		}
	default:
		return field.ErrorList{field.Invalid(path, omitted, "unknown public key type; supported types are Ed25519, ECDSA, and RSA")}
	}
	return nil
}
