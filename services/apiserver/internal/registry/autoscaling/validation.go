package autoscaling

import (
	"fmt"
	"slices"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/api/validation/path"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The longest period of a scaling policy and window of scaling rules, in
// seconds.
const (
	maxPeriod = 1800
	maxWindow = 3600
)

// validate checks a spec; old is nil on create.
func validate(s, old *spec) field.ErrorList {
	at := field.NewPath("spec")
	var errs field.ErrorList
	if s.MinReplicas != nil && *s.MinReplicas < 1 {
		errs = append(errs, field.Invalid(at.Child("minReplicas"), *s.MinReplicas, "must be greater than or equal to 1"))
	}
	if s.MaxReplicas < 1 {
		errs = append(errs, field.Invalid(at.Child("maxReplicas"), s.MaxReplicas, "must be greater than 0"))
	}
	if s.MinReplicas != nil && s.MaxReplicas < *s.MinReplicas {
		errs = append(errs, field.Invalid(at.Child("maxReplicas"), s.MaxReplicas, "must be greater than or equal to `minReplicas`"))
	}
	errs = append(errs, validateReference(&s.ScaleTargetRef, targetRules(s, old), at.Child("scaleTargetRef"))...)
	objects := referenceRules{emptyGroup: true, anyVersion: old != nil && hasInvalidVersion(old.Metrics)}
	for i := range s.Metrics {
		errs = append(errs, validateMetric(&s.Metrics[i], objects, at.Child("metrics").Index(i))...)
	}
	if b := s.Behavior; b != nil {
		errs = append(errs, validateRules(b.ScaleUp, at.Child("behavior", "scaleUp"))...)
		errs = append(errs, validateRules(b.ScaleDown, at.Child("behavior", "scaleDown"))...)
	}
	return errs
}

// referenceRules are what the API version of a reference may be.
type referenceRules struct {
	emptyGroup bool // core's version, or none
	anyVersion bool // what was there before is not looked at
}

// targetRules let only replication controllers be of the group without a name, and
// leave what does not change alone.
func targetRules(s, old *spec) referenceRules {
	now := s.ScaleTargetRef
	if old != nil && old.ScaleTargetRef.APIVersion == now.APIVersion && old.ScaleTargetRef.Kind == now.Kind {
		return referenceRules{anyVersion: true}
	}
	return referenceRules{emptyGroup: now.Kind == "ReplicationController"}
}

func hasInvalidVersion(metrics []autoscalingv2.MetricSpec) bool {
	for i := range metrics {
		if o := metrics[i].Object; o != nil && validateVersion(o.DescribedObject.APIVersion, referenceRules{emptyGroup: true}, nil) != nil {
			return true
		}
	}
	return false
}

func validateReference(ref *autoscalingv2.CrossVersionObjectReference, rules referenceRules, at *field.Path) field.ErrorList {
	errs := validateSegment(ref.Kind, at.Child("kind"), "")
	errs = append(errs, validateSegment(ref.Name, at.Child("name"), "")...)
	return append(errs, validateVersion(ref.APIVersion, rules, at.Child("apiVersion"))...)
}

func validateVersion(text string, rules referenceRules, at *field.Path) field.ErrorList {
	if rules.anyVersion {
		return nil
	}
	version, err := schema.ParseGroupVersion(text)
	switch {
	case err != nil:
		return field.ErrorList{field.Invalid(at, text, err.Error())}
	case version.Group == "" && !rules.emptyGroup:
		return field.ErrorList{field.Invalid(at, text, "apiVersion must specify API group")}
	case version.Group != "":
		var errs field.ErrorList
		for _, msg := range utilvalidation.IsDNS1123Subdomain(version.Group) {
			errs = append(errs, field.Invalid(at, text, msg))
		}
		return errs
	}
	return nil
}

// validateSegment wants a name that can be part of a path.
func validateSegment(value string, at *field.Path, missing string) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(at, missing)}
	}
	var errs field.ErrorList
	for _, msg := range path.IsValidPathSegmentName(value) {
		errs = append(errs, field.Invalid(at, value, msg))
	}
	return errs
}

