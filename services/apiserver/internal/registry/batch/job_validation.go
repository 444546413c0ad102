package batch

import (
	"context"
	"fmt"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// maxIndexed bounds the parallelism of indexed jobs, whose indexes are all
// recorded.
const maxIndexed = 100000

func validateJob(obj *batchv1.Job) field.ErrorList {
	path := field.NewPath("spec")
	errs := validateGeneratedSelector(obj)
	errs = append(errs, validateJobSpec(&obj.Spec, path)...)
	if obj.Spec.Selector == nil {
		return append(errs, field.Required(path.Child("selector"), ""))
	}
	errs = append(errs, metav1validation.ValidateLabelSelector(obj.Spec.Selector, metav1validation.LabelSelectorValidationOptions{}, path.Child("selector"))...)
	if selector, err := metav1.LabelSelectorAsSelector(obj.Spec.Selector); err == nil && !selector.Matches(labels.Set(obj.Spec.Template.Labels)) {
		errs = append(errs, field.Invalid(path.Child("template", "metadata", "labels"), obj.Spec.Template.Labels, "`selector` does not match template `labels`"))
	}
	if m := obj.Spec.CompletionMode; m != nil && *m == batchv1.IndexedCompletion && table.Value(obj.Spec.Completions) > 0 {
		// Pods are called name-index, which is their host name as well.
		last := fmt.Sprintf("%s-%d", obj.Name, *obj.Spec.Completions-1)
		for _, msg := range utilvalidation.IsDNS1123Label(last) {
			errs = append(errs, field.Invalid(field.NewPath("metadata").Child("name"), obj.Name, fmt.Sprintf("will not able to create pod with invalid DNS label: %s: %s", last, msg)))
		}
	}
	return errs
}

func validateGeneratedSelector(obj *batchv1.Job) field.ErrorList {
	if table.Value(obj.Spec.ManualSelector) || obj.Spec.Selector == nil {
		return nil
	}
	var errs field.ErrorList
	if obj.UID == "" {
		errs = append(errs, field.Required(field.NewPath("metadata").Child("uid"), ""))
	}
	at := field.NewPath("spec", "template", "metadata", "labels")
	want := jobLabels(obj)
	for _, key := range []string{batchv1.ControllerUidLabel, batchv1.JobNameLabel, legacyControllerUID, legacyJobName} {
		if have, set := obj.Spec.Template.Labels[key]; !set {
			errs = append(errs, field.Required(at.Key(key), fmt.Sprintf("must be '%s'", want[key])))
		} else if have != want[key] {
			errs = append(errs, field.Invalid(at.Key(key), obj.Spec.Template.Labels, fmt.Sprintf("must be '%s'", want[key])))
		}
	}
	selector, err := metav1.LabelSelectorAsSelector(obj.Spec.Selector)
	own := labels.Set{batchv1.ControllerUidLabel: string(obj.UID)}
	if err != nil || !selector.Matches(labels.Set(want)) || obj.Spec.Selector.MatchLabels[batchv1.ControllerUidLabel] != own[batchv1.ControllerUidLabel] {
		errs = append(errs, field.Invalid(field.NewPath("spec", "selector"), obj.Spec.Selector, "`selector` not auto-generated"))
	}
	return errs
}

// validateJobSpec checks what a CronJob's template has as well.
func validateJobSpec(spec *batchv1.JobSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, f := range []struct {
		name  string
		value *int32
	}{
		{"parallelism", spec.Parallelism}, {"completions", spec.Completions}, {"backoffLimit", spec.BackoffLimit},
		{"ttlSecondsAfterFinished", spec.TTLSecondsAfterFinished}, {"backoffLimitPerIndex", spec.BackoffLimitPerIndex}, {"maxFailedIndexes", spec.MaxFailedIndexes},
	} {
		if f.value != nil {
			errs = append(errs, apivalidation.ValidateNonnegativeField(int64(*f.value), path.Child(f.name))...)
		}
	}
	if s := spec.ActiveDeadlineSeconds; s != nil {
		errs = append(errs, apivalidation.ValidateNonnegativeField(*s, path.Child("activeDeadlineSeconds"))...)
	}
	errs = append(errs, validateIndexed(spec, path)...)
	if p := spec.PodReplacementPolicy; p != nil {
		errs = append(errs, validateReplacement(*p, spec.PodFailurePolicy != nil, path.Child("podReplacementPolicy"))...)
	}
	if m := spec.ManagedBy; m != nil {
		errs = append(errs, utilvalidation.IsDomainPrefixedPath(path.Child("managedBy"), *m)...)
		if len(*m) > 63 {
			errs = append(errs, field.TooLong(path.Child("managedBy"), *m, 63))
		}
	}
	errs = append(errs, podspec.ValidateTemplate(&spec.Template, path.Child("template"))...)
	at := path.Child("template", "spec", "restartPolicy")
	switch p := spec.Template.Spec.RestartPolicy; p {
	case corev1.RestartPolicyAlways:
		errs = append(errs, field.Required(at, fmt.Sprintf("valid values: %q, %q", corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever)))
	case corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever:
		if spec.PodFailurePolicy != nil && p != corev1.RestartPolicyNever {
			errs = append(errs, field.Invalid(at, p, fmt.Sprintf("only %q is supported when podFailurePolicy is specified", corev1.RestartPolicyNever)))
		}
	default:
		errs = append(errs, field.NotSupported(at, p, []corev1.RestartPolicy{corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever}))
	}
	if spec.PodFailurePolicy != nil {
		errs = append(errs, validateFailurePolicy(spec, path.Child("podFailurePolicy"))...)
	}
	if spec.SuccessPolicy != nil {
		errs = append(errs, validateSuccessPolicy(spec, path.Child("successPolicy"))...)
	}
	return errs
}

func validateReplacement(p batchv1.PodReplacementPolicy, failurePolicy bool, path *field.Path) field.ErrorList {
	supported := []batchv1.PodReplacementPolicy{batchv1.Failed, batchv1.TerminatingOrFailed}
	if failurePolicy {
		supported = supported[:1]
	}
	if !slices.Contains(supported, p) {
		return field.ErrorList{field.NotSupported(path, p, supported)}
	}
	return nil
}

func validateIndexed(spec *batchv1.JobSpec, path *field.Path) field.ErrorList {
	indexed := spec.CompletionMode != nil && *spec.CompletionMode == batchv1.IndexedCompletion
	var errs field.ErrorList
	if m := spec.CompletionMode; m != nil && *m != batchv1.NonIndexedCompletion && *m != batchv1.IndexedCompletion {
		errs = append(errs, field.NotSupported(path.Child("completionMode"), *m, []batchv1.CompletionMode{batchv1.IndexedCompletion, batchv1.NonIndexedCompletion}))
	}
	if indexed {
		when := fmt.Sprintf("when completion mode is %s", batchv1.IndexedCompletion)
		if spec.Completions == nil {
			errs = append(errs, field.Required(path.Child("completions"), when))
		}
		if p := table.Value(spec.Parallelism); p > maxIndexed {
			errs = append(errs, field.Invalid(path.Child("parallelism"), p, fmt.Sprintf("must be less than or equal to %d %s", maxIndexed, when)))
		}
	} else if spec.BackoffLimitPerIndex != nil {
		errs = append(errs, field.Invalid(path.Child("backoffLimitPerIndex"), *spec.BackoffLimitPerIndex, "requires indexed completion mode"))
	}
	if spec.MaxFailedIndexes != nil {
		if spec.BackoffLimitPerIndex == nil {
			errs = append(errs, field.Required(path.Child("backoffLimitPerIndex"), "when maxFailedIndexes is specified"))
		}
		if spec.Completions != nil && *spec.MaxFailedIndexes > *spec.Completions {
			errs = append(errs, field.Invalid(path.Child("maxFailedIndexes"), *spec.MaxFailedIndexes, "must be less than or equal to completions"))
		}
	}
	return errs
}

// The most of each that policies hold.
const (
	maxFailureRules      = 20
	maxFailureExitCodes  = 255
	maxFailureConditions = 20
	maxSuccessRules      = 20
)

func validateFailurePolicy(spec *batchv1.JobSpec, path *field.Path) field.ErrorList {
	at := path.Child("rules")
	rules := spec.PodFailurePolicy.Rules
	if len(rules) > maxFailureRules {
		return field.ErrorList{field.TooMany(at, len(rules), maxFailureRules)}
	}
	names := map[string]bool{}
	for i := range spec.Template.Spec.Containers {
		names[spec.Template.Spec.Containers[i].Name] = true
	}
	for i := range spec.Template.Spec.InitContainers {
		names[spec.Template.Spec.InitContainers[i].Name] = true
	}
	var errs field.ErrorList
	for i := range rules {
		errs = append(errs, validateFailureRule(&rules[i], names, spec.BackoffLimitPerIndex != nil, at.Index(i))...)
	}
	return errs
}

func validateFailureRule(rule *batchv1.PodFailurePolicyRule, names map[string]bool, perIndex bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	supported := []batchv1.PodFailurePolicyAction{batchv1.PodFailurePolicyActionCount, batchv1.PodFailurePolicyActionFailIndex, batchv1.PodFailurePolicyActionFailJob, batchv1.PodFailurePolicyActionIgnore}
	switch {
	case rule.Action == "":
		errs = append(errs, field.Required(path.Child("action"), fmt.Sprintf("valid values: %q", supported)))
	case rule.Action == batchv1.PodFailurePolicyActionFailIndex && !perIndex:
		errs = append(errs, field.Invalid(path.Child("action"), rule.Action, "requires the backoffLimitPerIndex to be set"))
	case !slices.Contains(supported, rule.Action):
		errs = append(errs, field.NotSupported(path.Child("action"), rule.Action, supported))
	}
	if rule.OnExitCodes != nil {
		errs = append(errs, validateExitCodes(rule.OnExitCodes, names, path.Child("onExitCodes"))...)
	}
	conditions := path.Child("onPodConditions")
	if n := len(rule.OnPodConditions); n > maxFailureConditions {
		errs = append(errs, field.TooMany(conditions, n, maxFailureConditions))
	}
	for i, c := range rule.OnPodConditions {
		for _, msg := range utilvalidation.IsQualifiedName(string(c.Type)) {
			errs = append(errs, field.Invalid(conditions.Index(i).Child("type"), c.Type, msg))
		}
		statuses := []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionTrue, corev1.ConditionUnknown}
		if !slices.Contains(statuses, c.Status) {
			errs = append(errs, field.NotSupported(conditions.Index(i).Child("status"), c.Status, statuses))
		}
	}
	if rule.OnExitCodes != nil && len(rule.OnPodConditions) > 0 {
		errs = append(errs, field.Invalid(path, *rule, "specifying both OnExitCodes and OnPodConditions is not supported"))
	}
	if rule.OnExitCodes == nil && len(rule.OnPodConditions) == 0 {
		errs = append(errs, field.Invalid(path, *rule, "specifying one of OnExitCodes and OnPodConditions is required"))
	}
	return errs
}

