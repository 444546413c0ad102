package apps

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// Deployments replace a set of pods by a newer one step by step.
func Deployments() *registry.Resource {
	status := deploymentBehaviour()
	status.PrepareForUpdate = func(_ context.Context, obj, old *appsv1.Deployment) {
		obj.Spec, obj.Labels = old.Spec, old.Labels
	}
	status.ValidateUpdate = validateDeploymentStatus
	status.ResetFields = []string{"spec", "metadata.labels"}
	status.SpecOf, status.Warnings = nil, nil
	return registry.Define(registry.Definition[*appsv1.Deployment]{
		GroupVersion: v1, Resource: "deployments", Kind: "Deployment", Singular: "deployment", ShortNames: []string{"deploy"},
		Categories: []string{"all"}, Namespaced: true,
		New:       func() *appsv1.Deployment { return &appsv1.Deployment{} },
		NewList:   func() runtime.Object { return &appsv1.DeploymentList{} },
		KeyPrefix: "/registry/deployments",
		Strategy:  deploymentBehaviour(),
		Columns: append([]metav1.TableColumnDefinition{
			table.Name(),
			table.String("Ready", "Number of the pod with ready state"),
			table.String("Up-to-date", appsv1.DeploymentStatus{}.SwaggerDoc()["updatedReplicas"]),
			table.String("Available", appsv1.DeploymentStatus{}.SwaggerDoc()["availableReplicas"]),
			table.Age(),
		}, workloadColumns(appsv1.DeploymentSpec{}.SwaggerDoc()["selector"])...),
		Row: func(obj *appsv1.Deployment) []any {
			return append([]any{
				obj.Name, table.Fraction(obj.Status.ReadyReplicas, table.Value(obj.Spec.Replicas)),
				int64(obj.Status.UpdatedReplicas), int64(obj.Status.AvailableReplicas), table.Since(obj.CreationTimestamp),
			}, workloadCells(&obj.Spec.Template, obj.Spec.Selector)...)
		},
		Subresources: []registry.Subresource{
			{Name: "scale", Verbs: readWrite(), Scale: scaleOf(
				func(d *appsv1.Deployment) (*int32, int32) { return d.Spec.Replicas, d.Status.Replicas },
				func(d *appsv1.Deployment) *metav1.LabelSelector { return d.Spec.Selector },
				func(d *appsv1.Deployment, n int32) { d.Spec.Replicas = &n },
			)},
			{Name: "status", Verbs: readWrite(), Update: registry.Erase(status)},
		},
	})
}

func deploymentBehaviour() registry.Behaviour[*appsv1.Deployment] {
	return registry.Behaviour[*appsv1.Deployment]{
		Default: defaultDeployment,
		PrepareForCreate: func(_ context.Context, obj *appsv1.Deployment) {
			obj.Status = appsv1.DeploymentStatus{}
			podspec.DropDisabled(&obj.Spec.Template.Spec, nil)
		},
		PrepareForUpdate: func(_ context.Context, obj, old *appsv1.Deployment) {
			obj.Status = old.Status
			podspec.DropDisabled(&obj.Spec.Template.Spec, &old.Spec.Template.Spec)
		},
		Warnings: func(_ context.Context, obj, old *appsv1.Deployment) []string {
			if old == nil {
				return append(warnOfName(obj.Name), templateWarnings(&obj.Spec.Template, nil)...)
			}
			return templateWarnings(&obj.Spec.Template, &old.Spec.Template)
		},
		Validate: func(_ context.Context, obj *appsv1.Deployment) field.ErrorList {
			return validateDeployment(obj)
		},
		ValidateUpdate: validateDeploymentUpdate,
		// Annotations count as well: the rollback machinery of old lived in them.
		SpecOf:      func(obj *appsv1.Deployment) any { return []any{&obj.Spec, obj.Annotations} },
		ResetFields: []string{"status"},
	}
}

func defaultDeployment(obj *appsv1.Deployment) {
	spec := &obj.Spec
	podspec.Default(&spec.Template.Spec)
	if spec.Replicas == nil {
		spec.Replicas = ptr.To(int32(1))
	}
	if spec.Strategy.Type == "" {
		spec.Strategy.Type = appsv1.RollingUpdateDeploymentStrategyType
	}
	if spec.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType {
		if spec.Strategy.RollingUpdate == nil {
			spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{}
		}
		quarter := intstr.FromString("25%")
		if spec.Strategy.RollingUpdate.MaxUnavailable == nil {
			spec.Strategy.RollingUpdate.MaxUnavailable = ptr.To(quarter)
		}
		if spec.Strategy.RollingUpdate.MaxSurge == nil {
			spec.Strategy.RollingUpdate.MaxSurge = ptr.To(quarter)
		}
	}
	if spec.RevisionHistoryLimit == nil {
		spec.RevisionHistoryLimit = ptr.To(int32(10))
	}
	if spec.ProgressDeadlineSeconds == nil {
		spec.ProgressDeadlineSeconds = ptr.To(int32(600))
	}
}

