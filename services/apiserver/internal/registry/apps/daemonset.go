package apps

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// DaemonSets keep a pod on each node.
func DaemonSets() *registry.Resource {
	doc := appsv1.DaemonSetStatus{}.SwaggerDoc()
	status := daemonSetBehaviour()
	status.PrepareForUpdate = func(_ context.Context, obj, old *appsv1.DaemonSet) { obj.Spec = old.Spec }
	status.ValidateUpdate = validateDaemonSetStatus
	status.ResetFields = []string{"spec"}
	status.SpecOf, status.Warnings = nil, nil
	return registry.Define(registry.Definition[*appsv1.DaemonSet]{
		GroupVersion: v1, Resource: "daemonsets", Kind: "DaemonSet", Singular: "daemonset", ShortNames: []string{"ds"},
		Categories: []string{"all"}, Namespaced: true,
		New:       func() *appsv1.DaemonSet { return &appsv1.DaemonSet{} },
		NewList:   func() runtime.Object { return &appsv1.DaemonSetList{} },
		KeyPrefix: "/registry/daemonsets",
		Strategy:  daemonSetBehaviour(),
		Columns: append([]metav1.TableColumnDefinition{
			table.Name(),
			table.Integer("Desired", doc["desiredNumberScheduled"]),
			table.Integer("Current", doc["currentNumberScheduled"]),
			table.Integer("Ready", doc["numberReady"]),
			table.Integer("Up-to-date", doc["updatedNumberScheduled"]),
			table.Integer("Available", doc["numberAvailable"]),
			table.String("Node Selector", podspecDoc("nodeSelector")),
			table.Age(),
		}, workloadColumns(appsv1.DaemonSetSpec{}.SwaggerDoc()["selector"])...),
		Row: func(obj *appsv1.DaemonSet) []any {
			s := &obj.Status
			return append([]any{
				obj.Name, int64(s.DesiredNumberScheduled), int64(s.CurrentNumberScheduled), int64(s.NumberReady), int64(s.UpdatedNumberScheduled),
				int64(s.NumberAvailable), table.Labels(obj.Spec.Template.Spec.NodeSelector), table.Since(obj.CreationTimestamp),
			}, workloadCells(&obj.Spec.Template, obj.Spec.Selector)...)
		},
		Subresources: []registry.Subresource{
			{Name: "status", Verbs: readWrite(), Update: registry.Erase(status)},
		},
	})
}

func daemonSetBehaviour() registry.Behaviour[*appsv1.DaemonSet] {
	return registry.Behaviour[*appsv1.DaemonSet]{
		Default: defaultDaemonSet,
		PrepareForCreate: func(_ context.Context, obj *appsv1.DaemonSet) {
			obj.Status = appsv1.DaemonSetStatus{}
			podspec.DropDisabled(&obj.Spec.Template.Spec, nil)
		},
		PrepareForUpdate: func(_ context.Context, obj, old *appsv1.DaemonSet) {
			obj.Status = old.Status
			podspec.DropDisabled(&obj.Spec.Template.Spec, &old.Spec.Template.Spec)
		},
		Validate: func(_ context.Context, obj *appsv1.DaemonSet) field.ErrorList { return validateDaemonSet(obj) },
		ValidateUpdate: func(_ context.Context, obj, old *appsv1.DaemonSet) field.ErrorList {
			return append(validateDaemonSet(obj),
				apivalidation.ValidateImmutableField(obj.Spec.Selector, old.Spec.Selector, field.NewPath("spec", "selector"))...)
		},
		Warnings: func(_ context.Context, obj, old *appsv1.DaemonSet) []string {
			if old == nil {
				return templateWarnings(&obj.Spec.Template, nil)
			}
			return templateWarnings(&obj.Spec.Template, &old.Spec.Template)
		},
		SpecOf:      func(obj *appsv1.DaemonSet) any { return &obj.Spec },
		ResetFields: []string{"status"},
	}
}