func validateExitCodes(r *batchv1.PodFailurePolicyOnExitCodesRequirement, names map[string]bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if r.ContainerName != nil && !names[*r.ContainerName] {
		errs = append(errs, field.Invalid(path.Child("containerName"), *r.ContainerName, "must be one of the container or initContainer names in the pod template"))
	}
	supported := []batchv1.PodFailurePolicyOnExitCodesOperator{batchv1.PodFailurePolicyOnExitCodesOpIn, batchv1.PodFailurePolicyOnExitCodesOpNotIn}
	if !slices.Contains(supported, r.Operator) {
		errs = append(errs, field.NotSupported(path.Child("operator"), r.Operator, supported))
	}
	values := path.Child("values")
	switch n := len(r.Values); {
	case n == 0:
		errs = append(errs, field.Invalid(values, r.Values, "at least one value is required"))
	case n > maxFailureExitCodes:
		errs = append(errs, field.TooMany(values, n, maxFailureExitCodes))
	}
	if !slices.IsSorted(r.Values) {
		errs = append(errs, field.Invalid(values, r.Values, "must be ordered"))
	}
	for i, code := range r.Values {
		if r.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn && code == 0 {
			errs = append(errs, field.Invalid(values.Index(i), code, "must not be 0 for the In operator"))
		}
		if slices.Contains(r.Values[:i], code) {
			errs = append(errs, field.Duplicate(values.Index(i), code))
		}
	}
	return errs
}

