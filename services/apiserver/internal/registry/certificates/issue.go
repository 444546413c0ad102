package certificates

import (
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/mail"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	// startSkew is how far from the present a certificate may begin.
	startSkew = 5 * time.Minute
	// refreshMargin is the least time between the hint to refresh and either end.
	refreshMargin = 10 * time.Minute
	minIssued     = time.Hour
)

// validateIssue checks the one change that a request's status may see: a signer
// issues a certificate, denies it, or fails.
func validateIssue(obj, old *podRequest) field.ErrorList {
	path := field.NewPath("status")
	if errs := validateOutcome(obj.Status.Conditions, path.Child("conditions")); len(errs) > 0 {
		return errs
	}
	now := outcome(obj)
	switch {
	case outcome(old) != "":
		return unchanged(obj.Status, old.Status, path, "immutable after PodCertificateRequest is issued, denied, or failed")
	case now == "":
		return unchanged(obj.Status, old.Status, path, `status is immutable unless transitioning to "Issued", "Denied", or "Failed"`)
	case now != certificatesv1.PodCertificateRequestConditionTypeIssued:
		only := certificatesv1.PodCertificateRequestStatus{Conditions: obj.Status.Conditions}
		return unchanged(obj.Status, only, path, "non-condition status fields must be empty when denying or failing the PodCertificateRequest")
	}
	leaf, errs := validateChain(obj.Status.CertificateChain, old.Spec.StubPKCS10Request, path.Child("certificateChain"))
	if len(errs) > 0 {
		return errs
	}
	return validateTimes(obj, leaf, path)
}

func unchanged(now, was certificatesv1.PodCertificateRequestStatus, path *field.Path, detail string) field.ErrorList {
	if apiequality.Semantic.DeepEqual(now, was) {
		return nil
	}
	return field.ErrorList{field.Invalid(path, field.OmitValueType{}, detail)}
}

func outcomes() []string {
	return []string{
		certificatesv1.PodCertificateRequestConditionTypeIssued, certificatesv1.PodCertificateRequestConditionTypeDenied, certificatesv1.PodCertificateRequestConditionTypeFailed,
	}
}

// outcome is what has become of a request, "" while it waits.
func outcome(obj *podRequest) string {
	for _, kind := range outcomes() {
		if meta.IsStatusConditionTrue(obj.Status.Conditions, kind) {
			return kind
		}
	}
	return ""
}

func validateOutcome(list []metav1.Condition, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, c := range list {
		at := path.Index(i)
		switch c.Type {
		case outcomes()[0], outcomes()[1], outcomes()[2]:
			if i > 0 {
				errs = append(errs, field.Invalid(at.Child("type"), c.Type, `There may be at most one condition with type "Issued", "Denied", or "Failed"`))
			}
			if c.Status != metav1.ConditionTrue {
				errs = append(errs, field.NotSupported(at.Child("status"), c.Status, []metav1.ConditionStatus{metav1.ConditionTrue}))
			}
		default:
			errs = append(errs, field.NotSupported(at.Child("type"), c.Type, outcomes()))
		}
	}
	return append(errs, metav1validation.ValidateConditions(list, path)...)
}

// validateChain checks an issued chain, and returns the certificate at its start:
// that of the key in the request.
func validateChain(chain string, request []byte, path *field.Path) (*x509.Certificate, field.ErrorList) {
	refuse := func(value, detail string) (*x509.Certificate, field.ErrorList) {
		return nil, field.ErrorList{field.Invalid(path, value, detail)}
	}
	if len(chain) > maxChain {
		return nil, field.ErrorList{field.TooLong(path, "", maxChain)}
	}
	var leaf *x509.Certificate
	for rest := []byte(chain); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return refuse(chain, "issued certificate chain must consist entirely of CERTIFICATE PEM blocks")
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		switch {
		case err != nil && leaf == nil:
			return refuse(chain, "leaf certificate does not parse as valid X.509")
		case err != nil:
			return refuse(chain, "intermediate certificate does not parse as valid X.509")
		case leaf == nil:
			leaf = certificate
		}
	}
	if leaf == nil {
		return refuse(chain, "issued certificate chain must contain at least one certificate")
	}
	if errs := validateNames(leaf, path); len(errs) > 0 {
		return nil, errs
	}
	asked, err := x509.ParseCertificateRequest(request)
	if err != nil {
		return refuse(chain, "the request cannot be read")
	}
	if key, ok := asked.PublicKey.(interface{ Equal(crypto.PublicKey) bool }); ok && key.Equal(leaf.PublicKey) {
		return leaf, nil
	}
	return refuse(chain, "leaf certificate was not issued to the requested public key")
}

