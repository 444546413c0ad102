package core

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// PodTemplates are stored descriptions of pods.
func PodTemplates() *registry.Resource {
	validate := func(obj *corev1.PodTemplate) field.ErrorList {
		return podspec.ValidateTemplate(&obj.Template, field.NewPath("template"))
	}
	return registry.Define(registry.Definition[*corev1.PodTemplate]{
		GroupVersion: v1, Resource: "podtemplates", Kind: "PodTemplate", Singular: "podtemplate",
		ReturnDeleted: true,
		Namespaced:    true,
		New:           func() *corev1.PodTemplate { return &corev1.PodTemplate{} },
		NewList:       func() runtime.Object { return &corev1.PodTemplateList{} },
		KeyPrefix:     "/registry/podtemplates",
		Strategy: registry.Behaviour[*corev1.PodTemplate]{
			Default: func(obj *corev1.PodTemplate) { podspec.Default(&obj.Template.Spec) },
			PrepareForCreate: func(_ context.Context, obj *corev1.PodTemplate) {
				podspec.DropDisabled(&obj.Template.Spec, nil)
			},
			PrepareForUpdate: func(_ context.Context, obj, old *corev1.PodTemplate) {
				podspec.DropDisabled(&obj.Template.Spec, &old.Template.Spec)
			},
			Validate:       func(_ context.Context, obj *corev1.PodTemplate) field.ErrorList { return validate(obj) },
			ValidateUpdate: func(_ context.Context, obj, _ *corev1.PodTemplate) field.ErrorList { return validate(obj) },
			Warnings: func(_ context.Context, obj, old *corev1.PodTemplate) []string {
				var was *corev1.PodTemplateSpec
				if old != nil {
					was = &old.Template
				}
				return podspec.TemplateWarnings(&obj.Template, was, field.NewPath("template"))
			},
			AllowCreateOnUpdate: true,
			SpecOf:              func(obj *corev1.PodTemplate) any { return &obj.Template },
		},
		Columns: []metav1.TableColumnDefinition{
			table.Name(),
			table.String("Containers", "Names of each container in the template."),
			table.String("Images", "Images referenced by each container in the template."),
			table.String("Pod Labels", "The labels for the pod template."),
		},
		Row: func(obj *corev1.PodTemplate) []any {
			names, images := table.Containers(obj.Template.Spec.Containers)
			return []any{obj.Name, names, images, table.Labels(obj.Template.Labels)}
		},
	})
}
