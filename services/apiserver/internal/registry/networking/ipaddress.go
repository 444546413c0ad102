package networking

import (
	"context"

	networkingv1 "k8s.io/api/networking/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// IPAddresses are the addresses that are taken, each named after itself.
func IPAddresses() *registry.Resource {
	return registry.Define(registry.Definition[*networkingv1.IPAddress]{
		GroupVersion: v1, Resource: "ipaddresses", Kind: "IPAddress", Singular: "ipaddress", ShortNames: []string{"ip"},
		New:       func() *networkingv1.IPAddress { return &networkingv1.IPAddress{} },
		NewList:   func() runtime.Object { return &networkingv1.IPAddressList{} },
		KeyPrefix: "/registry/ipaddresses",
		Strategy: registry.Behaviour[*networkingv1.IPAddress]{
			Validate: func(_ context.Context, obj *networkingv1.IPAddress) field.ErrorList { return validateAddress(obj) },
			ValidateUpdate: func(_ context.Context, obj, old *networkingv1.IPAddress) field.ErrorList {
				errs := validateAddress(obj)
				if !apiequality.Semantic.DeepEqual(obj.Spec.ParentRef, old.Spec.ParentRef) {
					errs = append(errs, field.Invalid(field.NewPath("spec", "parentRef"), obj.Spec.ParentRef, "field is immutable"))
				}
				return errs
			},
			ValidateName: func(name string, _ bool) []string {
				var msgs []string
				for _, err := range utilvalidation.IsValidIP(&field.Path{}, name) {
					msgs = append(msgs, err.Detail)
				}
				return msgs
			},
		},
		Columns: []metav1.TableColumnDefinition{
			table.Name(), table.String("ParentRef", networkingv1.IPAddressSpec{}.SwaggerDoc()["parentRef"]),
		},
		Row: func(obj *networkingv1.IPAddress) []any { return []any{obj.Name, parentCell(obj.Spec.ParentRef)} },
	})
}

// parentCell is a parent as "resource.group/namespace/name", without what it
// lacks.
func parentCell(parent *networkingv1.ParentReference) string {
	if parent == nil {
		return table.None
	}
	cell := parent.Resource
	if parent.Group != "" {
		cell += "." + parent.Group
	}
	if parent.Namespace != "" {
		cell += "/" + parent.Namespace
	}
	return cell + "/" + parent.Name
}

func validateAddress(obj *networkingv1.IPAddress) field.ErrorList {
	parent, path := obj.Spec.ParentRef, field.NewPath("spec", "parentRef")
	if parent == nil {
		return field.ErrorList{field.Required(path, "")}
	}
	var errs field.ErrorList
	if parent.Group != "" {
		errs = append(errs, dnsSubdomain(parent.Group, path.Child("group"))...)
	}
	errs = append(errs, pathSegment(parent.Resource, path.Child("resource"))...)
	errs = append(errs, pathSegment(parent.Name, path.Child("name"))...)
	if parent.Namespace != "" {
		errs = append(errs, pathSegment(parent.Namespace, path.Child("namespace"))...)
	}
	return errs
}

// pathSegment wants a name that can stand in a path.
func pathSegment(value string, path *field.Path) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return invalid(path, value, content.IsPathSegmentName(value))
}
