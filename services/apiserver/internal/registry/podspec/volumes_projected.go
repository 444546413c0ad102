package podspec

import (
	"fmt"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// jsonName is a struct field's name in JSON.
func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// projection checks the parts of one projected volume, which must not write the
// same file twice.
type projection struct {
	path  *field.Path
	files map[string]bool
}

// add remembers a file; value names what is reported as conflicting.
func (p *projection) add(file, value string) field.ErrorList {
	if file == "" {
		return nil
	}
	if p.files[file] {
		return field.ErrorList{field.Invalid(p.path, value, "conflicting duplicate paths")}
	}
	p.files[file] = true
	return nil
}

func (c *checker) validateProjected(source *corev1.ProjectedVolumeSource, path *field.Path) field.ErrorList {
	errs := validMode(source.DefaultMode, path.Child("defaultMode"))
	p := &projection{path: path, files: map[string]bool{}}
	for i := range source.Sources {
		s, at := &source.Sources[i], path.Child("sources").Index(i)
		count := 0
		value := reflect.ValueOf(s).Elem()
		for j := range value.NumField() {
			if !value.Field(j).IsNil() {
				count++
			}
		}
		errs = append(errs, p.validateSource(s, at)...)
		if count > 1 {
			errs = append(errs, field.Forbidden(at, "may not specify more than 1 volume type per source"))
		}
	}
	return errs
}

func (p *projection) validateSource(s *corev1.VolumeProjection, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s.Secret != nil {
		errs = append(errs, required(s.Secret.Name, path.Child("secret", "name"))...)
		errs = append(errs, p.items(s.Secret.Items, s.Secret.Name, path.Child("secret", "items"))...)
	}
	if s.ConfigMap != nil {
		errs = append(errs, required(s.ConfigMap.Name, path.Child("configMap", "name"))...)
		errs = append(errs, p.items(s.ConfigMap.Items, s.ConfigMap.Name, path.Child("configMap", "items"))...)
	}
	if s.DownwardAPI != nil {
		for i := range s.DownwardAPI.Items {
			file := &s.DownwardAPI.Items[i]
			errs = append(errs, validateDownwardFile(file, path.Child("downwardAPI"))...)
			errs = append(errs, p.add(file.Path, file.Path)...)
		}
	}
	if s.ServiceAccountToken != nil {
		errs = append(errs, p.token(s.ServiceAccountToken, path.Child("serviceAccountToken"))...)
	}
	if s.ClusterTrustBundle != nil {
		errs = append(errs, p.trustBundle(s.ClusterTrustBundle, path.Child("clusterTrustBundle"))...)
	}
	if s.PodCertificate != nil {
		errs = append(errs, p.certificate(s.PodCertificate, path.Child("podCertificate"))...)
	}
	return errs
}

func (p *projection) items(items []corev1.KeyToPath, name string, path *field.Path) field.ErrorList {
	errs := validateItems(items, path)
	for _, item := range items {
		errs = append(errs, p.add(item.Path, name)...)
	}
	return errs
}

func (p *projection) token(t *corev1.ServiceAccountTokenProjection, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if t.ExpirationSeconds != nil {
		if s := *t.ExpirationSeconds; s < 10*60 {
			errs = append(errs, field.Invalid(path.Child("expirationSeconds"), s, "may not specify a duration less than 10 minutes"))
		} else if s > 1<<32 {
			errs = append(errs, field.Invalid(path.Child("expirationSeconds"), s, "may not specify a duration larger than 2^32 seconds"))
		}
	}
	if t.Path == "" {
		return append(errs, field.Required(p.path.Child("path"), ""))
	}
	return append(errs, fileName(t.Path, p.path.Child("path"))...)
}

func (p *projection) trustBundle(b *corev1.ClusterTrustBundleProjection, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch {
	case b.Name != nil && b.SignerName != nil:
		errs = append(errs, field.Invalid(path, b, "only one of name and signerName may be used"))
	case b.Name != nil:
		errs = append(errs, validateTrustBundleName(*b.Name, path.Child("name"))...)
		if b.LabelSelector != nil {
			errs = append(errs, field.Invalid(path.Child("labelSelector"), b.LabelSelector, "labelSelector must be unset if name is specified"))
		}
	case b.SignerName != nil:
		if *b.SignerName == "" {
			errs = append(errs, field.Required(path.Child("signerName"), "must be a valid signer name"))
		}
		errs = append(errs, ValidateSignerName(*b.SignerName, path.Child("signerName"))...)
		errs = append(errs, metav1validation.ValidateLabelSelector(b.LabelSelector, metav1validation.LabelSelectorValidationOptions{}, path.Child("labelSelector"))...)
	default:
		errs = append(errs, field.Required(path, "either name or signerName must be specified"))
	}
	errs = append(errs, required(b.Path, path.Child("path"))...)
	errs = append(errs, fileName(b.Path, path.Child("path"))...)
	return append(errs, p.add(b.Path, b.Path)...)
}

func validateTrustBundleName(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "must be a valid object name")}
	}
	rest := name
	if i := strings.LastIndexByte(name, ':'); i >= 0 { // <signer with : for />:<name>
		rest = name[i+1:]
	}
	var errs field.ErrorList
	for _, msg := range apivalidation.NameIsDNSSubdomain(rest, false) {
		errs = append(errs, field.Invalid(path, name, fmt.Sprintf("not a valid clustertrustbundlename: %v", msg)))
	}
	return errs
}

