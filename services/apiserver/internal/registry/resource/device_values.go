package resource

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
)

// semver is a version by semver.org, 2.0.0.
var semver = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)` +
	`(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?` +
	`(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?$`)

// validateQualifiedName wants an identifier, after a domain and a slash or not.
func validateQualifiedName(name string, path *field.Path) field.ErrorList {
	parts := strings.Split(name, "/")
	switch len(parts) {
	case 1:
		return identifier(name, path)
	case 2:
		var errs field.ErrorList
		if parts[0] == "" {
			errs = append(errs, field.Invalid(path, "", "the domain must not be empty"))
		} else {
			errs = append(errs, podspec.ValidateCSIDriverName(parts[0], path)...)
		}
		if parts[1] == "" {
			return append(errs, field.Invalid(path, "", "the name must not be empty"))
		}
		return append(errs, identifier(parts[1], path)...)
	}
	return field.ErrorList{field.Invalid(path, name, "must not contain more than one slash")}
}

func identifier(id string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(id) > resourcev1.DeviceMaxIDLength {
		errs = append(errs, field.TooLong(path, "", resourcev1.DeviceMaxIDLength))
	}
	return append(errs, invalid(path, id, content.IsCIdentifier(id))...)
}

// attributeValues counts the values of all attributes.
func attributeValues(d *resourcev1.Device) int {
	n := 0
	for _, a := range d.Attributes {
		n += max(1, len(a.BoolValues)+len(a.IntValues)+len(a.StringValues)+len(a.VersionValues))
	}
	return n
}

// validateAttribute checks the one value that an attribute has, as its type
// declares.
func validateAttribute(a *resourcev1.DeviceAttribute, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	short := func(value string, at *field.Path) {
		if len(value) > resourcev1.DeviceAttributeMaxValueLength {
			errs = append(errs, field.TooLong(at, "", resourcev1.DeviceAttributeMaxValueLength))
		}
	}
	version := func(value string, at *field.Path) {
		if !semver.MatchString(value) {
			errs = append(errs, field.Invalid(at, value, "must be a string compatible with semver.org spec 2.0.0"))
		}
		short(value, at)
	}
	if a.StringValue != nil {
		short(*a.StringValue, path.Child("string"))
	}
	if a.VersionValue != nil {
		version(*a.VersionValue, path.Child("version"))
	}
	for name, empty := range map[string]bool{
		"bools": a.BoolValues != nil && len(a.BoolValues) == 0, "ints": a.IntValues != nil && len(a.IntValues) == 0,
		"strings": a.StringValues != nil && len(a.StringValues) == 0, "versions": a.VersionValues != nil && len(a.VersionValues) == 0,
	} {
		if empty {
			errs = append(errs, field.Invalid(path.Child(name), []string{}, "must not be empty if specified"))
		}
	}
	for i, value := range a.StringValues {
		short(value, path.Child("strings").Index(i))
	}
	for i, value := range a.VersionValues {
		version(value, path.Child("versions").Index(i))
	}
	return errs
}

func validateCapacity(d *resourcev1.Device, path *field.Path) field.ErrorList {
	shared := d.AllowMultipleAllocations != nil && *d.AllowMultipleAllocations
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(d.Capacity)) {
		errs = append(errs, validateQualifiedName(string(name), path)...)
		c, at := d.Capacity[name], path.Key(string(name)).Child("requestPolicy")
		switch {
		case c.RequestPolicy == nil:
		case !shared:
			errs = append(errs, field.Forbidden(at, "allowMultipleAllocations must be true"))
		default:
			errs = append(errs, validatePolicy(c.RequestPolicy, c.Value, at)...)
		}
	}
	return errs
}

// validatePolicy checks how much of a capacity can be asked for.
func validatePolicy(p *resourcev1.CapacityRequestPolicy, most resource.Quantity, path *field.Path) field.ErrorList {
	switch {
	case len(p.ValidValues) > 0 && p.ValidRange != nil:
		return field.ErrorList{field.Forbidden(path, `exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time`)}
	case len(p.ValidValues) > 0 && p.Default == nil:
		return field.ErrorList{field.Required(path.Child("default"), "required when validValues is defined")}
	case len(p.ValidValues) > 0:
		return validateValues(p, most, path.Child("validValues"))
	case p.ValidRange != nil && p.Default == nil:
		return field.ErrorList{field.Required(path.Child("default"), "required when validRange is defined")}
	case p.ValidRange != nil:
		return validatePolicyRange(p, most, path.Child("validRange"))
	}
	return nil
}

// maxPolicyValues is how many values a policy may list.
const maxPolicyValues = 10

func validateValues(p *resourcev1.CapacityRequestPolicy, most resource.Quantity, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := 1; i < len(p.ValidValues); i++ {
		if p.ValidValues[i-1].Cmp(p.ValidValues[i]) > 0 {
			errs = append(errs, field.Invalid(path.Index(i), p.ValidValues[i].String(), "values must be sorted in ascending order"))
		}
	}
	found := false
	errs = append(errs, unique(p.ValidValues, maxPolicyValues, path, func(q *resource.Quantity) string { return q.AsDec().String() },
		func(q *resource.Quantity, at *field.Path) field.ErrorList {
			found = found || q.Cmp(*p.Default) == 0
			if q.Cmp(most) > 0 {
				return field.ErrorList{field.Invalid(at, q.String(), fmt.Sprintf("option is larger than capacity value: %s", most.String()))}
			}
			return nil
		})...)
	if !found {
		errs = append(errs, field.Invalid(path, p.Default.String(), "default value is not valid according to the requestPolicy"))
	}
	return errs
}

func validatePolicyRange(p *resourcev1.CapacityRequestPolicy, most resource.Quantity, path *field.Path) field.ErrorList {
	r, value := p.ValidRange, *p.Default
	if r.Min == nil {
		return field.ErrorList{field.Required(path.Child("min"), "required when validRange is defined")}
	}
	var errs field.ErrorList
	refuse := func(name string, q *resource.Quantity, format string, bound *resource.Quantity) {
		errs = append(errs, field.Invalid(path.Child(name), q.String(), fmt.Sprintf(format, bound.String())))
	}
	if r.Min.Cmp(most) > 0 {
		refuse("min", r.Min, "min is larger than capacity value: %s", &most)
	}
	if value.Cmp(*r.Min) < 0 {
		refuse("default", &value, "default is less than min: %s", r.Min)
	}
	if r.Max != nil {
		if r.Min.Cmp(*r.Max) > 0 {
			refuse("max", r.Min, "min is larger than max: %s", r.Max)
		}
		if r.Max.Cmp(most) > 0 {
			refuse("max", r.Max, "max is larger than capacity value: %s", &most)
		}
		if value.Cmp(*r.Max) > 0 {
			refuse("default", &value, "default is more than max: %s", r.Max)
		}
	}
	return append(errs, validateStep(p, most, path)...)
}

// validateStep wants the default and the end of a range to be whole steps from its
// beginning.
func validateStep(p *resourcev1.CapacityRequestPolicy, most resource.Quantity, path *field.Path) field.ErrorList {
	r := p.ValidRange
	if r.Step == nil {
		return nil
	}
	at := path.Child("step")
	if r.Step.Sign() <= 0 {
		return field.ErrorList{field.Invalid(at, r.Step.String(), "must be greater than zero")}
	}
	var errs field.ErrorList
	added := r.Min.DeepCopy()
	added.Add(*r.Step)
	if added.Cmp(most) > 0 {
		errs = append(errs, field.Invalid(at, r.Step.String(), fmt.Sprintf("one step %s is larger than capacity value: %s", added.String(), most.String())))
	}
	bounds := []struct {
		name string
		q    *resource.Quantity
	}{{"default", p.Default}, {"min", r.Min}, {"max", r.Max}, {"step", r.Step}}
	sane := true
	for _, b := range bounds {
		switch {
		case b.q == nil:
		case b.q.Sign() < 0:
			errs, sane = append(errs, field.Invalid(path.Child(b.name), b.q.String(), "must be greater than or equal to 0")), false
		case b.q.CmpInt64(math.MaxInt64) > 0:
			errs, sane = append(errs, field.Invalid(path.Child(b.name), b.q.String(), "must not be larger than 9223372036854775807")), false
		}
	}
	for _, q := range []*resource.Quantity{p.Default, r.Max} {
		if sane && q != nil && (q.Value()-r.Min.Value())%r.Step.Value() != 0 {
			errs = append(errs, field.Invalid(at, q.String(), fmt.Sprintf("value is not a multiple of a given step (%s) from (%s)", r.Step.String(), r.Min.String())))
		}
	}
	return errs
}
