package networking

import (
	"context"

	networkingv1 "k8s.io/api/networking/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// maxController bounds the name of an ingress controller, in bytes.
const maxController = 250

// IngressClasses name who handles ingresses.
func IngressClasses() *registry.Resource {
	return registry.Define(registry.Definition[*networkingv1.IngressClass]{
		GroupVersion: v1, Resource: "ingressclasses", Kind: "IngressClass", Singular: "ingressclass",
		New:       func() *networkingv1.IngressClass { return &networkingv1.IngressClass{} },
		NewList:   func() runtime.Object { return &networkingv1.IngressClassList{} },
		KeyPrefix: "/registry/ingressclasses",
		Strategy: registry.Behaviour[*networkingv1.IngressClass]{
			Default: func(obj *networkingv1.IngressClass) {
				if p := obj.Spec.Parameters; p != nil && p.Scope == nil {
					p.Scope = ptr.To(networkingv1.IngressClassParametersReferenceScopeCluster)
				}
			},
			Validate: func(_ context.Context, obj *networkingv1.IngressClass) field.ErrorList { return validateClass(obj) },
			ValidateUpdate: func(_ context.Context, obj, old *networkingv1.IngressClass) field.ErrorList {
				return append(validateClass(obj), apivalidation.ValidateImmutableField(obj.Spec.Controller, old.Spec.Controller, field.NewPath("spec", "controller"))...)
			},
			SpecOf: func(obj *networkingv1.IngressClass) any { return &obj.Spec },
		},
		Columns: []metav1.TableColumnDefinition{
			table.Name(),
			table.String("Controller", "Controller that is responsible for handling this class"),
			table.String("Parameters", "A reference to a resource with additional parameters"),
			table.Age(),
		},
		Row: func(obj *networkingv1.IngressClass) []any {
			parameters := table.None
			if p := obj.Spec.Parameters; p != nil {
				parameters = p.Kind
				if p.APIGroup != nil {
					parameters += "." + *p.APIGroup
				}
				parameters += "/" + p.Name
			}
			return []any{obj.Name, obj.Spec.Controller, parameters, table.Since(obj.CreationTimestamp)}
		},
	})
}

func validateClass(obj *networkingv1.IngressClass) field.ErrorList {
	path := field.NewPath("spec")
	var errs field.ErrorList
	if len(obj.Spec.Controller) > maxController {
		errs = append(errs, field.TooLong(path.Child("controller"), "", maxController))
	}
	errs = append(errs, utilvalidation.IsDomainPrefixedPath(path.Child("controller"), obj.Spec.Controller)...)
	p := obj.Spec.Parameters
	if p == nil {
		return errs
	}
	at := path.Child("parameters")
	if p.APIGroup != nil {
		errs = append(errs, dnsSubdomain(*p.APIGroup, at.Child("apiGroup"))...)
	}
	if p.Kind == "" {
		errs = append(errs, field.Required(at.Child("kind"), "kind is required"))
	}
	if p.Name == "" {
		errs = append(errs, field.Required(at.Child("name"), "name is required"))
	}
	if p.Scope == nil {
		return append(errs, field.Required(at.Child("scope"), ""))
	}
	errs = append(errs, oneOf(*p.Scope, at.Child("scope"), networkingv1.IngressClassParametersReferenceScopeCluster, networkingv1.IngressClassParametersReferenceScopeNamespace)...)
	namespace := table.Value(p.Namespace)
	switch *p.Scope {
	case networkingv1.IngressClassParametersReferenceScopeNamespace:
		if namespace == "" {
			errs = append(errs, field.Required(at.Child("namespace"), "`parameters.scope` is set to 'Namespace'"))
		} else {
			errs = append(errs, invalid(at.Child("namespace"), namespace, apivalidation.ValidateNamespaceName(namespace, false))...)
		}
	case networkingv1.IngressClassParametersReferenceScopeCluster:
		if p.Namespace != nil {
			errs = append(errs, field.Forbidden(at.Child("namespace"), "`parameters.scope` is set to 'Cluster'"))
		}
	}
	return errs
}
