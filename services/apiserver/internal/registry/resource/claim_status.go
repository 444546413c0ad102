package resource

import (
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/types"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
)

func conditions(list []metav1.Condition, path *field.Path) field.ErrorList {
	return metav1validation.ValidateConditions(list, path)
}

func validateClaimStatus(obj, old *claim) field.ErrorList {
	path := field.NewPath("status")
	errs := unique(obj.Status.ReservedFor, resourcev1.ResourceClaimReservedForMaxSize, path.Child("reservedFor"),
		func(r *resourcev1.ResourceClaimConsumerReference) types.UID { return r.UID }, validateConsumer)
	allocated := map[device]bool{}
	for _, r := range results(obj) {
		allocated[resultOf(&r)] = true
	}
	errs = append(errs, unique(obj.Status.Devices, 0, path.Child("devices"), statusOf, func(s *resourcev1.AllocatedDeviceStatus, at *field.Path) field.ErrorList {
		return validateDeviceStatus(s, allocated, at)
	})...)
	errs = append(errs, validateReserved(obj, old, path.Child("reservedFor"))...)
	// One that was stored cannot change, as its type declares.
	if a := obj.Status.Allocation; a != nil && old.Status.Allocation == nil {
		errs = append(errs, validateAllocation(a, namesOf(&obj.Spec.Devices), path.Child("allocation"))...)
	}
	return errs
}

func validateReserved(obj, old *claim, path *field.Path) field.ErrorList {
	switch {
	case len(obj.Status.ReservedFor) == 0:
		return nil
	case obj.Status.Allocation == nil:
		return field.ErrorList{field.Forbidden(path, "may not be specified when `allocated` is not set")}
	case obj.DeletionTimestamp == nil:
		return nil
	}
	for _, r := range obj.Status.ReservedFor {
		if !slices.Contains(old.Status.ReservedFor, r) {
			return field.ErrorList{field.Forbidden(path, "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set")}
		}
	}
	return nil
}

func validateConsumer(r *resourcev1.ResourceClaimConsumerReference, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for name, value := range map[string]string{"resource": r.Resource, "name": r.Name, "uid": string(r.UID)} {
		if value == "" {
			errs = append(errs, field.Required(path.Child(name), ""))
		}
	}
	return errs
}

func validateDeviceStatus(s *resourcev1.AllocatedDeviceStatus, allocated map[device]bool, path *field.Path) field.ErrorList {
	errs := podspec.ValidateCSIDriverName(s.Driver, path.Child("driver"))
	errs = append(errs, validatePoolName(s.Pool, path.Child("pool"))...)
	errs = append(errs, label(s.Device, path.Child("device"))...)
	if d := statusOf(s); !allocated[d] {
		name := d.driver + "/" + d.pool + "/" + d.name
		if d.share != "" {
			name += "/" + d.share
		}
		errs = append(errs, field.Invalid(path, name, "must be an allocated device in the claim"))
	}
	errs = append(errs, validateConditions(s.Conditions, resourcev1.AllocatedDeviceStatusMaxConditions, path.Child("conditions"))...)
	if s.Data != nil && len(s.Data.Raw) > 0 {
		errs = append(errs, validateRaw(s.Data, path.Child("data"), false, resourcev1.AllocatedDeviceStatusDataMaxLength)...)
	}
	if n := s.NetworkData; n != nil {
		errs = append(errs, unique(n.IPs, resourcev1.NetworkDeviceDataMaxIPs, path.Child("networkData", "ips"), func(s *string) string { return *s },
			func(ip *string, at *field.Path) field.ErrorList {
				return utilvalidation.IsValidInterfaceAddress(at, *ip)
			})...)
	}
	return errs
}

func validateAllocation(a *resourcev1.AllocationResult, names requestNames, path *field.Path) field.ErrorList {
	at := path.Child("devices")
	errs := each(a.Devices.Results, resourcev1.AllocationResultsMaxSize, at.Child("results"), func(r *resourcev1.DeviceRequestAllocationResult, p *field.Path) field.ErrorList {
		errs := names.validateReference(&r.Request, p.Child("request"))
		errs = append(errs, podspec.ValidateCSIDriverName(r.Driver, p.Child("driver"))...)
		errs = append(errs, validatePoolName(r.Pool, p.Child("pool"))...)
		errs = append(errs, label(r.Device, p.Child("device"))...)
		errs = append(errs, validateBinding(r.BindingConditions, r.BindingFailureConditions, p)...)
		errs = append(errs, each(r.Tolerations, 0, p.Child("tolerations"), validateToleration)...)
		return append(errs, validateSkipped(r.SkipNodeOperations, p.Child("skipNodeOperations"))...)
	})
	errs = append(errs, each(a.Devices.Config, 2*resourcev1.DeviceConfigMaxSize, at.Child("config"), func(c *resourcev1.DeviceAllocationConfiguration, p *field.Path) field.ErrorList {
		errs := names.validateReferences(c.Requests, p.Child("requests"))
		return append(errs, validateConfiguration(&c.DeviceConfiguration, p, false)...)
	})...)
	if a.NodeSelector != nil {
		errs = append(errs, podspec.ValidateNodeSelector(a.NodeSelector, path.Child("nodeSelector"))...)
	}
	return errs
}

// validateBinding checks the conditions that a device waits for, or fails by.
func validateBinding(wanted, failing []string, path *field.Path) field.ErrorList {
	name := func(s *string, at *field.Path) field.ErrorList { return metav1validation.ValidateLabelName(*s, at) }
	same := func(s *string) string { return *s }
	at, failed := path.Child("bindingConditions"), path.Child("bindingFailureConditions")
	errs := unique(wanted, resourcev1.BindingConditionsMaxSize, at, same, name)
	errs = append(errs, unique(failing, resourcev1.BindingFailureConditionsMaxSize, failed, same, name)...)
	for i, condition := range failing {
		if slices.Contains(wanted, condition) {
			errs = append(errs, field.Invalid(failed.Index(i), condition, "bindingFailureConditions must not overlap with bindingConditions"))
		}
	}
	if len(wanted) == 0 && len(failing) > 0 {
		errs = append(errs, field.Invalid(at, wanted, "bindingConditions are required to use bindingFailureConditions"))
	}
	if len(failing) == 0 && len(wanted) > 0 {
		errs = append(errs, field.Invalid(failed, failing, "bindingFailureConditions are required to use bindingConditions"))
	}
	return errs
}

func validateSkipped(list []resourcev1.SkipNodeOperation, path *field.Path) field.ErrorList {
	if slices.Contains(list, resourcev1.SkipNodeOperationNodePrepareResources) &&
		!slices.Contains(list, resourcev1.SkipNodeOperationNodeUnprepareResources) && !slices.Contains(list, resourcev1.SkipNodeOperationAll) {
		return field.ErrorList{field.Invalid(path, list, "NodePrepareResources cannot be skipped unless NodeUnprepareResources is also skipped")}
	}
	return nil
}
