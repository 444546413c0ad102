package networking

import (
	"context"
	"fmt"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// Ingresses route HTTP from outside to Services.
func Ingresses() *registry.Resource {
	status := ingressBehaviour()
	status.PrepareForUpdate = func(_ context.Context, obj, old *networkingv1.Ingress) { obj.Spec = old.Spec }
	status.ValidateUpdate = func(_ context.Context, obj, _ *networkingv1.Ingress) field.ErrorList {
		return validateIngressStatus(&obj.Status)
	}
	status.ResetFields = []string{"spec"}
	status.SpecOf, status.Warnings = nil, nil
	return registry.Define(registry.Definition[*networkingv1.Ingress]{
		GroupVersion: v1, Resource: "ingresses", Kind: "Ingress", Singular: "ingress", ShortNames: []string{"ing"},
		Namespaced: true,
		New:        func() *networkingv1.Ingress { return &networkingv1.Ingress{} },
		NewList:    func() runtime.Object { return &networkingv1.IngressList{} },
		KeyPrefix:  "/registry/ingress",
		Strategy:   ingressBehaviour(),
		Columns: []metav1.TableColumnDefinition{
			table.Name(),
			table.String("Class", "The name of the IngressClass resource that should be used for additional configuration"),
			table.String("Hosts", "Hosts that incoming requests are matched against before the ingress rule"),
			table.String("Address", "Address is a list containing ingress points for the load-balancer"),
			table.String("Ports", "Ports of TLS configurations that open"),
			table.Age(),
		},
		Row: func(obj *networkingv1.Ingress) []any {
			ports := "80"
			if len(obj.Spec.TLS) != 0 {
				ports = "80, 443"
			}
			class := table.None
			if obj.Spec.IngressClassName != nil {
				class = *obj.Spec.IngressClassName
			}
			return []any{obj.Name, class, hosts(obj.Spec.Rules), addresses(obj), ports, table.Since(obj.CreationTimestamp)}
		},
		Subresources: []registry.Subresource{
			{Name: "status", Verbs: []string{"get", "patch", "update"}, Update: registry.Erase(status)},
		},
	})
}

// shownHosts is how many hosts a cell shows.
const shownHosts = 3

func hosts(rules []networkingv1.IngressRule) string {
	var list []string
	more := false
	for _, rule := range rules {
		if len(list) == shownHosts {
			more = true
		}
		if !more && rule.Host != "" {
			list = append(list, rule.Host)
		}
	}
	if len(list) == 0 {
		return "*"
	}
	text := strings.Join(list, ",")
	if more {
		return fmt.Sprintf("%s + %d more...", text, len(rules)-shownHosts)
	}
	return text
}

func addresses(obj *networkingv1.Ingress) string {
	var list []string
	for _, i := range obj.Status.LoadBalancer.Ingress {
		if i.IP != "" {
			list = append(list, i.IP)
		} else if i.Hostname != "" {
			list = append(list, i.Hostname)
		}
	}
	slices.Sort(list)
	return strings.Join(slices.Compact(list), ",")
}

func ingressBehaviour() registry.Behaviour[*networkingv1.Ingress] {
	return registry.Behaviour[*networkingv1.Ingress]{
		PrepareForCreate: func(_ context.Context, obj *networkingv1.Ingress) { obj.Status = networkingv1.IngressStatus{} },
		PrepareForUpdate: func(_ context.Context, obj, old *networkingv1.Ingress) { obj.Status = old.Status },
		Validate:         func(_ context.Context, obj *networkingv1.Ingress) field.ErrorList { return validateIngressCreate(obj) },
		ValidateUpdate:   func(_ context.Context, obj, _ *networkingv1.Ingress) field.ErrorList { return validateIngress(obj) },
		Warnings:         warnOfIngress,
		SpecOf:           func(obj *networkingv1.Ingress) any { return &obj.Spec },
		ResetFields:      []string{"status"},
	}
}

const classAnnotation = "kubernetes.io/ingress.class"

func warnOfIngress(_ context.Context, obj, old *networkingv1.Ingress) []string {
	if _, set := obj.Annotations[classAnnotation]; !set {
		return nil
	}
	if old != nil {
		if _, before := old.Annotations[classAnnotation]; before {
			return nil
		}
	}
	return []string{fmt.Sprintf("annotation %q is deprecated, please use 'spec.ingressClassName' instead", classAnnotation)}
}
