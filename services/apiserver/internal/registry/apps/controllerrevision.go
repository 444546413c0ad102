package apps

import (
	"context"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// ControllerRevisions keep past states of what daemon and stateful sets make.
func ControllerRevisions() *registry.Resource {
	return registry.Define(registry.Definition[*appsv1.ControllerRevision]{
		GroupVersion: v1, Resource: "controllerrevisions", Kind: "ControllerRevision", Singular: "controllerrevision",
		Namespaced: true,
		New:        func() *appsv1.ControllerRevision { return &appsv1.ControllerRevision{} },
		NewList:    func() runtime.Object { return &appsv1.ControllerRevisionList{} },
		KeyPrefix:  "/registry/controllerrevisions",
		Strategy: registry.Behaviour[*appsv1.ControllerRevision]{
			Validate: func(_ context.Context, obj *appsv1.ControllerRevision) field.ErrorList { return validateRevision(obj) },
			ValidateUpdate: func(_ context.Context, obj, old *appsv1.ControllerRevision) field.ErrorList {
				errs := apivalidation.ValidateNonnegativeField(obj.Revision, field.NewPath("revision"))
				if !apiequality.Semantic.DeepEqual(obj.Data, old.Data) {
					errs = append(errs, field.Invalid(field.NewPath("data"), obj.Data, "field is immutable"))
				}
				return errs
			},
		},
		Columns: []metav1.TableColumnDefinition{
			table.Name(),
			table.String("Controller", "Controller of the object"),
			table.String("Revision", appsv1.ControllerRevision{}.SwaggerDoc()["revision"]),
			table.Age(),
		},
		Row: func(obj *appsv1.ControllerRevision) []any {
			return []any{obj.Name, controllerOf(obj), obj.Revision, table.Since(obj.CreationTimestamp)}
		},
	})
}

func validateRevision(obj *appsv1.ControllerRevision) field.ErrorList {
	errs := apivalidation.ValidateNonnegativeField(obj.Revision, field.NewPath("revision"))
	if obj.Data.Object == nil && len(obj.Data.Raw) == 0 {
		errs = append(errs, field.Required(field.NewPath("data"), "data is mandatory"))
	}
	return errs
}

// controllerOf names an object's controller as kind.group/name.
func controllerOf(obj metav1.Object) string {
	ref := metav1.GetControllerOf(obj)
	if ref == nil {
		return table.None
	}
	group, _ := schema.ParseGroupVersion(ref.APIVersion) // one that cannot be parsed shows without group
	kind := schema.GroupKind{Group: group.Group, Kind: ref.Kind}
	return strings.ToLower(kind.String()) + "/" + ref.Name
}

func podspecDoc(name string) string { return corev1.PodSpec{}.SwaggerDoc()[name] }
