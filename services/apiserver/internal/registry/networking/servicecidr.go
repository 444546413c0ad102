package networking

import (
	"context"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// ServiceCIDRs are the ranges that cluster IPs come from.
func ServiceCIDRs() *registry.Resource {
	status := rangeBehaviour()
	status.PrepareForUpdate = func(_ context.Context, obj, old *networkingv1.ServiceCIDR) {
		obj.Spec = old.Spec
		metav1.ResetObjectMetaForStatus(obj, old)
	}
	status.ValidateUpdate = nil
	status.ResetFields = []string{"spec"}
	return registry.Define(registry.Definition[*networkingv1.ServiceCIDR]{
		GroupVersion: v1, Resource: "servicecidrs", Kind: "ServiceCIDR", Singular: "servicecidr",
		New:       func() *networkingv1.ServiceCIDR { return &networkingv1.ServiceCIDR{} },
		NewList:   func() runtime.Object { return &networkingv1.ServiceCIDRList{} },
		KeyPrefix: "/registry/servicecidrs",
		Strategy:  rangeBehaviour(),
		Columns: []metav1.TableColumnDefinition{
			table.Name(), table.String("CIDRs", networkingv1.ServiceCIDRSpec{}.SwaggerDoc()["cidrs"]), table.Age(),
		},
		Row: func(obj *networkingv1.ServiceCIDR) []any {
			return []any{obj.Name, strings.Join(obj.Spec.CIDRs, ","), table.Since(obj.CreationTimestamp)}
		},
		Subresources: []registry.Subresource{
			{Name: "status", Verbs: []string{"get", "patch", "update"}, Update: registry.Erase(status)},
		},
	})
}

func rangeBehaviour() registry.Behaviour[*networkingv1.ServiceCIDR] {
	return registry.Behaviour[*networkingv1.ServiceCIDR]{
		Validate: func(_ context.Context, obj *networkingv1.ServiceCIDR) field.ErrorList { return validateRange(obj) },
		ValidateUpdate: func(_ context.Context, obj, old *networkingv1.ServiceCIDR) field.ErrorList {
			return validateRangeUpdate(obj, old)
		},
		ResetFields: []string{"status"},
	}
}

func validateRange(obj *networkingv1.ServiceCIDR) field.ErrorList {
	cidrs, path := obj.Spec.CIDRs, field.NewPath("spec", "cidrs")
	switch len(cidrs) {
	case 0:
		return field.ErrorList{field.Required(path, "at least one CIDR required")}
	case 1:
	case 2:
		if dual, err := netutils.IsDualStackCIDRStrings(cidrs); err != nil || !dual {
			return field.ErrorList{field.Invalid(path, obj.Spec, "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64")}
		}
	default:
		return field.ErrorList{field.Invalid(path, obj.Spec, "may only hold up to 2 values")}
	}
	var errs field.ErrorList
	for i, cidr := range cidrs {
		errs = append(errs, utilvalidation.IsValidCIDR(path.Index(i), cidr)...)
	}
	return errs
}

// validateRangeUpdate lets a range of one family gain one of the other, and
// nothing else change.
func validateRangeUpdate(obj, old *networkingv1.ServiceCIDR) field.ErrorList {
	now, was, path := obj.Spec.CIDRs, old.Spec.CIDRs, field.NewPath("spec", "cidrs")
	const immutable = "field is immutable"
	if len(now) != len(was) && (len(was) != 1 || len(now) != 2) {
		return field.ErrorList{field.Invalid(path, now, immutable)}
	}
	var errs field.ErrorList
	for i := range was {
		if now[i] != was[i] {
			errs = append(errs, field.Invalid(path.Index(i), now[i], immutable))
		}
	}
	if len(now) != len(was) {
		errs = append(errs, validateRange(obj)...)
	}
	return errs
}