func defaultDaemonSet(obj *appsv1.DaemonSet) {
	spec := &obj.Spec
	podspec.Default(&spec.Template.Spec)
	if spec.UpdateStrategy.Type == "" {
		spec.UpdateStrategy.Type = appsv1.RollingUpdateDaemonSetStrategyType
	}
	if spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		if spec.UpdateStrategy.RollingUpdate == nil {
			spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{}
		}
		if spec.UpdateStrategy.RollingUpdate.MaxUnavailable == nil {
			spec.UpdateStrategy.RollingUpdate.MaxUnavailable = ptr.To(intstr.FromInt32(1))
		}
		if spec.UpdateStrategy.RollingUpdate.MaxSurge == nil {
			spec.UpdateStrategy.RollingUpdate.MaxSurge = ptr.To(intstr.FromInt32(0))
		}
	}
	if spec.RevisionHistoryLimit == nil {
		spec.RevisionHistoryLimit = ptr.To(int32(10))
	}
}

func validateDaemonSet(obj *appsv1.DaemonSet) field.ErrorList {
	spec, path := &obj.Spec, field.NewPath("spec")
	errs := validateSelector(spec.Selector, &spec.Template, path, "empty selector is invalid for daemonset")
	errs = append(errs, validateAlwaysTemplate(&spec.Template, "DaemonSet", path.Child("template"))...)
	errs = append(errs, nonNegative(spec.MinReadySeconds, path.Child("minReadySeconds"))...)
	errs = append(errs, validateDaemonSetStrategy(&spec.UpdateStrategy, path.Child("updateStrategy"))...)
	if spec.RevisionHistoryLimit != nil {
		errs = append(errs, nonNegative(*spec.RevisionHistoryLimit, path.Child("revisionHistoryLimit"))...)
	}
	return errs
}

func validateDaemonSetStrategy(strategy *appsv1.DaemonSetUpdateStrategy, path *field.Path) field.ErrorList {
	switch strategy.Type {
	case appsv1.OnDeleteDaemonSetStrategyType:
		return nil
	case appsv1.RollingUpdateDaemonSetStrategyType:
		rolling, at := strategy.RollingUpdate, path.Child("rollingUpdate")
		if rolling == nil {
			return field.ErrorList{field.Required(at, "")}
		}
		u, s := orZero(rolling.MaxUnavailable), orZero(rolling.MaxSurge)
		errs := validateIntOrPercent(u, at.Child("maxUnavailable"))
		errs = append(errs, atMostAll(u, at.Child("maxUnavailable"))...)
		errs = append(errs, validateIntOrPercent(s, at.Child("maxSurge"))...)
		errs = append(errs, atMostAll(s, at.Child("maxSurge"))...)
		switch {
		case isZero(u) && isZero(s):
			errs = append(errs, field.Invalid(at.Child("maxUnavailable"), u, "cannot be 0 when maxSurge is 0"))
		case !isZero(u) && !isZero(s):
			errs = append(errs, field.Invalid(at.Child("maxSurge"), s, "may not be set when maxUnavailable is non-zero"))
		}
		return errs
	default:
		return field.ErrorList{field.NotSupported(path, strategy.Type, []appsv1.DaemonSetUpdateStrategyType{
			appsv1.RollingUpdateDaemonSetStrategyType, appsv1.OnDeleteDaemonSetStrategyType,
		})}
	}
}

func validateDaemonSetStatus(_ context.Context, obj, old *appsv1.DaemonSet) field.ErrorList {
	s, path := &obj.Status, field.NewPath("status")
	var errs field.ErrorList
	for _, c := range []count{
		{"currentNumberScheduled", s.CurrentNumberScheduled, ""}, {"numberMisscheduled", s.NumberMisscheduled, ""},
		{"desiredNumberScheduled", s.DesiredNumberScheduled, ""}, {"numberReady", s.NumberReady, ""},
		{"updatedNumberScheduled", s.UpdatedNumberScheduled, ""}, {"numberAvailable", s.NumberAvailable, ""},
		{"numberUnavailable", s.NumberUnavailable, ""},
	} {
		errs = append(errs, nonNegative(c.value, path.Child(c.name))...)
	}
	errs = append(errs, apivalidation.ValidateNonnegativeField(s.ObservedGeneration, path.Child("observedGeneration"))...)
	return append(errs, validateCollisions(s.CollisionCount, old.Status.CollisionCount, path.Child("collisionCount"))...)
}
