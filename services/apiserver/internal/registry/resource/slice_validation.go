package resource

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
)

func validateSlice(spec, old *resourcev1.ResourceSliceSpec) field.ErrorList {
	path := field.NewPath("spec")
	errs := podspec.ValidateCSIDriverName(spec.Driver, path.Child("driver"))
	errs = append(errs, validatePool(&spec.Pool, path.Child("pool"))...)
	if old != nil {
		errs = append(errs, apivalidation.ValidateImmutableField(spec.Pool.Name, old.Pool.Name, path.Child("pool", "name"))...)
		errs = append(errs, apivalidation.ValidateImmutableField(spec.Driver, old.Driver, path.Child("driver"))...)
		errs = append(errs, apivalidation.ValidateImmutableField(spec.NodeName, old.NodeName, path.Child("nodeName"))...)
	}
	errs = append(errs, validateNodes(spec, path)...)
	if spec.SharedCounters != nil && spec.Devices != nil {
		errs = append(errs, field.Invalid(path, "", "only one of `sharedCounters` or `devices` is allowed"))
	}
	errs = append(errs, unique(spec.Devices, mostDevices(spec.Devices), path.Child("devices"), func(d *resourcev1.Device) string { return d.Name },
		func(d *resourcev1.Device, at *field.Path) field.ErrorList {
			return validateDevice(d, deviceOf(old, d.Name), spec.PerDeviceNodeSelection != nil && *spec.PerDeviceNodeSelection, at)
		})...)
	errs = append(errs, unique(spec.SharedCounters, resourcev1.ResourceSliceMaxCounterSets, path.Child("sharedCounters"),
		func(s *resourcev1.CounterSet) string { return s.Name },
		func(s *resourcev1.CounterSet, at *field.Path) field.ErrorList {
			return validateCounters(s.Counters, resourcev1.ResourceSliceMaxCountersPerCounterSet, at.Child("counters"))
		})...)
	return append(errs, validateSkipped(spec.SkipNodeOperations, path.Child("skipNodeOperations"))...)
}

func validatePool(pool *resourcev1.ResourcePool, path *field.Path) field.ErrorList {
	errs := validatePoolName(pool.Name, path.Child("name"))
	if pool.ResourceSliceCount <= 0 {
		errs = append(errs, field.Invalid(path.Child("resourceSliceCount"), pool.ResourceSliceCount, "must be greater than zero"))
	}
	if pool.Generation < 0 {
		errs = append(errs, field.Invalid(path.Child("generation"), pool.Generation, "must be greater than or equal to zero"))
	}
	return errs
}

func validatePoolName(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	var errs field.ErrorList
	if len(name) > resourcev1.PoolNameMaxLength {
		errs = append(errs, field.TooLong(path, "", resourcev1.PoolNameMaxLength))
	}
	for _, part := range strings.Split(name, "/") {
		errs = append(errs, subdomain(part, path)...)
	}
	return errs
}

// validateNodes wants one way to say which nodes reach the devices.
func validateNodes(spec *resourcev1.ResourceSliceSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	var set []string
	if name := spec.NodeName; name != nil && *name == "" {
		errs = append(errs, field.Invalid(path.Child("nodeName"), *name, "must be either unset or set to a non-empty string"))
	} else if name != nil {
		set = append(set, "`nodeName`")
		errs = append(errs, subdomain(*name, path.Child("nodeName"))...)
	}
	if s := spec.NodeSelector; s != nil {
		set = append(set, "`nodeSelector`")
		errs = append(errs, podspec.ValidateNodeSelector(s, path.Child("nodeSelector"))...)
		if len(s.NodeSelectorTerms) != 1 {
			errs = append(errs, field.Invalid(path.Child("nodeSelector", "nodeSelectorTerms"), s.NodeSelectorTerms, "must have exactly one node selector term"))
		}
	}
	for _, flag := range []struct {
		name  string
		value *bool
	}{{"allNodes", spec.AllNodes}, {"perDeviceNodeSelection", spec.PerDeviceNodeSelection}} {
		switch {
		case flag.value == nil:
		case *flag.value:
			set = append(set, "`"+flag.name+"`")
		default:
			errs = append(errs, field.Invalid(path.Child(flag.name), *flag.value, "must be either unset or set to true"))
		}
	}
	return append(errs, exactlyOne(set, path, "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required", ", but multiple fields are set")...)
}

