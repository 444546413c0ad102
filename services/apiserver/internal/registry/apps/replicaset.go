package apps

import (
	"context"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// ReplicaSets keep a number of equal pods.
func ReplicaSets() *registry.Resource {
	doc, statusDoc := appsv1.ReplicaSetSpec{}.SwaggerDoc(), appsv1.ReplicaSetStatus{}.SwaggerDoc()
	status := replicaSetBehaviour()
	status.PrepareForUpdate = func(_ context.Context, obj, old *appsv1.ReplicaSet) { obj.Spec = old.Spec }
	status.ValidateUpdate = validateReplicaSetStatus
	status.ResetFields = []string{"spec"}
	status.SpecOf, status.Warnings = nil, nil
	return registry.Define(registry.Definition[*appsv1.ReplicaSet]{
		GroupVersion: v1, Resource: "replicasets", Kind: "ReplicaSet", Singular: "replicaset", ShortNames: []string{"rs"},
		Categories: []string{"all"}, Namespaced: true,
		New:       func() *appsv1.ReplicaSet { return &appsv1.ReplicaSet{} },
		NewList:   func() runtime.Object { return &appsv1.ReplicaSetList{} },
		KeyPrefix: "/registry/replicasets",
		Fields: func(obj *appsv1.ReplicaSet) fields.Set {
			return fields.Set{"status.replicas": strconv.Itoa(int(obj.Status.Replicas))}
		},
		Strategy: replicaSetBehaviour(),
		Columns: append([]metav1.TableColumnDefinition{
			table.Name(),
			table.Integer("Desired", doc["replicas"]),
			table.Integer("Current", statusDoc["replicas"]),
			table.Integer("Ready", statusDoc["readyReplicas"]),
			table.Age(),
		}, workloadColumns(doc["selector"])...),
		Row: func(obj *appsv1.ReplicaSet) []any {
			return append([]any{
				obj.Name, int64(table.Value(obj.Spec.Replicas)), int64(obj.Status.Replicas), int64(obj.Status.ReadyReplicas),
				table.Since(obj.CreationTimestamp),
			}, workloadCells(&obj.Spec.Template, obj.Spec.Selector)...)
		},
		Subresources: []registry.Subresource{
			{Name: "scale", Verbs: readWrite(), Scale: scaleOf(
				func(r *appsv1.ReplicaSet) (*int32, int32) { return r.Spec.Replicas, r.Status.Replicas },
				func(r *appsv1.ReplicaSet) *metav1.LabelSelector { return r.Spec.Selector },
				func(r *appsv1.ReplicaSet, n int32) { r.Spec.Replicas = &n },
			)},
			{Name: "status", Verbs: readWrite(), Update: registry.Erase(status)},
		},
	})
}

func replicaSetBehaviour() registry.Behaviour[*appsv1.ReplicaSet] {
	return registry.Behaviour[*appsv1.ReplicaSet]{
		Default: func(obj *appsv1.ReplicaSet) {
			podspec.Default(&obj.Spec.Template.Spec)
			if obj.Spec.Replicas == nil {
				obj.Spec.Replicas = ptr.To(int32(1))
			}
		},
		PrepareForCreate: func(_ context.Context, obj *appsv1.ReplicaSet) {
			obj.Status = appsv1.ReplicaSetStatus{}
			podspec.DropDisabled(&obj.Spec.Template.Spec, nil)
		},
		PrepareForUpdate: func(_ context.Context, obj, old *appsv1.ReplicaSet) {
			obj.Status = old.Status
			podspec.DropDisabled(&obj.Spec.Template.Spec, &old.Spec.Template.Spec)
		},
		Warnings: func(_ context.Context, obj, old *appsv1.ReplicaSet) []string {
			if old == nil {
				return append(warnOfName(obj.Name), templateWarnings(&obj.Spec.Template, nil)...)
			}
			return templateWarnings(&obj.Spec.Template, &old.Spec.Template)
		},
		Validate: func(_ context.Context, obj *appsv1.ReplicaSet) field.ErrorList {
			return validateReplicaSet(obj)
		},
		ValidateUpdate: func(_ context.Context, obj, old *appsv1.ReplicaSet) field.ErrorList {
			return append(validateReplicaSet(obj),
				apivalidation.ValidateImmutableField(obj.Spec.Selector, old.Spec.Selector, field.NewPath("spec", "selector"))...)
		},
		SpecOf:      func(obj *appsv1.ReplicaSet) any { return &obj.Spec },
		ResetFields: []string{"status"},
	}
}

func validateReplicaSet(obj *appsv1.ReplicaSet) field.ErrorList {
	spec, path := &obj.Spec, field.NewPath("spec")
	errs := nonNegative(table.Value(spec.Replicas), path.Child("replicas"))
	errs = append(errs, nonNegative(spec.MinReadySeconds, path.Child("minReadySeconds"))...)
	errs = append(errs, validateSelector(spec.Selector, &spec.Template, path, "empty selector is invalid for deployment")...)
	return append(errs, validateAlwaysTemplate(&spec.Template, "ReplicaSet", path.Child("template"))...)
}

func validateReplicaSetStatus(_ context.Context, obj, _ *appsv1.ReplicaSet) field.ErrorList {
	s, path := &obj.Status, field.NewPath("status")
	errs := replicaCounts(path, s.Replicas,
		count{"fullyLabeledReplicas", s.FullyLabeledReplicas, ""},
		count{"readyReplicas", s.ReadyReplicas, ""},
		count{"availableReplicas", s.AvailableReplicas, ""})
	if s.AvailableReplicas > s.ReadyReplicas {
		errs = append(errs, field.Invalid(path.Child("availableReplicas"), s.AvailableReplicas, "cannot be greater than readyReplicas"))
	}
	if s.TerminatingReplicas != nil {
		errs = append(errs, nonNegative(*s.TerminatingReplicas, path.Child("terminatingReplicas"))...)
	}
	return errs
}