func validateRules(rules *autoscalingv2.HPAScalingRules, at *field.Path) field.ErrorList {
	if rules == nil {
		return nil
	}
	var errs field.ErrorList
	if w := rules.StabilizationWindowSeconds; w != nil && *w < 0 {
		errs = append(errs, field.Invalid(at.Child("stabilizationWindowSeconds"), *w, "must be greater than or equal to zero"))
	} else if w != nil && *w > maxWindow {
		errs = append(errs, field.Invalid(at.Child("stabilizationWindowSeconds"), *w, fmt.Sprintf("must be less than or equal to %d", maxWindow)))
	}
	selections := []autoscalingv2.ScalingPolicySelect{autoscalingv2.DisabledPolicySelect, autoscalingv2.MaxChangePolicySelect, autoscalingv2.MinChangePolicySelect}
	if p := rules.SelectPolicy; p != nil && !slices.Contains(selections, *p) {
		errs = append(errs, field.NotSupported(at.Child("selectPolicy"), *p, selections))
	}
	if len(rules.Policies) == 0 {
		errs = append(errs, field.Required(at.Child("policies"), "must specify at least one Policy"))
	}
	for i := range rules.Policies {
		errs = append(errs, validatePolicy(&rules.Policies[i], at.Child("policies").Index(i))...)
	}
	if q := rules.Tolerance; q != nil && q.Sign() < 0 {
		errs = append(errs, field.Invalid(at.Child("tolerance"), q.String(), apivalidation.IsNegativeErrorMsg))
	}
	return errs
}

func validatePolicy(policy *autoscalingv2.HPAScalingPolicy, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	kinds := []autoscalingv2.HPAScalingPolicyType{autoscalingv2.PercentScalingPolicy, autoscalingv2.PodsScalingPolicy}
	if !slices.Contains(kinds, policy.Type) {
		errs = append(errs, field.NotSupported(at.Child("type"), policy.Type, kinds))
	}
	if policy.Value <= 0 {
		errs = append(errs, field.Invalid(at.Child("value"), policy.Value, "must be greater than zero"))
	}
	if policy.PeriodSeconds <= 0 {
		errs = append(errs, field.Invalid(at.Child("periodSeconds"), policy.PeriodSeconds, "must be greater than zero"))
	}
	if policy.PeriodSeconds > maxPeriod {
		errs = append(errs, field.Invalid(at.Child("periodSeconds"), policy.PeriodSeconds, fmt.Sprintf("must be less than or equal to %d", maxPeriod)))
	}
	return errs
}

// source is one of the alternatives of a metric.
type source struct {
	kind     autoscalingv2.MetricSourceType
	name     string
	set      bool
	validate func(*field.Path) field.ErrorList
}

func sources(m *autoscalingv2.MetricSpec, objects referenceRules) []source {
	return []source{
		{autoscalingv2.ObjectMetricSourceType, "object", m.Object != nil, func(at *field.Path) field.ErrorList { return validateObject(m.Object, objects, at) }},
		{autoscalingv2.ExternalMetricSourceType, "external", m.External != nil, func(at *field.Path) field.ErrorList { return validateExternal(m.External, at) }},
		{autoscalingv2.PodsMetricSourceType, "pods", m.Pods != nil, func(at *field.Path) field.ErrorList { return validatePods(m.Pods, at) }},
		{autoscalingv2.ResourceMetricSourceType, "resource", m.Resource != nil, func(at *field.Path) field.ErrorList { return validateResource(m.Resource, at) }},
		{autoscalingv2.ContainerResourceMetricSourceType, "containerResource", m.ContainerResource != nil, func(at *field.Path) field.ErrorList {
			return validateContainerResource(m.ContainerResource, at)
		}},
	}
}

func validateMetric(m *autoscalingv2.MetricSpec, objects referenceRules, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	kinds := []autoscalingv2.MetricSourceType{
		autoscalingv2.ContainerResourceMetricSourceType, autoscalingv2.ExternalMetricSourceType, autoscalingv2.ObjectMetricSourceType,
		autoscalingv2.PodsMetricSourceType, autoscalingv2.ResourceMetricSourceType,
	}
	if m.Type == "" {
		errs = append(errs, field.Required(at.Child("type"), "must specify a metric source type"))
	}
	if !slices.Contains(kinds, m.Type) {
		errs = append(errs, field.NotSupported(at.Child("type"), m.Type, kinds))
	}
	all := sources(m, objects)
	if i := slices.IndexFunc(all, func(s source) bool { return s.set }); i >= 0 {
		errs = append(errs, all[i].validate(at.Child(all[i].name))...)
	}
	count := 0
	for _, s := range all {
		if s.set {
			count++
		}
		if s.kind == m.Type && !s.set {
			errs = append(errs, field.Required(at.Child(s.name), "must populate information for the given metric source"))
		}
	}
	for _, s := range all {
		if count > 1 && s.set && s.kind != m.Type {
			errs = append(errs, field.Forbidden(at.Child(s.name), "must populate the given metric source only"))
		}
	}
	return errs
}

