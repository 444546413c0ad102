package core

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// ServiceAccounts are the identities of pods. token answers the token
// subresource; nil leaves it out.
func ServiceAccounts(token *registry.Create) *registry.Resource {
	r := registry.Define(registry.Definition[*corev1.ServiceAccount]{
		GroupVersion: v1, Resource: "serviceaccounts", Kind: "ServiceAccount", Singular: "serviceaccount", ShortNames: []string{"sa"},
		ReturnDeleted: true,
		Namespaced:    true,
		New:           func() *corev1.ServiceAccount { return &corev1.ServiceAccount{} },
		NewList:       func() runtime.Object { return &corev1.ServiceAccountList{} },
		KeyPrefix:     "/registry/serviceaccounts",
		Strategy: registry.Behaviour[*corev1.ServiceAccount]{
			PrepareForCreate: func(_ context.Context, obj *corev1.ServiceAccount) { dropSecretDetails(obj) },
			PrepareForUpdate: func(_ context.Context, obj, _ *corev1.ServiceAccount) { dropSecretDetails(obj) },
			ValidateName:     apivalidation.ValidateServiceAccountName,
			Warnings:         warnOfServiceAccount,
		},
		Columns: []metav1.TableColumnDefinition{
			table.Name(), table.String("Secrets", corev1.ServiceAccount{}.SwaggerDoc()["secrets"]), table.Age(),
		},
		Row: func(obj *corev1.ServiceAccount) []any {
			return []any{obj.Name, int64(len(obj.Secrets)), table.Since(obj.CreationTimestamp)}
		},
	})
	if token != nil {
		r.Subresources = append(r.Subresources, registry.Subresource{
			Name: "token", Verbs: []string{"create"}, Create: token,
			Kind: runtimeKind("authentication.k8s.io", "v1", "TokenRequest"),
		})
	}
	return r
}

// dropSecretDetails keeps the names of referenced secrets only.
func dropSecretDetails(obj *corev1.ServiceAccount) {
	for i := range obj.Secrets {
		obj.Secrets[i] = corev1.ObjectReference{Name: obj.Secrets[i].Name}
	}
}

const enforceMountableSecrets = "kubernetes.io/enforce-mountable-secrets"

func warnOfServiceAccount(_ context.Context, obj, old *corev1.ServiceAccount) []string {
	_, set := obj.Annotations[enforceMountableSecrets]
	if old != nil {
		if _, before := old.Annotations[enforceMountableSecrets]; before {
			set = false
		}
	}
	if !set {
		return nil
	}
	return []string{`metadata.annotations[kubernetes.io/enforce-mountable-secrets]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets`}
}
