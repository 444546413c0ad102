package core

import (
	"context"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// ReplicationControllers are what ReplicaSets replaced.
func ReplicationControllers() *registry.Resource {
	doc, statusDoc := corev1.ReplicationControllerSpec{}.SwaggerDoc(), corev1.ReplicationControllerStatus{}.SwaggerDoc()
	status := controllerBehaviour()
	status.PrepareForUpdate = func(_ context.Context, obj, old *corev1.ReplicationController) { obj.Spec = old.Spec }
	status.ValidateUpdate = validateControllerStatus
	status.ResetFields = []string{"spec"}
	status.SpecOf, status.Warnings = nil, nil
	return registry.Define(registry.Definition[*corev1.ReplicationController]{
		GroupVersion: v1, Resource: "replicationcontrollers", Kind: "ReplicationController", Singular: "replicationcontroller",
		ShortNames: []string{"rc"}, Categories: []string{"all"}, Namespaced: true,
		New:       func() *corev1.ReplicationController { return &corev1.ReplicationController{} },
		NewList:   func() runtime.Object { return &corev1.ReplicationControllerList{} },
		KeyPrefix: "/registry/controllers",
		Fields: func(obj *corev1.ReplicationController) fields.Set {
			return fields.Set{"status.replicas": strconv.Itoa(int(obj.Status.Replicas))}
		},
		Strategy: controllerBehaviour(),
		Columns: append([]metav1.TableColumnDefinition{
			table.Name(),
			table.Integer("Desired", doc["replicas"]),
			table.Integer("Current", statusDoc["replicas"]),
			table.Integer("Ready", statusDoc["readyReplicas"]),
			table.Age(),
		}, append(table.ContainerColumns(), table.Wide(table.String("Selector", doc["selector"])))...),
		Row: func(obj *corev1.ReplicationController) []any {
			var names, images string
			if obj.Spec.Template != nil {
				names, images = table.Containers(obj.Spec.Template.Spec.Containers)
			}
			return []any{
				obj.Name, int64(table.Value(obj.Spec.Replicas)), int64(obj.Status.Replicas), int64(obj.Status.ReadyReplicas),
				table.Since(obj.CreationTimestamp), names, images, table.Labels(obj.Spec.Selector),
			}
		},
		Subresources: []registry.Subresource{
			{Name: "scale", Verbs: readWrite(), Scale: controllerScale()},
			{Name: "status", Verbs: readWrite(), Update: registry.Erase(status)},
		},
	})
}

func controllerScale() *registry.Scale {
	return &registry.Scale{
		Replicas: func(obj runtime.Object) (int32, int32) {
			rc := obj.(*corev1.ReplicationController)
			return table.Value(rc.Spec.Replicas), rc.Status.Replicas
		},
		Selector: func(obj runtime.Object) string {
			return labels.Set(obj.(*corev1.ReplicationController).Spec.Selector).AsSelector().String()
		},
		SetReplicas: func(obj runtime.Object, n int32) { obj.(*corev1.ReplicationController).Spec.Replicas = &n },
	}
}

func controllerBehaviour() registry.Behaviour[*corev1.ReplicationController] {
	return registry.Behaviour[*corev1.ReplicationController]{
		Default: defaultController,
		PrepareForCreate: func(_ context.Context, obj *corev1.ReplicationController) {
			obj.Status = corev1.ReplicationControllerStatus{}
			dropFromTemplate(obj, nil)
		},
		PrepareForUpdate: func(_ context.Context, obj, old *corev1.ReplicationController) {
			obj.Status = old.Status
			dropFromTemplate(obj, old)
		},
		Validate: func(_ context.Context, obj *corev1.ReplicationController) field.ErrorList {
			return validateController(obj)
		},
		ValidateUpdate: func(_ context.Context, obj, _ *corev1.ReplicationController) field.ErrorList {
			return validateController(obj)
		},
		Warnings: func(_ context.Context, obj, old *corev1.ReplicationController) []string {
			if obj.Spec.Template == nil {
				return nil
			}
			var was *corev1.PodTemplateSpec
			if old != nil {
				was = old.Spec.Template
			}
			return podspec.TemplateWarnings(obj.Spec.Template, was, field.NewPath("spec", "template"))
		},
		AllowCreateOnUpdate: false,
		SpecOf:              func(obj *corev1.ReplicationController) any { return &obj.Spec },
		DefaultPropagation:  metav1.DeletePropagationOrphan,
		ResetFields:         []string{"status"},
	}
}

func dropFromTemplate(obj, old *corev1.ReplicationController) {
	if obj.Spec.Template == nil {
		return
	}
	var was *corev1.PodSpec
	if old != nil && old.Spec.Template != nil {
		was = &old.Spec.Template.Spec
	}
	podspec.DropDisabled(&obj.Spec.Template.Spec, was)
}

// defaultController takes selector and labels from the template.
func defaultController(obj *corev1.ReplicationController) {
	if obj.Spec.Replicas == nil {
		obj.Spec.Replicas = ptr.To(int32(1))
	}
	if obj.Spec.Template == nil {
		return
	}
	podspec.Default(&obj.Spec.Template.Spec)
	if set := obj.Spec.Template.Labels; set != nil {
		if len(obj.Spec.Selector) == 0 {
			obj.Spec.Selector = set
		}
		if len(obj.Labels) == 0 {
			obj.Labels = set
		}
	}
}

func validateController(obj *corev1.ReplicationController) field.ErrorList {
	spec, path := &obj.Spec, field.NewPath("spec")
	errs := apivalidation.ValidateNonnegativeField(int64(spec.MinReadySeconds), path.Child("minReadySeconds"))
	if len(spec.Selector) == 0 {
		errs = append(errs, field.Required(path.Child("selector"), ""))
	}
	errs = append(errs, apivalidation.ValidateNonnegativeField(int64(table.Value(spec.Replicas)), path.Child("replicas"))...)
	at := path.Child("template")
	if spec.Template == nil {
		return append(errs, field.Required(at, ""))
	}
	if len(spec.Selector) > 0 && !labels.SelectorFromSet(spec.Selector).Matches(labels.Set(spec.Template.Labels)) {
		errs = append(errs, field.Invalid(at.Child("metadata", "labels"), spec.Template.Labels, "`selector` does not match template `labels`"))
	}
	errs = append(errs, podspec.ValidateTemplate(spec.Template, at)...)
	if p := spec.Template.Spec.RestartPolicy; p != corev1.RestartPolicyAlways {
		errs = append(errs, field.NotSupported(at.Child("spec", "restartPolicy"), p, []corev1.RestartPolicy{corev1.RestartPolicyAlways}))
	}
	if spec.Template.Spec.ActiveDeadlineSeconds != nil {
		errs = append(errs, field.Forbidden(at.Child("spec", "activeDeadlineSeconds"), "activeDeadlineSeconds in ReplicationController is not Supported"))
	}
	return errs
}

func validateControllerStatus(_ context.Context, obj, _ *corev1.ReplicationController) field.ErrorList {
	s, path := &obj.Status, field.NewPath("status")
	var errs field.ErrorList
	parts := []struct {
		name  string
		value int32
	}{{"replicas", s.Replicas}, {"fullyLabeledReplicas", s.FullyLabeledReplicas}, {"readyReplicas", s.ReadyReplicas}, {"availableReplicas", s.AvailableReplicas}}
	for _, p := range parts {
		errs = append(errs, apivalidation.ValidateNonnegativeField(int64(p.value), path.Child(p.name))...)
	}
	errs = append(errs, apivalidation.ValidateNonnegativeField(s.ObservedGeneration, path.Child("observedGeneration"))...)
	for _, p := range parts[1:] {
		if p.value > s.Replicas {
			errs = append(errs, field.Invalid(path.Child(p.name), p.value, "cannot be greater than status.replicas"))
		}
	}
	if s.AvailableReplicas > s.ReadyReplicas {
		errs = append(errs, field.Invalid(path.Child("availableReplicas"), s.AvailableReplicas, "cannot be greater than readyReplicas"))
	}
	return errs
}