func validateSuccessPolicy(spec *batchv1.JobSpec, path *field.Path) field.ErrorList {
	if spec.CompletionMode == nil || *spec.CompletionMode != batchv1.IndexedCompletion {
		return field.ErrorList{field.Invalid(path, *spec.SuccessPolicy, "requires indexed completion mode")}
	}
	rules := path.Child("rules")
	n := len(spec.SuccessPolicy.Rules)
	if n == 0 {
		return field.ErrorList{field.Required(rules, "at least one rules must be specified when the successPolicy is specified")}
	}
	if n > maxSuccessRules {
		return field.ErrorList{field.TooMany(rules, n, maxSuccessRules)}
	}
	var errs field.ErrorList
	for i, rule := range spec.SuccessPolicy.Rules {
		at := rules.Index(i)
		if rule.SucceededCount == nil && rule.SucceededIndexes == nil {
			errs = append(errs, field.Required(at, "at least one of succeededCount or succeededIndexes must be specified"))
		}
		total := table.Value(spec.Completions)
		if rule.SucceededIndexes != nil {
			count, err := countIndexes(*rule.SucceededIndexes, table.Value(spec.Completions))
			if err != nil {
				errs = append(errs, field.Invalid(at.Child("succeededIndexes"), *rule.SucceededIndexes, fmt.Sprintf("error parsing succeededIndexes: %s", err.Error())))
			}
			total = count
		}
		if c := rule.SucceededCount; c != nil {
			if *c < 0 {
				errs = append(errs, field.Invalid(at.Child("succeededCount"), *c, "must be greater than or equal to 0"))
			} else if *c > total {
				errs = append(errs, field.Invalid(at.Child("succeededCount"), *c, fmt.Sprintf("must be less than or equal to %d (the number of indexes in the specified succeededIndexes field)", total)))
			}
		}
	}
	return errs
}

