package apps

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

func validateStatefulSet(obj *appsv1.StatefulSet) field.ErrorList {
	spec, path := &obj.Spec, field.NewPath("spec")
	var errs field.ErrorList
	switch spec.PodManagementPolicy {
	case appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement:
	case "":
		errs = append(errs, field.Required(path.Child("podManagementPolicy"), ""))
	default:
		errs = append(errs, field.Invalid(path.Child("podManagementPolicy"), spec.PodManagementPolicy,
			fmt.Sprintf("must be '%s' or '%s'", appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement)))
	}
	errs = append(errs, validateStatefulSetStrategy(&spec.UpdateStrategy, path.Child("updateStrategy"))...)
	errs = append(errs, validateRetention(spec.PersistentVolumeClaimRetentionPolicy, path.Child("persistentVolumeClaimRetentionPolicy"))...)
	errs = append(errs, nonNegative(table.Value(spec.Replicas), path.Child("replicas"))...)
	errs = append(errs, nonNegative(spec.MinReadySeconds, path.Child("minReadySeconds"))...)
	if spec.Ordinals != nil {
		errs = append(errs, nonNegative(spec.Ordinals.Start, path.Child("ordinals.start"))...)
	}
	if spec.ServiceName != "" {
		for _, msg := range utilvalidation.IsDNS1123Subdomain(spec.ServiceName) {
			errs = append(errs, field.Invalid(path.Child("serviceName"), spec.ServiceName, msg))
		}
	}
	errs = append(errs, validateSelector(spec.Selector, &spec.Template, path, "empty selector is invalid for statefulset")...)
	errs = append(errs, validateAlwaysTemplate(&spec.Template, "StatefulSet", path.Child("template"))...)
	return errs // a negative revisionHistoryLimit is only warned of
}

func validateStatefulSetStrategy(strategy *appsv1.StatefulSetUpdateStrategy, path *field.Path) field.ErrorList {
	switch strategy.Type {
	case "":
		return field.ErrorList{field.Required(path, "")}
	case appsv1.OnDeleteStatefulSetStrategyType:
		if strategy.RollingUpdate != nil {
			return field.ErrorList{field.Invalid(path.Child("rollingUpdate"), strategy.RollingUpdate,
				fmt.Sprintf("only allowed for updateStrategy '%s'", appsv1.RollingUpdateStatefulSetStrategyType))}
		}
		return nil
	case appsv1.RollingUpdateStatefulSetStrategyType:
		if strategy.RollingUpdate == nil {
			return nil
		}
		at := path.Child("rollingUpdate")
		errs := nonNegative(table.Value(strategy.RollingUpdate.Partition), at.Child("partition"))
		if u := strategy.RollingUpdate.MaxUnavailable; u != nil {
			errs = append(errs, validateIntOrPercent(*u, at.Child("maxUnavailable"))...)
			if isZero(*u) {
				errs = append(errs, field.Invalid(at.Child("maxUnavailable"), *u, "cannot be 0"))
			}
			errs = append(errs, atMostAll(*u, at.Child("maxUnavailable"))...)
		}
		return errs
	default:
		return field.ErrorList{field.Invalid(path, *strategy, fmt.Sprintf("must be '%s' or '%s'", appsv1.RollingUpdateStatefulSetStrategyType, appsv1.OnDeleteStatefulSetStrategyType))}
	}
}

func validateRetention(p *appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy, path *field.Path) field.ErrorList {
	if p == nil {
		return nil
	}
	var errs field.ErrorList
	supported := []appsv1.PersistentVolumeClaimRetentionPolicyType{
		appsv1.RetainPersistentVolumeClaimRetentionPolicyType, appsv1.DeletePersistentVolumeClaimRetentionPolicyType,
	}
	for _, f := range []struct {
		name  string
		value appsv1.PersistentVolumeClaimRetentionPolicyType
	}{{"whenDeleted", p.WhenDeleted}, {"whenScaled", p.WhenScaled}} {
		if f.value != supported[0] && f.value != supported[1] {
			errs = append(errs, field.NotSupported(path.Child(f.name), f.value, supported))
		}
	}
	return errs
}

// validateStatefulSetUpdate lets change what does not touch the identity of
// pods and claims.
func validateStatefulSetUpdate(obj, old *appsv1.StatefulSet) field.ErrorList {
	errs := validateStatefulSet(obj)
	rest := obj.Spec.DeepCopy()
	rest.Replicas, rest.Template, rest.UpdateStrategy = old.Spec.Replicas, old.Spec.Template, old.Spec.UpdateStrategy
	rest.MinReadySeconds, rest.Ordinals = old.Spec.MinReadySeconds, old.Spec.Ordinals
	rest.RevisionHistoryLimit = old.Spec.RevisionHistoryLimit
	rest.PersistentVolumeClaimRetentionPolicy = old.Spec.PersistentVolumeClaimRetentionPolicy
	if !apiequality.Semantic.DeepEqual(*rest, old.Spec) {
		errs = append(errs, field.Forbidden(field.NewPath("spec"), "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"))
	}
	return errs
}

func validateStatefulSetStatus(_ context.Context, obj, old *appsv1.StatefulSet) field.ErrorList {
	s, path := &obj.Status, field.NewPath("status")
	errs := replicaCounts(path, s.Replicas,
		count{"readyReplicas", s.ReadyReplicas, ""},
		count{"currentReplicas", s.CurrentReplicas, ""},
		count{"updatedReplicas", s.UpdatedReplicas, ""},
		count{"availableReplicas", s.AvailableReplicas, ""})
	if s.AvailableReplicas > s.ReadyReplicas {
		errs = append(errs, field.Invalid(path.Child("availableReplicas"), s.AvailableReplicas, "cannot be greater than status.readyReplicas"))
	}
	errs = append(errs, apivalidation.ValidateNonnegativeField(s.ObservedGeneration, path.Child("observedGeneration"))...)
	return append(errs, validateCollisions(s.CollisionCount, old.Status.CollisionCount, path.Child("collisionCount"))...)
}

func warnOfStatefulSet(_ context.Context, obj, old *appsv1.StatefulSet) []string {
	template, claims := &obj.Spec.Template, field.NewPath("spec", "volumeClaimTemplates")
	var warnings []string
	if old == nil {
		warnings = templateWarnings(template, nil)
	} else {
		warnings = templateWarnings(template, &old.Spec.Template)
	}
	for i := range obj.Spec.VolumeClaimTemplates {
		at := claims.Index(i)
		if old != nil {
			at = at.Child("Spec") // as upstream spells it
		}
		warnings = append(warnings, podspec.ClaimWarnings(&obj.Spec.VolumeClaimTemplates[i].Spec, at)...)
	}
	if limit := obj.Spec.RevisionHistoryLimit; limit != nil && *limit < 0 {
		warnings = append(warnings, "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended")
	}
	return warnings
}
