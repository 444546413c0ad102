package resource

import (
	"errors"
	"fmt"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	dracel "k8s.io/dynamic-resource-allocation/cel"
)

// validateSelectors checks selectors; those that are stored compiled once, and are
// not compiled again.
func validateSelectors(list []resourcev1.DeviceSelector, path *field.Path, stored bool) field.ErrorList {
	return each(list, resourcev1.DeviceSelectorsMaxSize, path, func(s *resourcev1.DeviceSelector, at *field.Path) field.ErrorList {
		if s.CEL == nil {
			return field.ErrorList{field.Required(at.Child("cel"), "")}
		}
		if stored {
			return nil
		}
		_, errs := compile(s.CEL.Expression, false, at.Child("cel", "expression"))
		return errs
	})
}

// compile checks an expression, and returns what it may cost.
func compile(expression string, derived bool, path *field.Path) (cost uint64, errs field.ErrorList) {
	if len(expression) > resourcev1.CELSelectorExpressionMaxLength {
		return 0, field.ErrorList{field.TooLong(path, "", resourcev1.CELSelectorExpressionMaxLength)}
	}
	kind := environment.NewExpressions
	features := dracel.Features{EnableConsumableCapacity: true, EnableListTypeAttributes: true}
	result := dracel.GetCompiler(features).CompileCELExpression(expression, dracel.Options{EnvType: &kind, DerivedAttribute: derived})
	if result.Error != nil {
		return 0, field.ErrorList{celError(result.Error, expression, path)}
	}
	if result.MaxCost > resourcev1.CELSelectorExpressionMaxCost {
		errs = append(errs, field.Forbidden(path, "too complex, exceeds cost limit"))
	}
	return result.MaxCost, errs
}

func celError(err error, expression string, path *field.Path) *field.Error {
	var known *cel.Error
	if errors.As(err, &known) {
		switch known.Type {
		case cel.ErrorTypeRequired:
			return field.Required(path, known.Detail)
		case cel.ErrorTypeInvalid:
			return field.Invalid(path, expression, known.Detail)
		}
	}
	return field.InternalError(path, fmt.Errorf("compiling: %w", err))
}

// derivedAttributes checks the attributes that a claim computes.
type derivedAttributes struct {
	// constrained are the attributes that constraints refer to, by request; "" is
	// every one.
	constrained map[string]map[string]bool
	cost        uint64 // of all expressions so far
}

func constrainedAttributes(constraints []resourcev1.DeviceConstraint) map[string]map[string]bool {
	all := map[string]map[string]bool{}
	for _, c := range constraints {
		name := c.MatchAttribute
		if name == nil {
			name = c.DistinctAttribute
		}
		if name == nil {
			continue
		}
		requests := c.Requests
		if len(requests) == 0 {
			requests = []string{""}
		}
		for _, request := range requests {
			if all[request] == nil {
				all[request] = map[string]bool{}
			}
			all[request][string(*name)] = true
		}
	}
	return all
}

func (d *derivedAttributes) validate(list []resourcev1.DeviceDerivedAttribute, request string, path *field.Path) field.ErrorList {
	parent, _, _ := strings.Cut(request, "/")
	return unique(list, 0, path, func(a *resourcev1.DeviceDerivedAttribute) string { return string(a.Name) },
		func(a *resourcev1.DeviceDerivedAttribute, at *field.Path) field.ErrorList {
			var errs field.ErrorList
			name := string(a.Name)
			if name != "" && !d.constrained[""][name] && !d.constrained[request][name] && !d.constrained[parent][name] {
				errs = append(errs, field.Invalid(at.Child("name"), a.Name, "must be referenced by at least one matchAttribute or distinctAttribute constraint targeting this request"))
			}
			if a.Expression != "" {
				cost, found := compile(a.Expression, true, at.Child("expression"))
				d.cost += cost
				errs = append(errs, found...)
			}
			return errs
		})
}
