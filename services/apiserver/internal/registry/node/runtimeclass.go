// Package node has the kinds of node.k8s.io.
package node

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// RuntimeClasses name ways to run containers.
func RuntimeClasses() *registry.Resource {
	return registry.Define(registry.Definition[*nodev1.RuntimeClass]{
		GroupVersion: nodev1.SchemeGroupVersion, Resource: "runtimeclasses", Kind: "RuntimeClass", Singular: "runtimeclass",
		New:       func() *nodev1.RuntimeClass { return &nodev1.RuntimeClass{} },
		NewList:   func() runtime.Object { return &nodev1.RuntimeClassList{} },
		KeyPrefix: "/registry/runtimeclasses",
		Strategy: registry.Behaviour[*nodev1.RuntimeClass]{
			Default: func(obj *nodev1.RuntimeClass) {
				if obj.Overhead != nil {
					podspec.RoundQuantities(obj.Overhead.PodFixed)
				}
			},
			Validate: func(_ context.Context, obj *nodev1.RuntimeClass) field.ErrorList { return validate(obj) },
			ValidateUpdate: func(_ context.Context, obj, old *nodev1.RuntimeClass) field.ErrorList {
				return append(validate(obj), apivalidation.ValidateImmutableField(obj.Handler, old.Handler, field.NewPath("handler"))...)
			},
		},
		Columns: []metav1.TableColumnDefinition{
			table.Name(), table.String("Handler", nodev1.RuntimeClass{}.SwaggerDoc()["handler"]), table.Age(),
		},
		Row: func(obj *nodev1.RuntimeClass) []any {
			return []any{obj.Name, obj.Handler, table.Since(obj.CreationTimestamp)}
		},
	})
}

func validate(obj *nodev1.RuntimeClass) field.ErrorList {
	var errs field.ErrorList
	for _, msg := range utilvalidation.IsDNS1123Label(obj.Handler) {
		errs = append(errs, field.Invalid(field.NewPath("handler"), obj.Handler, msg))
	}
	if o := obj.Overhead; o != nil {
		errs = append(errs, podspec.ValidateRequirements(&corev1.ResourceRequirements{Limits: o.PodFixed}, field.NewPath("overhead", "podFixed"))...)
	}
	s := obj.Scheduling
	if s == nil {
		return errs
	}
	path := field.NewPath("scheduling")
	errs = append(errs, metav1validation.ValidateLabels(s.NodeSelector, path.Child("nodeSelector"))...)
	errs = append(errs, podspec.ValidateTolerations(s.Tolerations, path.Child("tolerations"))...)
	for i, t := range s.Tolerations {
		for _, other := range s.Tolerations[:i] {
			if apiequality.Semantic.DeepEqual(t, other) {
				errs = append(errs, field.Duplicate(path.Child("tolerations").Index(i), t))
				break
			}
		}
	}
	return errs
}