func validateObject(s *autoscalingv2.ObjectMetricSource, rules referenceRules, at *field.Path) field.ErrorList {
	errs := validateReference(&s.DescribedObject, rules, at.Child("describedObject"))
	errs = append(errs, validateSegment(s.Metric.Name, at.Child("metric", "name"), "must specify a metric name")...)
	errs = append(errs, validateTarget(&s.Target, at.Child("target"))...)
	if s.Target.Value == nil && s.Target.AverageValue == nil {
		errs = append(errs, field.Required(at.Child("target", "averageValue"), "must set either a target value or averageValue"))
	}
	return errs
}

func validateExternal(s *autoscalingv2.ExternalMetricSource, at *field.Path) field.ErrorList {
	errs := validateSegment(s.Metric.Name, at.Child("metric", "name"), "must specify a metric name")
	errs = append(errs, validateTarget(&s.Target, at.Child("target"))...)
	switch {
	case s.Target.Value == nil && s.Target.AverageValue == nil:
		errs = append(errs, field.Required(at.Child("target", "averageValue"), "must set either a target value for metric or a per-pod target"))
	case s.Target.Value != nil && s.Target.AverageValue != nil:
		errs = append(errs, field.Forbidden(at.Child("target", "value"), "may not set both a target value for metric and a per-pod target"))
	}
	return errs
}

func validatePods(s *autoscalingv2.PodsMetricSource, at *field.Path) field.ErrorList {
	errs := validateSegment(s.Metric.Name, at.Child("metric", "name"), "must specify a metric name")
	errs = append(errs, validateTarget(&s.Target, at.Child("target"))...)
	if s.Target.AverageValue == nil {
		errs = append(errs, field.Required(at.Child("target", "averageValue"), "must specify a positive target averageValue"))
	}
	return errs
}

func validateContainerResource(s *autoscalingv2.ContainerResourceMetricSource, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s.Name == "" {
		errs = append(errs, field.Required(at.Child("name"), "must specify a resource name"))
	} else {
		for _, msg := range utilvalidation.IsQualifiedName(string(s.Name)) {
			errs = append(errs, field.Invalid(at.Child("name"), s.Name, msg))
		}
	}
	if s.Container == "" {
		errs = append(errs, field.Required(at.Child("container"), "must specify a container"))
	} else {
		for _, msg := range utilvalidation.IsDNS1123Label(s.Container) {
			errs = append(errs, field.Invalid(at.Child("container"), s.Container, msg))
		}
	}
	return append(errs, validateUsage(&s.Target, at.Child("target"))...)
}

func validateResource(s *autoscalingv2.ResourceMetricSource, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s.Name == "" {
		errs = append(errs, field.Required(at.Child("name"), "must specify a resource name"))
	}
	return append(errs, validateUsage(&s.Target, at.Child("target"))...)
}

// validateUsage checks the target of a resource, which is absolute or relative
// to what is requested.
func validateUsage(t *autoscalingv2.MetricTarget, at *field.Path) field.ErrorList {
	errs := validateTarget(t, at)
	switch {
	case t.AverageUtilization == nil && t.AverageValue == nil:
		errs = append(errs, field.Required(at.Child("averageUtilization"), "must set either a target raw value or a target utilization"))
	case t.AverageUtilization != nil && t.AverageValue != nil:
		errs = append(errs, field.Forbidden(at.Child("averageValue"), "may not set both a target raw value and a target utilization"))
	}
	return errs
}

func validateTarget(t *autoscalingv2.MetricTarget, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if t.Type == "" {
		errs = append(errs, field.Required(at.Child("type"), "must specify a metric target type"))
	}
	if t.Type != autoscalingv2.UtilizationMetricType && t.Type != autoscalingv2.ValueMetricType && t.Type != autoscalingv2.AverageValueMetricType {
		errs = append(errs, field.Invalid(at.Child("type"), t.Type, "must be either Utilization, Value, or AverageValue"))
	}
	if t.Value != nil && t.Value.Sign() != 1 {
		errs = append(errs, field.Invalid(at.Child("value"), t.Value, "must be positive"))
	}
	if t.AverageValue != nil && t.AverageValue.Sign() != 1 {
		errs = append(errs, field.Invalid(at.Child("averageValue"), t.AverageValue, "must be positive"))
	}
	if t.AverageUtilization != nil && *t.AverageUtilization < 1 {
		errs = append(errs, field.Invalid(at.Child("averageUtilization"), *t.AverageUtilization, "must be greater than 0"))
	}
	return errs
}
