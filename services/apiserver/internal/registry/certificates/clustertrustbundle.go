package certificates

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// maxBundle bounds a bundle, in bytes.
const maxBundle = 1 << 20

const omitted = "<value omitted>"

// ClusterTrustBundles are certificates of authorities that pods may trust.
func ClusterTrustBundles() *registry.Resource {
	type bundle = certificatesv1.ClusterTrustBundle
	validateBundle := func(_ context.Context, obj *bundle) field.ErrorList {
		errs := validateBundleName(obj.Name, obj.Spec.SignerName)
		if obj.Spec.SignerName != "" {
			errs = append(errs, podspec.ValidateSignerName(obj.Spec.SignerName, field.NewPath("spec", "signerName"))...)
		}
		return append(errs, validateAnchors(obj.Spec.TrustBundle, field.NewPath("spec", "trustBundle"))...)
	}
	return registry.Define(registry.Definition[*bundle]{
		GroupVersion: certificatesv1.SchemeGroupVersion, Resource: "clustertrustbundles", Kind: "ClusterTrustBundle", Singular: "clustertrustbundle",
		New:       func() *bundle { return &bundle{} },
		NewList:   func() runtime.Object { return &certificatesv1.ClusterTrustBundleList{} },
		KeyPrefix: "/registry/clustertrustbundles",
		Fields:    func(obj *bundle) fields.Set { return fields.Set{"spec.signerName": obj.Spec.SignerName} },
		Strategy: registry.Behaviour[*bundle]{
			// The signer's part of a name has colons, and is checked with the signer.
			ValidateName: func(string, bool) []string { return nil },
			Validate:     validateBundle,
			ValidateUpdate: func(ctx context.Context, obj, old *bundle) field.ErrorList {
				errs := validateBundle(ctx, obj)
				return append(errs, apivalidation.ValidateImmutableField(obj.Spec.SignerName, old.Spec.SignerName, field.NewPath("spec", "signerName"))...)
			},
		},
		Columns: []metav1.TableColumnDefinition{
			table.Name(), table.String("SignerName", certificatesv1.ClusterTrustBundleSpec{}.SwaggerDoc()["signerName"]),
		},
		Row: func(obj *bundle) []any { return []any{obj.Name, table.OrNone(obj.Spec.SignerName)} },
	})
}

// validateBundleName wants a signer's bundle to be named after it.
func validateBundleName(name, signer string) field.ErrorList {
	path := field.NewPath("metadata", "name")
	rest := name
	if signer != "" {
		prefix := strings.ReplaceAll(signer, "/", ":") + ":"
		var ok bool
		if rest, ok = strings.CutPrefix(name, prefix); !ok {
			return field.ErrorList{field.Invalid(path, name, fmt.Sprintf("ClusterTrustBundle for signerName %s must be named with prefix %s", signer, prefix))}
		}
	}
	var errs field.ErrorList
	for _, msg := range apivalidation.NameIsDNSSubdomain(rest, false) {
		errs = append(errs, field.Invalid(path, name, msg))
	}
	return errs
}

// validateAnchors wants each certificate of an authority once, and nothing else.
func validateAnchors(text string, path *field.Path) field.ErrorList {
	if len(text) > maxBundle {
		return field.ErrorList{field.TooLong(path, "", maxBundle)}
	}
	var errs field.ErrorList
	refuse := func(format string, args ...any) {
		errs = append(errs, field.Invalid(path, omitted, fmt.Sprintf(format, args...)))
	}
	seen := map[string][]int{}
	rest := []byte(text)
	for i := 0; ; i++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			refuse("entry %d has bad block type: %v", i, block.Type)
			continue
		}
		if len(block.Headers) != 0 {
			refuse("entry %d has PEM block headers", i)
			continue
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		switch {
		case err != nil:
			refuse("entry %d does not parse as X.509", i)
		case !certificate.IsCA:
			refuse("entry %d does not have the CA bit set", i)
		default:
			seen[string(block.Bytes)] = append(seen[string(block.Bytes)], i)
		}
	}
	if len(errs) > 0 {
		return errs
	}
	if len(seen) == 0 {
		refuse("at least one trust anchor must be provided")
	}
	for _, indices := range seen {
		if len(indices) > 1 {
			refuse("duplicate trust anchor (indices %v)", indices)
		}
	}
	return errs
}
