package certificates

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
)

// minLifetime is the shortest lifetime that can be asked for, in seconds.
const minLifetime = 600

func usages() []certificatesv1.KeyUsage {
	return []certificatesv1.KeyUsage{
		certificatesv1.UsageSigning, certificatesv1.UsageDigitalSignature, certificatesv1.UsageContentCommitment, certificatesv1.UsageKeyEncipherment,
		certificatesv1.UsageKeyAgreement, certificatesv1.UsageDataEncipherment, certificatesv1.UsageCertSign, certificatesv1.UsageCRLSign,
		certificatesv1.UsageEncipherOnly, certificatesv1.UsageDecipherOnly, certificatesv1.UsageAny, certificatesv1.UsageServerAuth,
		certificatesv1.UsageClientAuth, certificatesv1.UsageCodeSigning, certificatesv1.UsageEmailProtection, certificatesv1.UsageSMIME,
		certificatesv1.UsageIPsecEndSystem, certificatesv1.UsageIPsecTunnel, certificatesv1.UsageIPsecUser, certificatesv1.UsageTimestamping,
		certificatesv1.UsageOCSPSigning, certificatesv1.UsageMicrosoftSGC, certificatesv1.UsageNetscapeSGC,
	}
}

func validateSpec(obj *csr) field.ErrorList {
	spec, path := &obj.Spec, field.NewPath("spec")
	var errs field.ErrorList
	if err := parseRequest(spec.Request); err != nil {
		errs = append(errs, field.Invalid(path.Child("request"), spec.Request, fmt.Sprintf("%v", err)))
	}
	if len(spec.Usages) == 0 {
		errs = append(errs, field.Required(path.Child("usages"), ""))
	}
	for i, usage := range spec.Usages {
		if !slices.Contains(usages(), usage) {
			errs = append(errs, field.NotSupported(path.Child("usages").Index(i), usage, usages()))
		}
		if slices.Contains(spec.Usages[:i], usage) {
			errs = append(errs, field.Duplicate(path.Child("usages").Index(i), usage))
		}
	}
	if spec.SignerName == "kubernetes.io/legacy-unknown" {
		errs = append(errs, field.Invalid(path.Child("signerName"), spec.SignerName, "the legacy signerName is not allowed via this API version"))
	} else {
		errs = append(errs, podspec.ValidateSignerName(spec.SignerName, path.Child("signerName"))...)
	}
	if s := spec.ExpirationSeconds; s != nil && *s < minLifetime {
		errs = append(errs, field.Invalid(path.Child("expirationSeconds"), *s, "may not specify a duration less than 600 seconds (10 minutes)"))
	}
	return errs
}

// parseRequest wants one PEM block with a request signed by the key in it.
func parseRequest(text []byte) error {
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	if len(rest) > 0 {
		if more, _ := pem.Decode(rest); more != nil {
			return errors.New("must contain exactly one PEM block")
		}
	}
	parsed, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return err
	}
	return parsed.CheckSignature()
}

// validateStatus checks a change of the status: decisions only where they are
// made, failures and certificates only by signers.
func validateStatus(obj, old *csr, approval bool) field.ErrorList {
	path := field.NewPath("status")
	errs := validateConditions(obj.Status.Conditions, path.Child("conditions"))
	for _, kind := range []certificatesv1.RequestConditionType{certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.CertificateFailed} {
		now, was := conditionsOf(obj, kind), conditionsOf(old, kind)
		decision := kind != certificatesv1.CertificateFailed
		switch {
		case len(now) < len(was):
			errs = append(errs, field.Forbidden(path.Child("conditions"), fmt.Sprintf("updates may not remove a condition of type %q", kind)))
		case len(now) > len(was) && decision && !approval:
			errs = append(errs, field.Forbidden(path.Child("conditions"), fmt.Sprintf("updates may not add a condition of type %q", kind)))
		case decision && len(was) > 0 && !sameDecision(now[0], was[0]):
			errs = append(errs, field.Forbidden(path.Child("conditions"), fmt.Sprintf("updates may not modify a condition of type %q", kind)))
		}
	}
	if len(obj.Status.Certificate) == 0 {
		return errs
	}
	at := path.Child("certificate")
	if len(old.Status.Certificate) > 0 && !slices.Equal(old.Status.Certificate, obj.Status.Certificate) {
		errs = append(errs, field.Forbidden(at, "updates may not modify existing certificate content"))
	}
	if len(old.Status.Certificate) == 0 {
		if err := parseCertificates(obj.Status.Certificate); err != nil {
			errs = append(errs, field.Invalid(at, "<certificate data>", err.Error()))
		}
	}
	return errs
}

func conditionsOf(obj *csr, kind certificatesv1.RequestConditionType) []certificatesv1.CertificateSigningRequestCondition {
	var out []certificatesv1.CertificateSigningRequestCondition
	for _, c := range obj.Status.Conditions {
		if c.Type == kind {
			out = append(out, c)
		}
	}
	return out
}

func sameDecision(a, b certificatesv1.CertificateSigningRequestCondition) bool {
	return apiequality.Semantic.DeepEqual(a, b)
}

func validateConditions(conditions []certificatesv1.CertificateSigningRequestCondition, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[certificatesv1.RequestConditionType]int{}
	for i, c := range conditions {
		at := path.Index(i)
		if c.Type == "" {
			errs = append(errs, field.Required(at.Child("type"), ""))
		} else if _, twice := seen[c.Type]; twice {
			errs = append(errs, field.Duplicate(at.Child("type"), c.Type))
		}
		seen[c.Type] = i
		known := c.Type == certificatesv1.CertificateApproved || c.Type == certificatesv1.CertificateDenied || c.Type == certificatesv1.CertificateFailed
		statuses := []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionTrue, corev1.ConditionUnknown}
		if known {
			statuses = []corev1.ConditionStatus{corev1.ConditionTrue}
		}
		switch {
		case c.Status == "":
			errs = append(errs, field.Required(at.Child("status"), ""))
		case !slices.Contains(statuses, c.Status):
			errs = append(errs, field.NotSupported(at.Child("status"), c.Status, statuses))
		}
	}
	if _, approved := seen[certificatesv1.CertificateApproved]; approved {
		if i, denied := seen[certificatesv1.CertificateDenied]; denied {
			errs = append(errs, field.Invalid(path.Index(i).Child("type"), certificatesv1.CertificateDenied, "Approved and Denied conditions are mutually exclusive"))
		}
	}
	return errs
}

func parseCertificates(text []byte) error {
	count := 0
	for {
		var block *pem.Block
		block, text = pem.Decode(text)
		if block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return fmt.Errorf("only CERTIFICATE PEM blocks are allowed, found %q", block.Type)
		}
		if len(block.Headers) > 0 {
			return errors.New("no PEM block headers are permitted")
		}
		if _, err := x509.ParseCertificates(block.Bytes); err != nil {
			return err
		}
		count++
	}
	if count == 0 {
		return errors.New("must contain at least one CERTIFICATE PEM block")
	}
	return nil
}