// countIndexes counts the indexes in a list such as 1,3-5,7, which must ascend
// below completions.
func countIndexes(text string, completions int32) (int32, error) {
	if text == "" {
		return 0, nil
	}
	var count int32
	last := int32(-1)
	for _, part := range strings.Split(text, ",") {
		first, end, ranged := strings.Cut(part, "-")
		low, err := parseIndex(first)
		if err != nil {
			return 0, err
		}
		high := low
		if ranged {
			if high, err = parseIndex(end); err != nil {
				return 0, err
			}
		}
		switch {
		case low >= completions || high >= completions:
			return 0, fmt.Errorf("too large index: %q", part)
		case low <= last:
			return 0, fmt.Errorf("non-increasing order, previous: %d, current: %d", last, low)
		case ranged && high <= low:
			return 0, fmt.Errorf("non-increasing order, previous: %d, current: %d", low, high)
		}
		count += high - low + 1
		last = high
	}
	return count, nil
}

func validateJobUpdate(obj, old *batchv1.Job) field.ErrorList {
	path := field.NewPath("spec")
	errs := validateJobSpec(&obj.Spec, path)
	if selector, err := metav1.LabelSelectorAsSelector(obj.Spec.Selector); err != nil || !selector.Matches(labels.Set(obj.Spec.Template.Labels)) {
		errs = append(errs, field.Invalid(path.Child("template", "metadata", "labels"), obj.Spec.Template.Labels, "`selector` does not match template `labels`"))
	}
	fixed := func(name string, now, was any) {
		errs = append(errs, apivalidation.ValidateImmutableField(now, was, path.Child(name))...)
	}
	indexed := obj.Spec.CompletionMode != nil && *obj.Spec.CompletionMode == batchv1.IndexedCompletion
	if indexed && !apiequality.Semantic.DeepEqual(obj.Spec.Completions, old.Spec.Completions) {
		// An indexed job grows and shrinks with both numbers at once.
		if table.Value(obj.Spec.Completions) != table.Value(obj.Spec.Parallelism) || table.Value(old.Spec.Completions) != table.Value(old.Spec.Parallelism) {
			errs = append(errs, field.Invalid(path.Child("completions"), table.Value(obj.Spec.Completions), fmt.Sprintf("can only be modified in tandem with %s", path.Child("parallelism"))))
		}
	} else {
		fixed("completions", obj.Spec.Completions, old.Spec.Completions)
	}
	fixed("selector", obj.Spec.Selector, old.Spec.Selector)
	fixed("completionMode", obj.Spec.CompletionMode, old.Spec.CompletionMode)
	fixed("podFailurePolicy", obj.Spec.PodFailurePolicy, old.Spec.PodFailurePolicy)
	fixed("backoffLimitPerIndex", obj.Spec.BackoffLimitPerIndex, old.Spec.BackoffLimitPerIndex)
	fixed("managedBy", obj.Spec.ManagedBy, old.Spec.ManagedBy)
	fixed("successPolicy", obj.Spec.SuccessPolicy, old.Spec.SuccessPolicy)
	template, was := obj.Spec.Template.DeepCopy(), old.Spec.Template.DeepCopy()
	if table.Value(old.Spec.Suspend) && old.Status.StartTime == nil { // not begun: where it runs may change
		restoreScheduling(template, was)
	}
	fixed("template", template, was)
	return errs
}

