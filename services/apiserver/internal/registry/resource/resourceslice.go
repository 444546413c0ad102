package resource

import (
	"context"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

type slice = resourcev1.ResourceSlice

// ResourceSlices are the devices that drivers offer.
func ResourceSlices() *registry.Resource {
	doc := resourcev1.ResourceSliceSpec{}.SwaggerDoc()
	return registry.Define(registry.Definition[*slice]{
		GroupVersion: v1, Resource: "resourceslices", Kind: "ResourceSlice", Singular: "resourceslice",
		ReturnDeleted: true,
		New:           func() *slice { return &slice{} },
		NewList:       func() runtime.Object { return &resourcev1.ResourceSliceList{} },
		KeyPrefix:     "/registry/resourceslices",
		Fields: func(obj *slice) fields.Set {
			return fields.Set{
				resourcev1.ResourceSliceSelectorNodeName: ptr.Deref(obj.Spec.NodeName, ""),
				resourcev1.ResourceSliceSelectorDriver:   obj.Spec.Driver,
				resourcev1.ResourceSliceSelectorPoolName: obj.Spec.Pool.Name,
			}
		},
		Indexed: []string{resourcev1.ResourceSliceSelectorNodeName},
		Strategy: registry.Behaviour[*slice]{
			Default: func(obj *slice) {
				for i := range obj.Spec.Devices {
					for j := range obj.Spec.Devices[i].Taints {
						defaultTaint(&obj.Spec.Devices[i].Taints[j])
					}
				}
			},
			Validate:       func(_ context.Context, obj *slice) field.ErrorList { return validateSlice(&obj.Spec, nil) },
			ValidateUpdate: func(_ context.Context, obj, old *slice) field.ErrorList { return validateSlice(&obj.Spec, &old.Spec) },
			SpecOf:         func(obj *slice) any { return &obj.Spec },
		},
		Columns: []metav1.TableColumnDefinition{
			table.Name(),
			table.String("Node", doc["nodeName"]),
			table.String("Driver", doc["driver"]),
			table.String("Pool", resourcev1.ResourcePool{}.SwaggerDoc()["name"]),
			table.Age(),
		},
		Row: func(obj *slice) []any {
			var node any // null where a slice is not one node's
			if obj.Spec.NodeName != nil {
				node = *obj.Spec.NodeName
			}
			return []any{obj.Name, node, obj.Spec.Driver, obj.Spec.Pool.Name, table.Since(obj.CreationTimestamp)}
		},
	})
}
