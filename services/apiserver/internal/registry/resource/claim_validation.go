package resource

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
)

// adminRequests are the paths of requests for administrators.
func adminRequests(devices *resourcev1.DeviceClaim, path *field.Path) []*field.Path {
	var paths []*field.Path
	for i := range devices.Requests {
		if e := devices.Requests[i].Exactly; e != nil && e.AdminAccess != nil && *e.AdminAccess {
			paths = append(paths, path.Child("requests").Index(i).Child("exactly", "adminAccess"))
		}
	}
	return paths
}

// adminResults are the paths of devices that administrators are newly given.
func adminResults(obj, old *claim) []*field.Path {
	admin := func(r resourcev1.DeviceRequestAllocationResult) bool { return r.AdminAccess != nil && *r.AdminAccess }
	if slices.ContainsFunc(results(old), admin) {
		return nil
	}
	var paths []*field.Path
	for i, r := range results(obj) {
		if admin(r) {
			paths = append(paths, field.NewPath("status", "allocation", "devices", "results").Index(i).Child("adminAccess"))
		}
	}
	return paths
}

// validateAdmin allows access for administrators in namespaces that say so.
func validateAdmin(ctx context.Context, state registry.State, namespace string, paths []*field.Path) field.ErrorList {
	if len(paths) == 0 {
		return nil
	}
	obj, err := state.Get(ctx, schema.GroupResource{Resource: "namespaces"}, "", namespace)
	if err != nil {
		return field.ErrorList{field.InternalError(paths[0], fmt.Errorf("could not retrieve namespace to verify admin access: %w", err))}
	}
	if ns, ok := obj.(*corev1.Namespace); ok && ns.Labels[resourcev1.DRAAdminNamespaceLabelKey] == "true" {
		return nil
	}
	var errs field.ErrorList
	for _, path := range paths {
		errs = append(errs, field.Forbidden(path, fmt.Sprintf("admin access to devices requires the `%s: true` label on the containing namespace", resourcev1.DRAAdminNamespaceLabelKey)))
	}
	return errs
}

// requestNames are the requests of a claim by name, each with its subrequests.
type requestNames map[string]map[string]bool

func namesOf(devices *resourcev1.DeviceClaim) requestNames {
	names := requestNames{}
	for _, r := range devices.Requests {
		names[r.Name] = map[string]bool{}
		for _, s := range r.FirstAvailable {
			names[r.Name][s.Name] = true
		}
	}
	return names
}

func (n requestNames) has(name string) bool {
	request, sub, both := strings.Cut(name, "/")
	subs, known := n[request]
	return known && (!both || subs[sub])
}

// validateReference checks a reference to a request or subrequest.
func (n requestNames) validateReference(name *string, path *field.Path) field.ErrorList {
	const unknown = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
	segments := strings.Split(*name, "/")
	if len(segments) > 2 {
		return field.ErrorList{field.Invalid(path, *name, unknown)}
	}
	var errs field.ErrorList
	for _, segment := range segments {
		errs = append(errs, label(segment, path)...)
	}
	if !n.has(*name) {
		errs = append(errs, field.Invalid(path, *name, unknown))
	}
	return errs
}

func (n requestNames) validateReferences(list []string, path *field.Path) field.ErrorList {
	return unique(list, resourcev1.DeviceRequestsMaxSize, path, func(s *string) string { return *s }, n.validateReference)
}

func validateDevices(devices *resourcev1.DeviceClaim, path *field.Path) field.ErrorList {
	names := namesOf(devices)
	derived := &derivedAttributes{constrained: constrainedAttributes(devices.Constraints)}
	errs := unique(devices.Requests, resourcev1.DeviceRequestsMaxSize, path.Child("requests"), func(r *resourcev1.DeviceRequest) string { return r.Name },
		func(r *resourcev1.DeviceRequest, at *field.Path) field.ErrorList {
			return validateRequest(r, derived, at)
		})
	errs = append(errs, each(devices.Constraints, resourcev1.DeviceConstraintsMaxSize, path.Child("constraints"), func(c *resourcev1.DeviceConstraint, at *field.Path) field.ErrorList {
		errs := names.validateReferences(c.Requests, at.Child("requests"))
		if c.MatchAttribute == nil && c.DistinctAttribute == nil {
			errs = append(errs, field.Required(at, `exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set`))
		}
		return errs
	})...)
	errs = append(errs, each(devices.Config, resourcev1.DeviceConfigMaxSize, path.Child("config"), func(c *resourcev1.DeviceClaimConfiguration, at *field.Path) field.ErrorList {
		errs := names.validateReferences(c.Requests, at.Child("requests"))
		return append(errs, validateConfiguration(&c.DeviceConfiguration, at, false)...)
	})...)
	if derived.cost > resourcev1.DeviceClaimDerivedAttributeCELMaxCost {
		errs = append(errs, field.Forbidden(path, "too complex, total cost of derived attribute CEL expressions in the claim exceeds cost limit"))
	}
	return errs
}

