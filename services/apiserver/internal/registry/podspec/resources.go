package podspec

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateRequirements checks requests and limits against each other; name
// checks which resources there may be.
func validateRequirements(r *corev1.ResourceRequirements, name func(corev1.ResourceName, *field.Path) field.ErrorList, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	limits, requests := path.Child("limits"), path.Child("requests")
	compute, huge := false, false
	for _, list := range []struct {
		resources corev1.ResourceList
		path      *field.Path
	}{{r.Limits, limits}, {r.Requests, requests}} {
		for _, resource := range slices.Sorted(maps.Keys(list.resources)) {
			quantity, at := list.resources[resource], list.path.Key(string(resource))
			errs = append(errs, name(resource, at)...)
			errs = append(errs, ValidateQuantity(resource, quantity, at)...)
			if isHugePage(resource) {
				huge = true
				if err := hugePagesFit(resource, quantity); err != nil {
					errs = append(errs, field.Invalid(at, quantity.String(), err.Error()))
				}
			}
			compute = compute || resource == corev1.ResourceCPU || resource == corev1.ResourceMemory
		}
	}
	errs = append(errs, validateBelowLimits(r, limits, requests)...)
	if huge && !compute {
		errs = append(errs, field.Forbidden(path, "HugePages require cpu or memory"))
	}
	return errs
}

func validateBelowLimits(r *corev1.ResourceRequirements, limits, requests *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, resource := range slices.Sorted(maps.Keys(r.Requests)) {
		quantity := r.Requests[resource]
		limit, limited := r.Limits[resource]
		switch {
		case !limited && !Overcommits(resource):
			errs = append(errs, field.Required(limits, "Limit must be set for non overcommitable resources"))
		case limited && !Overcommits(resource) && quantity.Cmp(limit) != 0:
			errs = append(errs, field.Invalid(requests, quantity.String(), fmt.Sprintf("must be equal to %s limit of %s", resource, limit.String())))
		case limited && quantity.Cmp(limit) > 0:
			errs = append(errs, field.Invalid(requests, quantity.String(), fmt.Sprintf("must be less than or equal to %s limit of %s", resource, limit.String())))
		}
	}
	return errs
}

// validatePodResources checks the resources of a whole pod against its
// containers' (KEP-2837).
func (c *checker) validatePodResources(path *field.Path) field.ErrorList {
	r := c.spec.Resources
	if r == nil {
		return nil
	}
	var errs field.ErrorList
	if r.Claims != nil {
		errs = append(errs, field.Forbidden(path.Child("claims"), "claims cannot be set for Resources at pod-level"))
	}
	errs = append(errs, validateRequirements(r, podResourceName, path)...)
	totals := containerTotals(c.spec, func(c *corev1.Container) corev1.ResourceList { return c.Resources.Requests })
	for _, name := range slices.Sorted(maps.Keys(totals)) {
		total, whole := totals[name], r.Requests[name]
		if isPodLevelResource(name) && total.Cmp(whole) > 0 {
			errs = append(errs, field.Invalid(path.Child("requests").Key(string(name)), whole.String(),
				fmt.Sprintf("must be greater than or equal to aggregate container requests of %s", total.String())))
		}
	}
	for i := range c.spec.Containers {
		limits := c.spec.Containers[i].Resources.Limits
		for _, name := range slices.Sorted(maps.Keys(limits)) {
			limit := limits[name]
			if whole, set := r.Limits[name]; set && limit.Cmp(whole) > 0 {
				at := path.Child("containers").Index(i).Key(string(name)).Child("limits")
				errs = append(errs, field.Invalid(at, limit.String(), fmt.Sprintf("must be less than or equal to pod limits of %s", whole.String())))
			}
		}
	}
	return errs
}

// validateResourceClaims checks the pod's claims and remembers their names.
func (c *checker) validateResourceClaims(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range c.spec.ResourceClaims {
		claim, at := &c.spec.ResourceClaims[i], path.Index(i)
		switch {
		case claim.Name == "":
			errs = append(errs, field.Required(at.Child("name"), ""))
		case c.claims[claim.Name]:
			errs = append(errs, field.Duplicate(at.Child("name"), claim.Name))
		default:
			errs = append(errs, dnsLabel(claim.Name, at.Child("name"))...)
			c.claims[claim.Name] = true
		}
		name, template := claim.ResourceClaimName, claim.ResourceClaimTemplateName
		if name != nil && template != nil {
			errs = append(errs, field.Invalid(at, *claim, "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"))
		}
		if name == nil && template == nil {
			errs = append(errs, field.Invalid(at, *claim, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"))
		}
		if name != nil {
			errs = append(errs, invalid(at.Child("resourceClaimName"), *name, apivalidation.NameIsDNSSubdomain(*name, false))...)
		}
		if template != nil {
			errs = append(errs, invalid(at.Child("resourceClaimTemplateName"), *template, apivalidation.NameIsDNSSubdomain(*template, false))...)
		}
	}
	return errs
}

// validateClaims checks a container's references to the pod's claims: a claim
// as a whole, or requests of it, each once.
func (c *checker) validateClaims(claims []corev1.ResourceClaim, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]bool{}
	for i, claim := range claims {
		at := path.Index(i)
		if claim.Name == "" {
			errs = append(errs, field.Required(at, ""))
			continue
		}
		key := claim.Name
		if claim.Request != "" {
			errs = append(errs, dnsLabel(claim.Request, at.Child("request"))...)
			key += "/" + claim.Request
		}
		overlaps := seen[claim.Name] || seen[key]
		if claim.Request == "" {
			for other := range seen {
				overlaps = overlaps || strings.HasPrefix(other, claim.Name+"/")
			}
		}
		if overlaps {
			errs = append(errs, field.Duplicate(at, key))
		}
		seen[key] = true
		if !c.claims[claim.Name] {
			missing := field.NotFound(at, claim.Name)
			missing.Detail = "must be one of the names in pod.spec.resourceClaims"
			if len(c.claims) == 0 {
				missing.Detail += " which is empty"
			} else {
				missing.Detail += ": " + strings.Join(slices.Sorted(maps.Keys(c.claims)), ", ")
			}
			errs = append(errs, missing)
		}
	}
	return errs
}

// ValidateRequirements checks the requests and limits of a container.
func ValidateRequirements(r *corev1.ResourceRequirements, path *field.Path) field.ErrorList {
	return validateRequirements(r, containerResourceName, path)
}