// The lifetimes that a certificate of a pod may have, in seconds.
const (
	minCertificateSeconds = 3600
	maxCertificateSeconds = 91 * 86400
)

func (p *projection) certificate(c *corev1.PodCertificateProjection, path *field.Path) field.ErrorList {
	errs := ValidateSignerName(c.SignerName, path.Child("signerName"))
	errs = append(errs, notSupported(c.KeyType, path.Child("keyType"), "RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519")...)
	if s := c.MaxExpirationSeconds; s != nil {
		if *s < minCertificateSeconds {
			errs = append(errs, field.Invalid(path.Child("maxExpirationSeconds"), *s, fmt.Sprintf("if provided, maxExpirationSeconds must be >= %d", minCertificateSeconds)))
		}
		if *s > maxCertificateSeconds {
			errs = append(errs, field.Invalid(path.Child("maxExpirationSeconds"), *s, fmt.Sprintf("if provided, maxExpirationSeconds must be <= %d", maxCertificateSeconds)))
		}
	}
	files := 0
	for _, f := range []struct{ name, file string }{
		{"credentialBundlePath", c.CredentialBundlePath}, {"keyPath", c.KeyPath}, {"certificateChainPath", c.CertificateChainPath},
	} {
		if f.file != "" {
			files++
			errs = append(errs, fileName(f.file, path.Child(f.name))...)
			errs = append(errs, p.add(f.file, f.file)...)
		}
	}
	if files == 0 {
		errs = append(errs, field.Required(path, "specify at least one of credentialBundlePath, keyPath, and certificateChainPath"))
	}
	return errs
}

// ValidateSignerName wants a domain with a dot in it, a slash and a path.
func ValidateSignerName(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	domain, rest, found := strings.Cut(name, "/")
	if !found || strings.Contains(rest, "/") {
		return field.ErrorList{field.Invalid(path, name, "must be a fully qualified domain and path of the form 'example.com/signer-name'")}
	}
	var errs field.ErrorList
	if !strings.Contains(domain, ".") {
		errs = append(errs, field.Invalid(path, domain, "should be a domain with at least two segments separated by dots"))
	}
	errs = append(errs, dnsSubdomain(domain, path)...)
	for _, part := range strings.Split(rest, ".") {
		errs = append(errs, dnsLabel(part, path)...)
	}
	if max := 253 + 1 + 63*3; len(name) > max { // as long as a name that embeds it may be
		errs = append(errs, field.TooLong(path, name, max))
	}
	return errs
}
