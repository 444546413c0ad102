package resource

import (
	"context"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

type claim = resourcev1.ResourceClaim

// ResourceClaims ask for devices and tell which were given. Namespaces say
// whether access for administrators is allowed.
func ResourceClaims(state func() registry.State) *registry.Resource {
	main := registry.Behaviour[*claim]{
		Default: func(obj *claim) {
			defaultDevices(&obj.Spec.Devices)
			if a := obj.Status.Allocation; a != nil {
				for i := range a.Devices.Results {
					defaultTolerations(a.Devices.Results[i].Tolerations)
				}
			}
		},
		PrepareForCreate: func(_ context.Context, obj *claim) { obj.Status = resourcev1.ResourceClaimStatus{} },
		PrepareForUpdate: func(_ context.Context, obj, old *claim) { obj.Status = old.Status },
		Validate: func(ctx context.Context, obj *claim) field.ErrorList {
			path := field.NewPath("spec", "devices")
			errs := validateAdmin(ctx, state(), obj.Namespace, adminRequests(&obj.Spec.Devices, path))
			return append(errs, validateDevices(&obj.Spec.Devices, path)...)
		},
		// The spec cannot change, as its type declares.
		ResetFields: []string{"status"},
	}
	status := main
	status.PrepareForUpdate = func(_ context.Context, obj, old *claim) {
		obj.Spec = old.Spec
		metav1.ResetObjectMetaForStatus(obj, old)
		dropReturned(obj, old)
	}
	status.ValidateUpdate = func(ctx context.Context, obj, old *claim) field.ErrorList {
		errs := validateAdmin(ctx, state(), obj.Namespace, adminResults(obj, old))
		return append(errs, validateClaimStatus(obj, old)...)
	}
	status.ResetFields = []string{"spec"}
	return registry.Define(registry.Definition[*claim]{
		GroupVersion: v1, Resource: "resourceclaims", Kind: "ResourceClaim", Singular: "resourceclaim", Namespaced: true,
		ReturnDeleted: true,
		New:           func() *claim { return &claim{} },
		NewList:       func() runtime.Object { return &resourcev1.ResourceClaimList{} },
		KeyPrefix:     "/registry/resourceclaims",
		Strategy:      main,
		Columns: []metav1.TableColumnDefinition{
			table.Name(), table.String("State", "A summary of the current state (allocated, pending, reserved, etc.)."), table.Age(),
		},
		Row:          func(obj *claim) []any { return []any{obj.Name, stateCell(obj), table.Since(obj.CreationTimestamp)} },
		Subresources: []registry.Subresource{{Name: "status", Verbs: readWrite(), Update: registry.Erase(status)}},
	})
}

// ResourceClaimTemplates are what the claims of pods are made from.
func ResourceClaimTemplates(state func() registry.State) *registry.Resource {
	type template = resourcev1.ResourceClaimTemplate
	return registry.Define(registry.Definition[*template]{
		GroupVersion: v1, Resource: "resourceclaimtemplates", Kind: "ResourceClaimTemplate", Singular: "resourceclaimtemplate", Namespaced: true,
		ReturnDeleted: true,
		New:           func() *template { return &template{} },
		NewList:       func() runtime.Object { return &resourcev1.ResourceClaimTemplateList{} },
		KeyPrefix:     "/registry/resourceclaimtemplates",
		Strategy: registry.Behaviour[*template]{
			Default: func(obj *template) { defaultDevices(&obj.Spec.Spec.Devices) },
			Validate: func(ctx context.Context, obj *template) field.ErrorList {
				path := field.NewPath("spec", "spec", "devices")
				errs := validateAdmin(ctx, state(), obj.Namespace, adminRequests(&obj.Spec.Spec.Devices, path))
				at := field.NewPath("spec", "metadata")
				errs = append(errs, apivalidation.ValidateAnnotations(obj.Spec.Annotations, at.Child("annotations"))...)
				errs = append(errs, metav1validation.ValidateLabels(obj.Spec.Labels, at.Child("labels"))...)
				return append(errs, validateDevices(&obj.Spec.Spec.Devices, path)...)
			},
			ValidateUpdate: func(_ context.Context, obj, old *template) field.ErrorList {
				return apivalidation.ValidateImmutableField(obj.Spec, old.Spec, field.NewPath("spec"))
			},
		},
		Columns: []metav1.TableColumnDefinition{table.Name(), table.Age()},
		Row:     func(obj *template) []any { return []any{obj.Name, table.Since(obj.CreationTimestamp)} },
	})
}

func stateCell(obj *claim) string {
	var states []string
	if obj.DeletionTimestamp != nil {
		states = append(states, "deleted")
	}
	switch {
	case obj.Status.Allocation == nil && obj.DeletionTimestamp == nil:
		states = append(states, "pending")
	case obj.Status.Allocation != nil:
		states = append(states, "allocated")
		if len(obj.Status.ReservedFor) > 0 {
			states = append(states, "reserved")
		}
	}
	return strings.Join(states, ",")
}

func defaultDevices(devices *resourcev1.DeviceClaim) {
	for i := range devices.Requests {
		request := &devices.Requests[i]
		if e := request.Exactly; e != nil {
			defaultCount(&e.AllocationMode, &e.Count)
			defaultTolerations(e.Tolerations)
		}
		for j := range request.FirstAvailable {
			s := &request.FirstAvailable[j]
			defaultCount(&s.AllocationMode, &s.Count)
			defaultTolerations(s.Tolerations)
		}
	}
}

func defaultCount(mode *resourcev1.DeviceAllocationMode, count *int64) {
	if *mode == "" {
		*mode = resourcev1.DeviceAllocationModeExactCount
	}
	if *mode == resourcev1.DeviceAllocationModeExactCount && *count == 0 {
		*count = 1
	}
}

func defaultTolerations(list []resourcev1.DeviceToleration) {
	for i := range list {
		if list[i].Operator == "" {
			list[i].Operator = resourcev1.DeviceTolerationOpEqual
		}
	}
}

// device names one device, or one share of it.
type device struct{ driver, pool, name, share string }

func resultOf(r *resourcev1.DeviceRequestAllocationResult) device {
	return device{r.Driver, r.Pool, r.Device, string(ptr.Deref(r.ShareID, ""))}
}

func statusOf(s *resourcev1.AllocatedDeviceStatus) device {
	return device{s.Driver, s.Pool, s.Device, ptr.Deref(s.ShareID, "")}
}

func results(obj *claim) []resourcev1.DeviceRequestAllocationResult {
	if obj.Status.Allocation == nil {
		return nil
	}
	return obj.Status.Allocation.Devices.Results
}

// dropReturned drops what is told of devices that the update gives back.
func dropReturned(obj, old *claim) {
	unshared := func(r resourcev1.DeviceRequestAllocationResult) device { return device{r.Driver, r.Pool, r.Device, ""} }
	returned := map[device]bool{}
	for _, r := range results(old) {
		returned[unshared(r)] = true
	}
	for _, r := range results(obj) {
		delete(returned, unshared(r))
	}
	obj.Status.Devices = slices.DeleteFunc(obj.Status.Devices, func(s resourcev1.AllocatedDeviceStatus) bool {
		return returned[device{s.Driver, s.Pool, s.Device, ""}]
	})
	if len(obj.Status.Devices) == 0 {
		obj.Status.Devices = nil
	}
}