func validateDeployment(obj *appsv1.Deployment) field.ErrorList {
	spec, path := &obj.Spec, field.NewPath("spec")
	errs := nonNegative(table.Value(spec.Replicas), path.Child("replicas"))
	errs = append(errs, validateSelector(spec.Selector, &spec.Template, path, "empty selector is invalid for deployment")...)
	errs = append(errs, validateAlwaysTemplate(&spec.Template, "ReplicaSet", path.Child("template"))...)
	errs = append(errs, validateDeploymentStrategy(&spec.Strategy, path.Child("strategy"))...)
	errs = append(errs, nonNegative(spec.MinReadySeconds, path.Child("minReadySeconds"))...)
	if spec.RevisionHistoryLimit != nil {
		errs = append(errs, nonNegative(*spec.RevisionHistoryLimit, path.Child("revisionHistoryLimit"))...)
	}
	if deadline := spec.ProgressDeadlineSeconds; deadline != nil {
		errs = append(errs, nonNegative(*deadline, path.Child("progressDeadlineSeconds"))...)
		if *deadline <= spec.MinReadySeconds {
			errs = append(errs, field.Invalid(path.Child("progressDeadlineSeconds"), *deadline, "must be greater than minReadySeconds"))
		}
	}
	return errs
}

func validateDeploymentStrategy(strategy *appsv1.DeploymentStrategy, path *field.Path) field.ErrorList {
	switch strategy.Type {
	case appsv1.RecreateDeploymentStrategyType:
		if strategy.RollingUpdate != nil {
			return field.ErrorList{field.Forbidden(path.Child("rollingUpdate"), "may not be specified when strategy `type` is '"+string(strategy.Type)+"'")}
		}
	case appsv1.RollingUpdateDeploymentStrategyType:
		if strategy.RollingUpdate == nil {
			return field.ErrorList{field.Required(path.Child("rollingUpdate"), "this should be defaulted and never be nil")}
		}
		return validateRollingUpdate(strategy.RollingUpdate.MaxUnavailable, strategy.RollingUpdate.MaxSurge, path.Child("rollingUpdate"))
	default:
		return field.ErrorList{field.NotSupported(path, strategy.Type, []appsv1.DeploymentStrategyType{
			appsv1.RecreateDeploymentStrategyType, appsv1.RollingUpdateDeploymentStrategyType,
		})}
	}
	return nil
}

func validateDeploymentUpdate(_ context.Context, obj, old *appsv1.Deployment) field.ErrorList {
	errs := validateDeployment(obj)
	if !apiequality.Semantic.DeepEqual(obj.Spec.Selector, old.Spec.Selector) {
		errs = append(errs, field.Invalid(field.NewPath("spec", "selector"), obj.Spec.Selector, "field is immutable"))
	}
	return errs
}

func validateDeploymentStatus(_ context.Context, obj, old *appsv1.Deployment) field.ErrorList {
	s, path := &obj.Status, field.NewPath("status")
	errs := replicaCounts(path, s.Replicas,
		count{"updatedReplicas", s.UpdatedReplicas, ""},
		count{"readyReplicas", s.ReadyReplicas, ""},
		count{"availableReplicas", s.AvailableReplicas, ""},
		count{"unavailableReplicas", s.UnavailableReplicas, "free"})
	if s.AvailableReplicas > s.ReadyReplicas {
		errs = append(errs, field.Invalid(path.Child("availableReplicas"), s.AvailableReplicas, "cannot be greater than readyReplicas"))
	}
	if s.ObservedGeneration < 0 {
		errs = append(errs, field.Invalid(path.Child("observedGeneration"), s.ObservedGeneration, "must be greater than or equal to 0"))
	}
	if s.TerminatingReplicas != nil {
		errs = append(errs, nonNegative(*s.TerminatingReplicas, path.Child("terminatingReplicas"))...)
	}
	return append(errs, validateCollisions(s.CollisionCount, old.Status.CollisionCount, path.Child("collisionCount"))...)
}