func validateRequest(r *resourcev1.DeviceRequest, derived *derivedAttributes, path *field.Path) field.ErrorList {
	errs := label(r.Name, path.Child("name"))
	const one = "exactly one of `exactly` or `firstAvailable` is required"
	switch {
	case r.Exactly == nil && len(r.FirstAvailable) == 0:
		return append(errs, field.Required(path, one))
	case r.Exactly != nil && len(r.FirstAvailable) > 0:
		return append(errs, field.Invalid(path, nil, one+", but multiple fields are set"))
	case r.Exactly != nil:
		e, at := r.Exactly, path.Child("exactly")
		errs = append(errs, validateClassName(e.DeviceClassName, at.Child("deviceClassName"))...)
		return append(errs, validateWanted(e.Selectors, e.DerivedAttributes, e.AllocationMode, e.Count, e.Tolerations, derived, r.Name, at)...)
	}
	return append(errs, unique(r.FirstAvailable, resourcev1.FirstAvailableDeviceRequestMaxSize, path.Child("firstAvailable"),
		func(s *resourcev1.DeviceSubRequest) string { return s.Name },
		func(s *resourcev1.DeviceSubRequest, at *field.Path) field.ErrorList {
			errs := label(s.Name, at.Child("name"))
			errs = append(errs, validateClassName(s.DeviceClassName, at.Child("deviceClassName"))...)
			return append(errs, validateWanted(s.Selectors, s.DerivedAttributes, s.AllocationMode, s.Count, s.Tolerations, derived, r.Name+"/"+s.Name, at)...)
		})...)
}

func validateClassName(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return subdomain(name, path)
}

// validateWanted checks what a request and a subrequest have in common.
func validateWanted(selectors []resourcev1.DeviceSelector, attributes []resourcev1.DeviceDerivedAttribute, mode resourcev1.DeviceAllocationMode, count int64,
	tolerations []resourcev1.DeviceToleration, derived *derivedAttributes, request string, path *field.Path) field.ErrorList {
	errs := validateSelectors(selectors, path.Child("selectors"), false)
	errs = append(errs, derived.validate(attributes, request, path.Child("derivedAttributes"))...)
	switch mode {
	case resourcev1.DeviceAllocationModeAll:
		if count != 0 {
			errs = append(errs, field.Invalid(path.Child("count"), count, fmt.Sprintf("must not be specified when allocationMode is '%s'", mode)))
		}
	case resourcev1.DeviceAllocationModeExactCount:
		if count <= 0 {
			errs = append(errs, field.Invalid(path.Child("count"), count, "must be greater than zero"))
		}
	default:
		errs = append(errs, field.NotSupported(path.Child("allocationMode"), mode, []resourcev1.DeviceAllocationMode{resourcev1.DeviceAllocationModeAll, resourcev1.DeviceAllocationModeExactCount}))
	}
	return append(errs, each(tolerations, 0, path.Child("tolerations"), validateToleration)...)
}

func validateToleration(t *resourcev1.DeviceToleration, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if t.Key != "" {
		errs = append(errs, metav1validation.ValidateLabelName(t.Key, path.Child("key"))...)
	}
	switch t.Operator {
	case resourcev1.DeviceTolerationOpExists:
		if t.Value != "" {
			errs = append(errs, field.Invalid(path.Child("value"), t.Value, "must be empty for operator `Exists`"))
		}
	case resourcev1.DeviceTolerationOpEqual:
		errs = append(errs, invalid(path.Child("value"), t.Value, utilvalidation.IsValidLabelValue(t.Value))...)
	default:
		errs = append(errs, oneOf(t.Operator, path.Child("operator"), resourcev1.DeviceTolerationOpEqual, resourcev1.DeviceTolerationOpExists)...)
	}
	if t.Effect != "" {
		errs = append(errs, oneOf(t.Effect, path.Child("effect"), effects()...)...)
	}
	return errs
}

func effects() []resourcev1.DeviceTaintEffect {
	return []resourcev1.DeviceTaintEffect{resourcev1.DeviceTaintEffectNoExecute, resourcev1.DeviceTaintEffectNoSchedule, resourcev1.DeviceTaintEffectNone}
}

func validateConfiguration(c *resourcev1.DeviceConfiguration, path *field.Path, stored bool) field.ErrorList {
	at := path.Child("opaque")
	if c.Opaque == nil {
		return field.ErrorList{field.Required(at, "")}
	}
	errs := podspec.ValidateCSIDriverName(c.Opaque.Driver, at.Child("driver"))
	return append(errs, validateRaw(&c.Opaque.Parameters, at.Child("parameters"), stored, resourcev1.OpaqueParametersMaxLength)...)
}

// validateRaw wants an object in JSON.
func validateRaw(raw *runtime.RawExtension, path *field.Path, stored bool, most int) field.ErrorList {
	var value any
	switch {
	case len(raw.Raw) == 0:
		return field.ErrorList{field.Required(path, "")}
	case !stored && len(raw.Raw) > most:
		return field.ErrorList{field.TooLong(path, "", most)}
	}
	if err := json.Unmarshal(raw.Raw, &value); err != nil {
		return field.ErrorList{field.Invalid(path, "<value omitted>", fmt.Sprintf("error parsing data as JSON: %v", err))}
	}
	if value == nil {
		return field.ErrorList{field.Required(path, "")}
	}
	if _, ok := value.(map[string]any); !ok {
		return field.ErrorList{field.Invalid(path, "<value omitted>", "must be a valid JSON object")}
	}
	return nil
}