// restoreScheduling sets back what says where pods run.
func restoreScheduling(template, old *corev1.PodTemplateSpec) {
	template.Annotations, template.Labels = old.Annotations, old.Labels
	template.Spec.NodeSelector, template.Spec.Tolerations = old.Spec.NodeSelector, old.Spec.Tolerations
	template.Spec.SchedulingGates = old.Spec.SchedulingGates
	if template.Spec.Affinity == nil {
		template.Spec.Affinity = old.Spec.Affinity
		return
	}
	if old.Spec.Affinity == nil {
		template.Spec.Affinity.NodeAffinity = nil
		if *template.Spec.Affinity == (corev1.Affinity{}) {
			template.Spec.Affinity = nil
		}
		return
	}
	template.Spec.Affinity.NodeAffinity = old.Spec.Affinity.NodeAffinity
}

func validateJobStatus(_ context.Context, obj, old *batchv1.Job) field.ErrorList {
	s, path := &obj.Status, field.NewPath("status")
	var errs field.ErrorList
	for _, f := range []struct {
		name  string
		value int32
	}{{"active", s.Active}, {"succeeded", s.Succeeded}, {"failed", s.Failed}, {"ready", table.Value(s.Ready)}, {"terminating", table.Value(s.Terminating)}} {
		errs = append(errs, apivalidation.ValidateNonnegativeField(int64(f.value), path.Child(f.name))...)
	}
	ended := map[batchv1.JobConditionType]bool{}
	for _, c := range s.Conditions {
		if c.Status == corev1.ConditionTrue {
			ended[c.Type] = true
		}
	}
	if ended[batchv1.JobComplete] && ended[batchv1.JobFailed] {
		errs = append(errs, field.Invalid(path.Child("conditions"), field.OmitValueType{}, "cannot set Complete=True and Failed=true conditions"))
	}
	if (ended[batchv1.JobComplete] || ended[batchv1.JobFailed]) && s.Active > 0 {
		errs = append(errs, field.Invalid(path.Child("active"), s.Active, "active>0 is invalid for finished job"))
	}
	if s.CompletionTime != nil && !ended[batchv1.JobComplete] {
		errs = append(errs, field.Invalid(path.Child("completionTime"), s.CompletionTime, "cannot set completionTime when there is no Complete=True condition"))
	}
	if old.Status.CompletionTime != nil && !old.Status.CompletionTime.Equal(s.CompletionTime) {
		errs = append(errs, field.Invalid(path.Child("completionTime"), s.CompletionTime, "completionTime cannot be mutated"))
	}
	return errs
}
