// Package apps has the kinds of the apps group, v1.
package apps

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

var v1 = appsv1.SchemeGroupVersion

func readWrite() []string { return []string{"get", "patch", "update"} }

// workloadColumns are the wide columns that all workloads end with.
func workloadColumns(selector string) []metav1.TableColumnDefinition {
	return append(table.ContainerColumns(), table.Wide(table.String("Selector", selector)))
}

func workloadCells(template *corev1.PodTemplateSpec, selector *metav1.LabelSelector) []any {
	names, images := table.Containers(template.Spec.Containers)
	return []any{names, images, table.Selector(selector)}
}

// validateSelector checks a workload's selector and that it selects the
// workload's own template.
func validateSelector(selector *metav1.LabelSelector, template *corev1.PodTemplateSpec, path *field.Path, emptyDetail string) field.ErrorList {
	if selector == nil {
		return field.ErrorList{field.Required(path.Child("selector"), "")}
	}
	errs := metav1validation.ValidateLabelSelector(selector, metav1validation.LabelSelectorValidationOptions{}, path.Child("selector"))
	if len(selector.MatchLabels)+len(selector.MatchExpressions) == 0 {
		errs = append(errs, field.Invalid(path.Child("selector"), selector, emptyDetail))
	}
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return append(errs, field.Invalid(path.Child("selector"), selector, "invalid label selector"))
	}
	if !parsed.Empty() && !parsed.Matches(labels.Set(template.Labels)) {
		errs = append(errs, field.Invalid(path.Child("template", "metadata", "labels"), template.Labels, "`selector` does not match template `labels`"))
	}
	return errs
}

// validateAlwaysTemplate checks a template of pods that must run for ever; kind
// is whom a refusal names.
func validateAlwaysTemplate(template *corev1.PodTemplateSpec, kind string, path *field.Path) field.ErrorList {
	errs := podspec.ValidateTemplate(template, path)
	if p := template.Spec.RestartPolicy; p != corev1.RestartPolicyAlways {
		errs = append(errs, field.NotSupported(path.Child("spec", "restartPolicy"), p, []corev1.RestartPolicy{corev1.RestartPolicyAlways}))
	}
	if template.Spec.ActiveDeadlineSeconds != nil {
		errs = append(errs, field.Forbidden(path.Child("spec", "activeDeadlineSeconds"), "activeDeadlineSeconds in "+kind+" is not Supported"))
	}
	return errs
}

func templateWarnings(template, old *corev1.PodTemplateSpec) []string {
	return podspec.TemplateWarnings(template, old, field.NewPath("spec", "template"))
}

// warnOfName tells that pods are named after their owner.
func warnOfName(name string) []string {
	if msgs := utilvalidation.IsDNS1123Label(name); name != "" && len(msgs) > 0 {
		return []string{fmt.Sprintf("metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is recommended: %v", msgs)}
	}
	return nil
}

func nonNegative(value int32, path *field.Path) field.ErrorList {
	return apivalidation.ValidateNonnegativeField(int64(value), path)
}

// scaleOf serves the scale of a kind through accessors of its fields.
func scaleOf[T registry.Object](counts func(T) (*int32, int32), selector func(T) *metav1.LabelSelector, set func(T, int32)) *registry.Scale {
	return &registry.Scale{
		Replicas: func(obj runtime.Object) (int32, int32) {
			spec, status := counts(obj.(T))
			return table.Value(spec), status
		},
		Selector: func(obj runtime.Object) string {
			s, err := metav1.LabelSelectorAsSelector(selector(obj.(T)))
			if err != nil {
				return ""
			}
			return s.String()
		},
		SetReplicas: func(obj runtime.Object, replicas int32) { set(obj.(T), replicas) },
	}
}
