package core

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// maxPayload bounds the values of a config map or secret together, in bytes.
const maxPayload = corev1.MaxSecretSize

// ConfigMaps hold configuration as text and as bytes.
func ConfigMaps() *registry.Resource {
	return registry.Define(registry.Definition[*corev1.ConfigMap]{
		GroupVersion: v1, Resource: "configmaps", Kind: "ConfigMap", Singular: "configmap", ShortNames: []string{"cm"},
		Namespaced: true,
		New:        func() *corev1.ConfigMap { return &corev1.ConfigMap{} },
		NewList:    func() runtime.Object { return &corev1.ConfigMapList{} },
		KeyPrefix:  "/registry/configmaps",
		Strategy: registry.Behaviour[*corev1.ConfigMap]{
			Validate:       func(_ context.Context, obj *corev1.ConfigMap) field.ErrorList { return validateConfigMap(obj) },
			ValidateUpdate: validateConfigMapUpdate,
		},
		Columns: []metav1.TableColumnDefinition{
			table.Name(), table.String("Data", corev1.ConfigMap{}.SwaggerDoc()["data"]), table.Age(),
		},
		Row: func(obj *corev1.ConfigMap) []any {
			return []any{obj.Name, int64(len(obj.Data) + len(obj.BinaryData)), table.Since(obj.CreationTimestamp)}
		},
	})
}

func validateConfigMap(obj *corev1.ConfigMap) field.ErrorList {
	var errs field.ErrorList
	total := 0
	for _, key := range slices.Sorted(maps.Keys(obj.Data)) {
		path := field.NewPath("data").Key(key)
		for _, msg := range utilvalidation.IsConfigMapKey(key) {
			errs = append(errs, field.Invalid(path, key, msg))
		}
		if _, twice := obj.BinaryData[key]; twice {
			errs = append(errs, field.Invalid(path, key, "duplicate of key present in binaryData"))
		}
		total += len(obj.Data[key])
	}
	for _, key := range slices.Sorted(maps.Keys(obj.BinaryData)) {
		for _, msg := range utilvalidation.IsConfigMapKey(key) {
			errs = append(errs, field.Invalid(field.NewPath("binaryData").Key(key), key, msg))
		}
		total += len(obj.BinaryData[key])
	}
	if total > maxPayload {
		errs = append(errs, field.TooLong(field.NewPath(""), "" /* the values are not shown */, maxPayload))
	}
	return errs
}

func validateConfigMapUpdate(_ context.Context, obj, old *corev1.ConfigMap) field.ErrorList {
	var errs field.ErrorList
	if table.Value(old.Immutable) {
		const fixed = "field is immutable when `immutable` is set"
		if !table.Value(obj.Immutable) {
			errs = append(errs, field.Forbidden(field.NewPath("immutable"), fixed))
		}
		if !apiequality.Semantic.DeepEqual(obj.Data, old.Data) {
			errs = append(errs, field.Forbidden(field.NewPath("data"), fixed))
		}
		if !apiequality.Semantic.DeepEqual(obj.BinaryData, old.BinaryData) {
			errs = append(errs, field.Forbidden(field.NewPath("binaryData"), fixed))
		}
	}
	return append(errs, validateConfigMap(obj)...)
}
