package customresource

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/version"

	"github.com/sampan-io/sampan/services/apiserver/internal/apiextensions/structural"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

func (v *view) hasStatus() bool {
	return v.spec.Subresources != nil && v.spec.Subresources.Status != nil
}

func (v *view) strategy() *registry.Strategy {
	s := &registry.Strategy{
		Default:                v.applyDefaults,
		SpecOf:                 func(obj runtime.Object) any { return withoutMetadata(obj) },
		Validate:               v.validate,
		ValidateUpdate:         v.validateUpdate((*structural.Schema).ValidateUpdate),
		Warnings:               finalizerWarnings,
		Canonicalize:           v.prune,
		RequireVersionOnUpdate: true,
		Begin:                  v.begin,
	}
	if v.hasStatus() {
		s.PrepareForCreate = func(_ context.Context, obj runtime.Object) { delete(content(obj), "status") }
		s.PrepareForUpdate = keepStatus
		s.ResetFields = []string{"status"}
	}
	return s
}

func (v *view) statusStrategy() *registry.Strategy {
	return &registry.Strategy{
		PrepareForUpdate: changeStatus,
		ValidateUpdate:   v.validateUpdate((*structural.Schema).ValidateStatusUpdate),
		Canonicalize:     v.prune,
		ResetFields:      []string{"metadata", "spec"},
	}
}

// begin refuses new objects of a kind that is going away.
func (v *view) begin(_ context.Context, obj, old runtime.Object, _ bool) (func(bool), error) {
	if old == nil && v.kind.terminating {
		resource := apiextensionsv1.Resource(v.kind.names.Plural)
		resource.Group = v.kind.group
		name := ""
		if o, ok := obj.(metav1.Object); ok {
			name = o.GetName()
		}
		return nil, apierrors.NewForbidden(resource, name, errors.New("create not allowed while custom resource definition is terminating"))
	}
	return nil, nil
}

func (v *view) applyDefaults(obj runtime.Object) {
	u, err := asUnstructured(obj)
	if err != nil {
		return
	}
	if s, err := v.schema(); err == nil { // reading the object has told of an error
		s.Default(u)
	}
}

// prune drops what admission added and the schema does not know, so that what is
// stored is what is served.
func (v *view) prune(obj runtime.Object) {
	u, err := asUnstructured(obj)
	if err != nil {
		return
	}
	if s, err := v.schema(); err == nil { // validating the object has told of an error
		s.Prune(u)
	}
}

func (v *view) validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	u, err := asUnstructured(obj)
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	s, err := v.schema()
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	return s.Validate(ctx, u)
}

type updateCheck func(s *structural.Schema, ctx context.Context, obj, old *unstructured.Unstructured) field.ErrorList

func (v *view) validateUpdate(check updateCheck) func(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	return func(ctx context.Context, obj, old runtime.Object) field.ErrorList {
		s, err := v.schema()
		if err != nil {
			return field.ErrorList{field.InternalError(nil, err)}
		}
		changed, err := asUnstructured(obj)
		if err != nil {
			return field.ErrorList{field.InternalError(nil, err)}
		}
		before, err := asUnstructured(old)
		if err != nil {
			return field.ErrorList{field.InternalError(nil, err)}
		}
		return check(s, ctx, changed, before)
	}
}

func content(obj runtime.Object) map[string]any {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		return u.Object
	}
	return nil
}

func withoutMetadata(obj runtime.Object) map[string]any {
	out := map[string]any{}
	for name, value := range content(obj) {
		if name != "metadata" {
			out[name] = value
		}
	}
	return out
}

// keepStatus undoes what an update of the main resource did to the status.
func keepStatus(_ context.Context, obj, old runtime.Object) {
	changed := content(obj)
	if status, ok := content(old)["status"]; ok {
		changed["status"] = runtime.DeepCopyJSONValue(status)
	} else {
		delete(changed, "status")
	}
}

// changeStatus undoes what an update of the status did to everything else.
func changeStatus(_ context.Context, obj, old runtime.Object) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return
	}
	status, has := u.Object["status"]
	managed := u.GetManagedFields()
	u.Object = runtime.DeepCopyJSON(content(old))
	u.SetManagedFields(managed)
	if has {
		u.Object["status"] = status
	} else {
		delete(u.Object, "status")
	}
}

// finalizerWarnings are about new finalizers whose names others may use too.
func finalizerWarnings(_ context.Context, obj, old runtime.Object) []string {
	had := map[string]bool{
		metav1.FinalizerOrphanDependents: true, metav1.FinalizerDeleteDependents: true, "kubernetes": true,
	}
	if o, ok := old.(metav1.Object); ok {
		for _, name := range o.GetFinalizers() {
			had[name] = true
		}
	}
	var out []string
	o, ok := obj.(metav1.Object)
	if !ok {
		return nil
	}
	for _, name := range o.GetFinalizers() {
		if had[name] {
			continue
		}
		for _, problem := range validation.IsQualifiedName(name) {
			out = append(out, fmt.Sprintf("metadata.finalizers: %q: %s", name, problem))
		}
		switch {
		case strings.Contains(name, "/"):
		case strings.Contains(name, "."):
			out = append(out, fmt.Sprintf("metadata.finalizers: %q: prefer a domain-qualified finalizer name including a path (/) to avoid accidental conflicts with other finalizer writers", name))
		default:
			out = append(out, fmt.Sprintf("metadata.finalizers: %q: prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers", name))
		}
	}
	return out
}

// deprecation is the warning of a deprecated version, none for others.
func (k *kind) deprecation(v *apiextensionsv1.CustomResourceDefinitionVersion) []string {
	if !v.Deprecated {
		return nil
	}
	if v.DeprecationWarning != nil {
		return []string{*v.DeprecationWarning}
	}
	newest := ""
	for _, other := range k.specs {
		if other.Served && !other.Deprecated && version.CompareKubeAwareVersionStrings(v.Name, other.Name) < 0 &&
			(newest == "" || version.CompareKubeAwareVersionStrings(other.Name, newest) > 0) {
			newest = other.Name
		}
	}
	text := fmt.Sprintf("%s/%s %s is deprecated", k.group, v.Name, k.names.Kind)
	if newest != "" {
		text += fmt.Sprintf("; use %s/%s %s", k.group, newest, k.names.Kind)
	}
	return []string{text}
}