// mostDevices is how many devices a slice may have: fewer when one of them takes
// more to decide about.
func mostDevices(devices []resourcev1.Device) int {
	for _, d := range devices {
		if len(d.Taints) > 0 || len(d.ConsumesCounters) > 0 {
			return resourcev1.ResourceSliceMaxDevicesWithAdvancedFeatures
		}
		for _, a := range d.Attributes {
			if a.BoolValues != nil || a.IntValues != nil || a.StringValues != nil || a.VersionValues != nil {
				return resourcev1.ResourceSliceMaxDevicesWithAdvancedFeatures
			}
		}
	}
	return resourcev1.ResourceSliceMaxDevices
}

func deviceOf(spec *resourcev1.ResourceSliceSpec, name string) *resourcev1.Device {
	if spec == nil {
		return nil
	}
	for i := range spec.Devices {
		if spec.Devices[i].Name == name {
			return &spec.Devices[i]
		}
	}
	return nil
}

func validateCounters(counters map[string]resourcev1.Counter, most int, path *field.Path) field.ErrorList {
	if len(counters) > most {
		return field.ErrorList{field.TooMany(path, len(counters), most)}
	}
	return nil // names are declared, and any quantity will do
}

func validateDevice(d, old *resourcev1.Device, perDevice bool, path *field.Path) field.ErrorList {
	errs := label(d.Name, path.Child("name"))
	if n := len(d.Attributes) + len(d.Capacity); n > resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
		errs = append(errs, field.Invalid(path, n, fmt.Sprintf("the total number of attributes and capacities must not exceed %d", resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice)))
	}
	if n := attributeValues(d); n > resourcev1.ResourceSliceMaxAttributeValuesPerDevice {
		errs = append(errs, field.Invalid(path, n, fmt.Sprintf("the total number of attribute values must not exceed %d", resourcev1.ResourceSliceMaxAttributeValuesPerDevice)))
	}
	for _, name := range slices.Sorted(maps.Keys(d.Attributes)) {
		errs = append(errs, validateQualifiedName(string(name), path.Child("attributes"))...)
		a := d.Attributes[name]
		errs = append(errs, validateAttribute(&a, path.Child("attributes").Key(string(name)))...)
	}
	if old == nil || !apiequality.Semantic.DeepEqual(old.Capacity, d.Capacity) {
		errs = append(errs, validateCapacity(d, path.Child("capacity"))...)
	}
	if old == nil || !apiequality.Semantic.DeepEqual(old.Taints, d.Taints) {
		errs = append(errs, each(d.Taints, resourcev1.DeviceTaintsMaxLength, path.Child("taints"), validateTaint)...)
	}
	errs = append(errs, unique(d.ConsumesCounters, resourcev1.ResourceSliceMaxDeviceCounterConsumptionsPerDevice, path.Child("consumesCounters"),
		func(c *resourcev1.DeviceCounterConsumption) string { return c.CounterSet },
		func(c *resourcev1.DeviceCounterConsumption, at *field.Path) field.ErrorList {
			return validateCounters(c.Counters, resourcev1.ResourceSliceMaxCountersPerDeviceCounterConsumption, at.Child("counters"))
		})...)
	errs = append(errs, validateDeviceNodes(d, perDevice, path)...)
	errs = append(errs, validateBinding(d.BindingConditions, d.BindingFailureConditions, path)...)
	return append(errs, validateNodeResources(d, path.Child("nodeAllocatableResources"))...)
}