func validateNames(leaf *x509.Certificate, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range leaf.DNSNames {
		switch {
		case name == "":
			errs = append(errs, field.Invalid(path, name, "leaf certificate should not contain empty DNSName"))
		case strings.Contains(name, ".."):
			errs = append(errs, field.Invalid(path, name, "leaf certificate's DNSName should not contain '..'"))
		case strings.HasPrefix(name, ".") || strings.HasSuffix(name, "."):
			errs = append(errs, field.Invalid(path, name, "leaf certificate's DNSName should not start or end with '.'"))
		}
	}
	for _, address := range leaf.EmailAddresses {
		if _, err := mail.ParseAddress(address); err != nil {
			errs = append(errs, field.Invalid(path, address, "leaf certificate should not contain invalid EmailAddress"))
		}
	}
	return errs
}

// validateTimes wants the status to tell the certificate's times, which must be
// those that were asked for.
func validateTimes(obj *podRequest, leaf *x509.Certificate, path *field.Path) field.ErrorList {
	s := &obj.Status
	begin, end, refresh := path.Child("notBefore"), path.Child("notAfter"), path.Child("beginRefreshAt")
	var errs field.ErrorList
	if s.NotBefore == nil {
		errs = append(errs, field.Required(begin, "must be present and consistent with the issued certificate"))
	}
	if s.NotAfter == nil {
		errs = append(errs, field.Required(end, "must be present and consistent with the issued certificate"))
	}
	if s.BeginRefreshAt == nil {
		errs = append(errs, field.Required(refresh, "must be present and in the range [notbefore+10min, notafter-10min]"))
	}
	if len(errs) > 0 {
		return errs
	}
	lifetime := leaf.NotAfter.Sub(leaf.NotBefore)
	most := time.Duration(*obj.Spec.MaxExpirationSeconds) * time.Second
	switch {
	case !s.NotBefore.Time.Equal(leaf.NotBefore):
		return field.ErrorList{field.Invalid(begin, s.NotBefore.Time, "must be set to the NotBefore time encoded in the leaf certificate")}
	case time.Since(s.NotBefore.Time).Abs() >= startSkew:
		return field.ErrorList{field.Invalid(begin, s.NotBefore.Time, "must be set to within 5 minutes of kube-apiserver's current time")}
	case !s.NotAfter.Time.Equal(leaf.NotAfter):
		return field.ErrorList{field.Invalid(end, s.NotAfter.Time, "must be set to the NotAfter time encoded in the leaf certificate")}
	case lifetime < minIssued:
		return field.ErrorList{field.Invalid(path.Child("certificateChain"), lifetime, "leaf certificate lifetime must be >= 1 hour")}
	case lifetime > most:
		return field.ErrorList{field.Invalid(path.Child("certificateChain"), lifetime, fmt.Sprintf("leaf certificate lifetime must be <= spec.maxExpirationSeconds (%v)", *obj.Spec.MaxExpirationSeconds))}
	case s.BeginRefreshAt.Time.Before(s.NotBefore.Add(refreshMargin)):
		return field.ErrorList{field.Invalid(refresh, s.BeginRefreshAt.Time, "must be at least 10 minutes after status.notBefore")}
	case s.BeginRefreshAt.After(s.NotAfter.Add(-refreshMargin)):
		return field.ErrorList{field.Invalid(refresh, s.BeginRefreshAt.Time, "must be at least 10 minutes before status.notAfter")}
	}
	return nil
}
