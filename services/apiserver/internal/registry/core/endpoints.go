package core

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// Endpoints are the addresses behind a Service in the form that EndpointSlices
// replaced.
func Endpoints() *registry.Resource {
	return registry.Define(registry.Definition[*corev1.Endpoints]{
		GroupVersion: v1, Resource: "endpoints", Kind: "Endpoints", Singular: "endpoints", ShortNames: []string{"ep"},
		Namespaced: true,
		New:        func() *corev1.Endpoints { return &corev1.Endpoints{} },
		NewList:    func() runtime.Object { return &corev1.EndpointsList{} },
		KeyPrefix:  "/registry/services/endpoints",
		Strategy: registry.Behaviour[*corev1.Endpoints]{
			Default: defaultEndpoints,
			Validate: func(_ context.Context, obj *corev1.Endpoints) field.ErrorList {
				return validateEndpoints(obj)
			},
			ValidateUpdate: func(_ context.Context, obj, _ *corev1.Endpoints) field.ErrorList {
				return validateEndpoints(obj)
			},
			ValidateName:        apivalidation.NameIsDNSSubdomain,
			AllowCreateOnUpdate: true,
			Warnings:            warnOfEndpoints,
		},
		Columns: []metav1.TableColumnDefinition{
			table.Name(), table.String("Endpoints", corev1.Endpoints{}.SwaggerDoc()["subsets"]), table.Age(),
		},
		Row: func(obj *corev1.Endpoints) []any {
			return []any{obj.Name, formatEndpoints(obj), table.Since(obj.CreationTimestamp)}
		},
	})
}

func defaultEndpoints(obj *corev1.Endpoints) {
	for i := range obj.Subsets {
		for j := range obj.Subsets[i].Ports {
			if port := &obj.Subsets[i].Ports[j]; port.Protocol == "" {
				port.Protocol = corev1.ProtocolTCP
			}
		}
	}
}

// shownEndpoints is how many addresses a cell shows.
const shownEndpoints = 3

func formatEndpoints(obj *corev1.Endpoints) string {
	if len(obj.Subsets) == 0 {
		return table.None
	}
	var list []string
	count := 0
	add := func(s string) {
		if count++; count <= shownEndpoints {
			list = append(list, s)
		}
	}
	for _, subset := range obj.Subsets {
		for _, address := range subset.Addresses {
			if len(subset.Ports) == 0 {
				add(address.IP)
			}
		}
		for _, port := range subset.Ports {
			for _, address := range subset.Addresses {
				add(net.JoinHostPort(address.IP, strconv.Itoa(int(port.Port))))
			}
		}
	}
	text := strings.Join(list, ",")
	if count > shownEndpoints {
		return fmt.Sprintf("%s + %d more...", text, count-shownEndpoints)
	}
	return text
}

// endpointsManagedBy marks Endpoints that a controller makes.
const endpointsManagedBy = "endpoints.kubernetes.io/managed-by"

func warnOfEndpoints(_ context.Context, obj, _ *corev1.Endpoints) []string {
	if obj.Labels[endpointsManagedBy] != "" || obj.Annotations["control-plane.alpha.kubernetes.io/leader"] != "" {
		return nil
	}
	return []string{"v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"}
}
