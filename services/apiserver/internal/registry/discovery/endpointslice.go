// Package discovery has the kinds of discovery.k8s.io.
package discovery

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// EndpointSlices are parts of the addresses behind a Service.
func EndpointSlices() *registry.Resource {
	return registry.Define(registry.Definition[*discoveryv1.EndpointSlice]{
		GroupVersion: discoveryv1.SchemeGroupVersion, Resource: "endpointslices", Kind: "EndpointSlice", Singular: "endpointslice",
		Namespaced: true,
		New:        func() *discoveryv1.EndpointSlice { return &discoveryv1.EndpointSlice{} },
		NewList:    func() runtime.Object { return &discoveryv1.EndpointSliceList{} },
		KeyPrefix:  "/registry/endpointslices",
		Strategy: registry.Behaviour[*discoveryv1.EndpointSlice]{
			Default: defaultSlice,
			Validate: func(_ context.Context, obj *discoveryv1.EndpointSlice) field.ErrorList {
				return validateSlice(obj, nil)
			},
			ValidateUpdate: func(_ context.Context, obj, old *discoveryv1.EndpointSlice) field.ErrorList {
				errs := validateSlice(obj, old)
				if obj.AddressType != old.AddressType {
					errs = append(errs, field.Invalid(field.NewPath("addressType"), obj.AddressType, "field is immutable"))
				}
				return errs
			},
			SpecOf: sliceContent,
		},
		Columns: []metav1.TableColumnDefinition{
			table.Name(),
			table.String("AddressType", discoveryv1.EndpointSlice{}.SwaggerDoc()["addressType"]),
			table.String("Ports", discoveryv1.EndpointSlice{}.SwaggerDoc()["ports"]),
			table.String("Endpoints", discoveryv1.EndpointSlice{}.SwaggerDoc()["endpoints"]),
			table.Age(),
		},
		Row: func(obj *discoveryv1.EndpointSlice) []any {
			return []any{obj.Name, string(obj.AddressType), formatPorts(obj.Ports), formatEndpoints(obj.Endpoints), table.Since(obj.CreationTimestamp)}
		},
	})
}

func defaultSlice(obj *discoveryv1.EndpointSlice) {
	for i := range obj.Ports {
		if obj.Ports[i].Name == nil {
			obj.Ports[i].Name = ptr.To("")
		}
		if obj.Ports[i].Protocol == nil {
			obj.Ports[i].Protocol = ptr.To(corev1.ProtocolTCP)
		}
	}
}

// sliceContent is all but the metadata, and those labels and annotations that
// are not the controllers' bookkeeping: changes of it bump the generation.
func sliceContent(obj *discoveryv1.EndpointSlice) any {
	labels := map[string]string{}
	for key, value := range obj.Labels {
		labels[key] = value
	}
	return []any{obj.AddressType, obj.Endpoints, obj.Ports, labels}
}

// shown is how many ports or endpoints a cell shows.
const shown = 3

func formatPorts(ports []discoveryv1.EndpointPort) string {
	var list []string
	for i, port := range ports {
		if i == shown {
			break
		}
		switch {
		case port.Port != nil:
			list = append(list, strconv.Itoa(int(*port.Port)))
		case port.Name != nil:
			list = append(list, *port.Name)
		default:
			list = append(list, "*")
		}
	}
	return more(list, len(ports))
}

func formatEndpoints(endpoints []discoveryv1.Endpoint) string {
	var list []string
	count := 0
	for _, endpoint := range endpoints {
		for _, address := range endpoint.Addresses {
			if count++; count <= shown {
				list = append(list, address)
			}
		}
	}
	return more(list, count)
}

func more(list []string, count int) string {
	text := strings.Join(list, ",")
	if count > shown {
		return fmt.Sprintf("%s + %d more...", text, count-shown)
	}
	if text == "" {
		return "<unset>"
	}
	return text
}