func validateDeviceNodes(d *resourcev1.Device, perDevice bool, path *field.Path) field.ErrorList {
	if !perDevice {
		if d.NodeName != nil || d.NodeSelector != nil || d.AllNodes != nil {
			return field.ErrorList{field.Invalid(path, nil, "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec")}
		}
		return nil
	}
	var errs field.ErrorList
	var set []string
	if name := d.NodeName; name != nil && *name == "" {
		errs = append(errs, field.Invalid(path.Child("nodeName"), *name, "must not be empty"))
	} else if name != nil {
		set = append(set, "`nodeName`")
		errs = append(errs, subdomain(*name, path.Child("nodeName"))...)
	}
	if d.NodeSelector != nil {
		set = append(set, "`nodeSelector`")
		errs = append(errs, podspec.ValidateNodeSelector(d.NodeSelector, path.Child("nodeSelector"))...)
	}
	if d.AllNodes != nil && !*d.AllNodes {
		errs = append(errs, field.Invalid(path.Child("allNodes"), *d.AllNodes, "must be either unset or set to true"))
	} else if d.AllNodes != nil {
		set = append(set, "`allNodes`")
	}
	return append(errs, exactlyOne(set, path, "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec", "")...)
}

// validateNodeResources checks what a device takes of its node's own resources.
func validateNodeResources(d *resourcev1.Device, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for name, r := range d.NodeAllocatableResources {
		at := path.Key(string(name))
		if !allocatable(name) {
			errs = append(errs, field.Invalid(at, name, "must be a node allocatable resource name"))
		}
		if r.Mapping == nil && r.Overhead == nil {
			errs = append(errs, field.Required(at, "at least one of mapping or overhead must be set"))
		}
		if m := r.Mapping; m != nil {
			errs = append(errs, validateMapping(m, d, at.Child("mapping"))...)
		}
		if o, p := r.Overhead, at.Child("overhead"); o != nil {
			if o.PerPod == nil && o.PerContainer == nil {
				errs = append(errs, field.Invalid(p, "", "at least one of perPod or perContainer must be set"))
			}
			if o.PerPod != nil && o.PerPod.Sign() < 0 {
				errs = append(errs, field.Invalid(p.Child("perPod"), o.PerPod.String(), "must be non-negative"))
			}
			if o.PerContainer != nil && o.PerContainer.Sign() < 0 {
				errs = append(errs, field.Invalid(p.Child("perContainer"), o.PerContainer.String(), "must be non-negative"))
			}
		}
	}
	return errs
}

// allocatable are the resources that nodes give out themselves.
func allocatable(name corev1.ResourceName) bool {
	switch name {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
		return true
	}
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

func validateMapping(m *resourcev1.NodeAllocatableMapping, d *resourcev1.Device, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if key := m.CapacityKey; key != nil {
		if *key == "" {
			errs = append(errs, field.Invalid(path.Child("capacityKey"), "", "capacityKey must not be an empty string"))
		} else if _, known := d.Capacity[*key]; !known {
			errs = append(errs, field.NotFound(path.Child("capacityKey"), *key))
		}
		if m.CapacityMultiplier == nil {
			errs = append(errs, field.Required(path.Child("capacityMultiplier"), "capacityMultiplier is required when capacityKey is set"))
		} else if m.CapacityMultiplier.Sign() <= 0 {
			errs = append(errs, field.Invalid(path.Child("capacityMultiplier"), m.CapacityMultiplier.String(), "must be positive"))
		}
	} else if m.CapacityMultiplier != nil {
		errs = append(errs, field.Required(path.Child("capacityKey"), "capacityKey is required when capacityMultiplier is set"))
	}
	if q := m.DeviceMultiplier; q != nil && q.Sign() <= 0 {
		errs = append(errs, field.Invalid(path.Child("deviceMultiplier"), q.String(), "must be positive"))
	}
	return errs
}
