// Package certificates has the kinds of certificates.k8s.io.
package certificates

import (
	"context"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
)

// CertificateSigningRequests ask a signer for a certificate. What identity asks
// is recorded by the server.
func CertificateSigningRequests() *registry.Resource {
	doc := certificatesv1.CertificateSigningRequestSpec{}.SwaggerDoc()
	return registry.Define(registry.Definition[*certificatesv1.CertificateSigningRequest]{
		GroupVersion: certificatesv1.SchemeGroupVersion, Resource: "certificatesigningrequests", Kind: "CertificateSigningRequest", Singular: "certificatesigningrequest",
		ShortNames: []string{"csr"},
		New:        func() *certificatesv1.CertificateSigningRequest { return &certificatesv1.CertificateSigningRequest{} },
		NewList:    func() runtime.Object { return &certificatesv1.CertificateSigningRequestList{} },
		KeyPrefix:  "/registry/certificatesigningrequests",
		Fields: func(obj *certificatesv1.CertificateSigningRequest) fields.Set {
			return fields.Set{"spec.signerName": obj.Spec.SignerName}
		},
		Strategy: behaviour(),
		Columns: []metav1.TableColumnDefinition{
			table.Name(), table.Age(),
			table.String("SignerName", doc["signerName"]),
			table.String("Requestor", doc["request"]),
			table.String("RequestedDuration", doc["expirationSeconds"]),
			table.String("Condition", certificatesv1.CertificateSigningRequestStatus{}.SwaggerDoc()["conditions"]),
		},
		Row: row,
		Subresources: []registry.Subresource{
			{Name: "approval", Verbs: []string{"get", "patch", "update"}, Update: registry.Erase(approvalBehaviour())},
			{Name: "status", Verbs: []string{"get", "patch", "update"}, Update: registry.Erase(statusBehaviour())},
		},
	})
}

func row(obj *certificatesv1.CertificateSigningRequest) []any {
	lifetime := table.None
	if s := obj.Spec.ExpirationSeconds; s != nil {
		lifetime = duration.HumanDuration(time.Duration(*s) * time.Second)
	}
	return []any{
		obj.Name, table.Since(obj.CreationTimestamp), table.OrNone(obj.Spec.SignerName), obj.Spec.Username, lifetime, condition(obj),
	}
}

func condition(obj *certificatesv1.CertificateSigningRequest) string {
	has := map[certificatesv1.RequestConditionType]bool{}
	for _, c := range obj.Status.Conditions {
		has[c.Type] = true
	}
	text := "Pending"
	switch {
	case has[certificatesv1.CertificateDenied]:
		text = "Denied"
	case has[certificatesv1.CertificateApproved]:
		text = "Approved"
	}
	if has[certificatesv1.CertificateFailed] {
		text += ",Failed"
	}
	if len(obj.Status.Certificate) > 0 {
		text += ",Issued"
	}
	return text
}

type csr = certificatesv1.CertificateSigningRequest

func behaviour() registry.Behaviour[*csr] {
	return registry.Behaviour[*csr]{
		PrepareForCreate: func(ctx context.Context, obj *csr) {
			obj.Status = certificatesv1.CertificateSigningRequestStatus{}
			recordRequestor(ctx, &obj.Spec)
		},
		PrepareForUpdate: func(_ context.Context, obj, old *csr) { obj.Spec, obj.Status = old.Spec, old.Status },
		Validate:         func(_ context.Context, obj *csr) field.ErrorList { return validateSpec(obj) },
		ResetFields:      []string{"spec", "status"},
	}
}

// recordRequestor writes who asks into the spec, whatever the client wrote.
func recordRequestor(ctx context.Context, spec *certificatesv1.CertificateSigningRequestSpec) {
	spec.Username, spec.UID, spec.Groups, spec.Extra = "", "", nil, nil
	user := request.UserFrom(ctx)
	if user == nil {
		return
	}
	spec.Username, spec.UID, spec.Groups = user.Name, user.UID, user.Groups
	if len(user.Extra) > 0 {
		spec.Extra = map[string]certificatesv1.ExtraValue{}
		for key, values := range user.Extra {
			spec.Extra[key] = values
		}
	}
}

// statusBehaviour lets a signer write the certificate or a failure, but no
// decision.
func statusBehaviour() registry.Behaviour[*csr] {
	return registry.Behaviour[*csr]{
		PrepareForUpdate: func(_ context.Context, obj, old *csr) {
			obj.Spec = old.Spec
			stampConditions(obj, old)
		},
		ValidateUpdate: func(_ context.Context, obj, old *csr) field.ErrorList { return validateStatus(obj, old, false) },
		ResetFields:    []string{"spec"},
	}
}

// approvalBehaviour lets an approver decide, and touch nothing else.
func approvalBehaviour() registry.Behaviour[*csr] {
	return registry.Behaviour[*csr]{
		PrepareForUpdate: func(_ context.Context, obj, old *csr) {
			obj.Spec = old.Spec
			obj.Status.Certificate = old.Status.Certificate
			stampConditions(obj, old)
		},
		ValidateUpdate: func(_ context.Context, obj, old *csr) field.ErrorList { return validateStatus(obj, old, true) },
		ResetFields:    []string{"spec", "status.certificate"},
	}
}

// stampConditions sets the times of conditions that are new or changed.
func stampConditions(obj, old *csr) {
	now := metav1.Now()
	for i := range obj.Status.Conditions {
		c := &obj.Status.Conditions[i]
		if c.LastUpdateTime.IsZero() {
			c.LastUpdateTime = now
		}
		if !c.LastTransitionTime.IsZero() {
			continue
		}
		c.LastTransitionTime = now
		for _, was := range old.Status.Conditions {
			if was.Type == c.Type && was.Status == c.Status && !was.LastTransitionTime.IsZero() {
				c.LastTransitionTime = was.LastTransitionTime
			}
		}
	}
}
