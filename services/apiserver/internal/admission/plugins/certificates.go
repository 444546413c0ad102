package plugins

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/apiserver/internal/authz"
)

// signerRight asks for a verb on a signer: to approve, sign or attest for it.
type signerRight struct {
	plugin
	authorizer authz.Authorizer
	verb       string
	// signer names the signer that a write needs the right for; "" is none.
	signer func(a *admission.Attributes) string
}

// newCertificateApproval lets only those approve or deny a request who may approve
// for its signer.
func newCertificateApproval(config Config) admission.Plugin {
	return &signerRight{
		plugin{"CertificateApproval", []admission.Operation{admission.Update}}, config.Authorizer, "approve",
		func(a *admission.Attributes) string {
			old, ok := a.OldObject.(*certificatesv1.CertificateSigningRequest)
			if !ok || a.Subresource != "approval" {
				return ""
			}
			return old.Spec.SignerName
		},
	}
}

// newCertificateSigning lets only those issue a certificate who may sign for the
// signer.
func newCertificateSigning(config Config) admission.Plugin {
	return &signerRight{
		plugin{"CertificateSigning", []admission.Operation{admission.Update}}, config.Authorizer, "sign",
		func(a *admission.Attributes) string {
			old, ok := a.OldObject.(*certificatesv1.CertificateSigningRequest)
			request, had := a.Object.(*certificatesv1.CertificateSigningRequest)
			if !ok || !had || a.Subresource != "status" {
				return ""
			}
			if bytes.Equal(request.Status.Certificate, old.Status.Certificate) && !failedNow(request, old) {
				return ""
			}
			return old.Spec.SignerName
		},
	}
}

// failedNow says whether an update says that signing failed.
func failedNow(request, old *certificatesv1.CertificateSigningRequest) bool {
	failed := func(r *certificatesv1.CertificateSigningRequest) bool {
		return slices.ContainsFunc(r.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
			return c.Type == certificatesv1.CertificateFailed
		})
	}
	return failed(request) && !failed(old)
}

// newClusterTrustBundleAttest lets only those publish a signer's bundle who may
// attest for the signer.
func newClusterTrustBundleAttest(config Config) admission.Plugin {
	return &signerRight{
		plugin{"ClusterTrustBundleAttest", []admission.Operation{admission.Create, admission.Update}}, config.Authorizer, "attest",
		func(a *admission.Attributes) string {
			bundle, ok := a.Object.(*certificatesv1.ClusterTrustBundle)
			if !ok {
				return ""
			}
			return bundle.Spec.SignerName
		},
	}
}

// Validate implements admission.Validator. A right on all signers of a domain is
// one on "domain/*".
func (p *signerRight) Validate(ctx context.Context, a *admission.Attributes) error {
	signer := p.signer(a)
	if signer == "" || a.User == nil { // the server itself
		return nil
	}
	domain, _, _ := strings.Cut(signer, "/")
	for _, name := range []string{signer, domain + "/*"} {
		decision, _, err := p.authorizer.Authorize(ctx, authz.Attributes{
			User: a.User, ResourceRequest: true, Verb: p.verb, APIGroup: certificatesv1.GroupName, APIVersion: "*", Resource: "signers", Name: name,
		})
		if err == nil && decision == authz.Allow {
			return nil
		}
	}
	return fmt.Errorf("user not permitted to %s requests with signerName %q", p.verb, signer)
}

// subjectRestriction refuses requests for client certificates of system:masters,
// which could never be revoked.
type subjectRestriction struct{ plugin }

func newCertificateSubjectRestriction(Config) admission.Plugin {
	return &subjectRestriction{plugin{"CertificateSubjectRestriction", []admission.Operation{admission.Create}}}
}

// Validate implements admission.Validator.
func (p *subjectRestriction) Validate(_ context.Context, a *admission.Attributes) error {
	request, ok := a.Object.(*certificatesv1.CertificateSigningRequest)
	if !ok || a.Subresource != "" || request.Spec.SignerName != certificatesv1.KubeAPIServerClientSignerName {
		return nil
	}
	block, _ := pem.Decode(request.Spec.Request)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return errors.New("failed to parse CSR: PEM block type must be CERTIFICATE REQUEST")
	}
	parsed, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return fmt.Errorf("failed to parse CSR: %v", err) //nolint:errorlint // nothing to unwrap for
	}
	if slices.Contains(parsed.Subject.Organization, authn.MastersGroup) {
		return fmt.Errorf("use of %s signer with %s group is not allowed", certificatesv1.KubeAPIServerClientSignerName, authn.MastersGroup)
	}
	return nil
}
