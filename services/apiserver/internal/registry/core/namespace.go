package core

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// Namespaces are stored until spec.finalizers is empty, which the namespace
// controller brings about through the finalize subresource.
func Namespaces() *registry.Resource {
	status := namespaceBehaviour()
	status.PrepareForUpdate = func(_ context.Context, obj, old *corev1.Namespace) { obj.Spec = old.Spec }
	status.ValidateUpdate = validateNamespaceStatus
	status.ResetFields = []string{"spec"}
	finalize := namespaceBehaviour()
	finalize.PrepareForUpdate = func(_ context.Context, obj, old *corev1.Namespace) { obj.Status = old.Status }
	finalize.ValidateUpdate = func(_ context.Context, obj, _ *corev1.Namespace) field.ErrorList {
		return validateNamespaceFinalizers(obj)
	}
	finalize.ResetFields = []string{"status"}
	return registry.Define(registry.Definition[*corev1.Namespace]{
		GroupVersion: v1, Resource: "namespaces", Kind: "Namespace", Singular: "namespace", ShortNames: []string{"ns"},
		Verbs:     []string{"create", "delete", "get", "list", "patch", "update", "watch"},
		New:       func() *corev1.Namespace { return &corev1.Namespace{} },
		NewList:   func() runtime.Object { return &corev1.NamespaceList{} },
		KeyPrefix: "/registry/namespaces",
		Fields: func(ns *corev1.Namespace) fields.Set {
			return fields.Set{"status.phase": string(ns.Status.Phase), "name": ns.Name}
		},
		Strategy: namespaceBehaviour(),
		Columns: []metav1.TableColumnDefinition{
			table.Name(), table.String("Status", "The status of the namespace"), table.Age(),
		},
		Row: func(ns *corev1.Namespace) []any {
			return []any{ns.Name, string(ns.Status.Phase), table.Since(ns.CreationTimestamp)}
		},
		Subresources: []registry.Subresource{
			{Name: "finalize", Verbs: []string{"update"}, Update: registry.Erase(finalize)},
			{Name: "status", Verbs: readWrite(), Update: registry.Erase(status)},
		},
	})
}

func namespaceBehaviour() registry.Behaviour[*corev1.Namespace] {
	return registry.Behaviour[*corev1.Namespace]{
		Default:      defaultNamespace,
		Canonicalize: labelWithName, // generateName gives the name after defaulting
		ValidateName: apivalidation.ValidateNamespaceName,
		PrepareForCreate: func(_ context.Context, ns *corev1.Namespace) {
			ns.Status = corev1.NamespaceStatus{Phase: corev1.NamespaceActive}
			if !slices.Contains(ns.Spec.Finalizers, corev1.FinalizerKubernetes) {
				ns.Spec.Finalizers = append(ns.Spec.Finalizers, corev1.FinalizerKubernetes)
			}
		},
		PrepareForUpdate: func(_ context.Context, ns, old *corev1.Namespace) {
			ns.Spec.Finalizers = old.Spec.Finalizers
			ns.Status = old.Status
		},
		Validate: func(_ context.Context, ns *corev1.Namespace) field.ErrorList {
			return validateNamespaceFinalizers(ns)
		},
		MarkDeleted: func(ns *corev1.Namespace) { ns.Status.Phase = corev1.NamespaceTerminating },
		Held:        func(ns *corev1.Namespace) bool { return len(ns.Spec.Finalizers) > 0 },
		ResetFields: []string{"status"},
	}
}

func defaultNamespace(ns *corev1.Namespace) {
	labelWithName(ns)
	if ns.Status.Phase == "" {
		ns.Status.Phase = corev1.NamespaceActive
	}
}

// labelWithName lets selectors choose a namespace by its name.
func labelWithName(ns *corev1.Namespace) {
	if ns.Name == "" {
		return
	}
	if ns.Labels == nil {
		ns.Labels = map[string]string{}
	}
	ns.Labels[corev1.LabelMetadataName] = ns.Name
}

func validateNamespaceFinalizers(ns *corev1.Namespace) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("spec", "finalizers")
	for i, finalizer := range ns.Spec.Finalizers {
		errs = append(errs, validateFinalizerName(string(finalizer), path.Index(i))...)
	}
	return errs
}

func validateNamespaceStatus(_ context.Context, ns, _ *corev1.Namespace) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("status", "Phase") // as upstream spells it
	if ns.DeletionTimestamp.IsZero() {
		if ns.Status.Phase != corev1.NamespaceActive {
			errs = append(errs, field.Invalid(path, ns.Status.Phase, "may only be 'Active' if `deletionTimestamp` is empty"))
		}
	} else if ns.Status.Phase != corev1.NamespaceTerminating {
		errs = append(errs, field.Invalid(path, ns.Status.Phase, "may only be 'Terminating' if `deletionTimestamp` is not empty"))
	}
	return errs
}
