package core

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// Secrets hold confidential bytes.
func Secrets() *registry.Resource {
	return registry.Define(registry.Definition[*corev1.Secret]{
		GroupVersion: v1, Resource: "secrets", Kind: "Secret", Singular: "secret",
		Namespaced: true,
		New:        func() *corev1.Secret { return &corev1.Secret{} },
		NewList:    func() runtime.Object { return &corev1.SecretList{} },
		KeyPrefix:  "/registry/secrets",
		Fields:     func(obj *corev1.Secret) fields.Set { return fields.Set{"type": string(obj.Type)} },
		Strategy: registry.Behaviour[*corev1.Secret]{
			Default: defaultSecret,
			// A client that writes without a type means the type that is.
			PrepareForUpdate: func(_ context.Context, obj, old *corev1.Secret) {
				if obj.Type == "" {
					obj.Type = old.Type
				}
			},
			Validate:       func(_ context.Context, obj *corev1.Secret) field.ErrorList { return validateSecret(obj) },
			ValidateUpdate: validateSecretUpdate,
			Warnings:       warnOfSecret,
		},
		Columns: []metav1.TableColumnDefinition{
			table.Name(), table.String("Type", corev1.Secret{}.SwaggerDoc()["type"]),
			table.String("Data", corev1.Secret{}.SwaggerDoc()["data"]), table.Age(),
		},
		Row: func(obj *corev1.Secret) []any {
			return []any{obj.Name, string(obj.Type), int64(len(obj.Data)), table.Since(obj.CreationTimestamp)}
		},
	})
}

// defaultSecret also moves stringData, which is never stored, into data.
func defaultSecret(obj *corev1.Secret) {
	if obj.Type == "" {
		obj.Type = corev1.SecretTypeOpaque
	}
	if len(obj.StringData) > 0 {
		if obj.Data == nil {
			obj.Data = map[string][]byte{}
		}
		for key, value := range obj.StringData {
			obj.Data[key] = []byte(value)
		}
		obj.StringData = nil
	}
}
