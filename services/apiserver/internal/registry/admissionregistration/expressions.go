package admissionregistration

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiservercel "k8s.io/apiserver/pkg/cel"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission/expression"
)

// Upstream's limits.
const (
	maxMatchConditions  = 64
	maxAuditAnnotations = 20
	// maxAuditExpression bounds the expression of an audit annotation, in bytes.
	maxAuditExpression = 5 * 1024
)

// validator checks what needs compiled expressions.
type validator struct {
	environments *expression.Environments
}

// known are the expressions of the stored object: they may use all features.
type known map[string]bool

func (k known) mode(source string) expression.Mode {
	if k[source] {
		return expression.Stored
	}
	return expression.New
}

// celError is what is wrong with an expression as the error of its field.
func celError(err *apiservercel.Error, source string, path *field.Path) field.ErrorList {
	switch {
	case err == nil:
		return nil
	case err.Type == apiservercel.ErrorTypeRequired:
		return field.ErrorList{field.Required(path, err.Detail)}
	case err.Type == apiservercel.ErrorTypeInvalid:
		return field.ErrorList{field.Invalid(path, source, err.Detail)}
	}
	return field.ErrorList{field.InternalError(path, err)}
}

func (v validator) matchConditions(conditions []admissionregistrationv1.MatchCondition, params bool, stored known, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(conditions) > maxMatchConditions {
		// Compiling what is refused anyway would only cost.
		return append(errs, field.TooMany(path, len(conditions), maxMatchConditions))
	}
	seen := map[string]bool{}
	for i, condition := range conditions {
		at := path.Index(i)
		if source := strings.TrimSpace(condition.Expression); source == "" {
			errs = append(errs, field.Required(at.Child("expression"), ""))
		} else {
			_, err := v.environments.Compile(expression.Declarations{Params: params, Authorizer: true}, stored.mode(condition.Expression), source, cel.BoolType)
			errs = append(errs, celError(err, source, at.Child("expression"))...)
		}
		if condition.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
			continue
		}
		for _, message := range content.IsLabelKey(condition.Name) {
			errs = append(errs, field.Invalid(at.Child("name"), condition.Name, message))
		}
		if seen[condition.Name] {
			errs = append(errs, field.Duplicate(at.Child("name"), condition.Name))
		}
		seen[condition.Name] = true
	}
	return errs
}

var (
	identifier = regexp.MustCompile(`^[_a-zA-Z][_a-zA-Z0-9]*$`)
	lineBreak  = regexp.MustCompile(`[\n\r]+`)
)

// reserved are the words of the language that no variable can be called.
func reserved() []string {
	return []string{
		"true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop",
		"package", "namespace", "return", "var", "void", "while",
	}
}

func (v validator) variables(scope *expression.Scope, variables []admissionregistrationv1.Variable, stored known, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, variable := range variables {
		at := path.Index(i)
		switch {
		case strings.TrimSpace(variable.Name) == "":
			errs = append(errs, field.Required(at.Child("name"), "name is not specified"))
		case !identifier.MatchString(variable.Name) || slices.Contains(reserved(), variable.Name):
			errs = append(errs, field.Invalid(at.Child("name"), variable.Name, "name is not a valid CEL identifier"))
		}
		if strings.TrimSpace(variable.Expression) == "" {
			errs = append(errs, field.Required(at.Child("expression"), "expression is not specified"))
			continue
		}
		err := scope.Variable(variable.Name, stored.mode(variable.Expression), variable.Expression)
		errs = append(errs, celError(err, variable.Expression, at.Child("expression"))...)
	}
	return errs
}

func (v validator) validation(scope, messages *expression.Scope, validation *admissionregistrationv1.Validation, stored known, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if strings.TrimSpace(validation.Expression) == "" {
		errs = append(errs, field.Required(path.Child("expression"), "expression is not specified"))
	} else {
		_, err := scope.Compile(stored.mode(validation.Expression), validation.Expression, cel.BoolType)
		errs = append(errs, celError(err, validation.Expression, path.Child("expression"))...)
	}
	if source := validation.MessageExpression; source != "" {
		if strings.TrimSpace(source) == "" {
			errs = append(errs, field.Invalid(path.Child("messageExpression"), source, "must be non-empty if specified"))
		} else {
			_, err := messages.Compile(stored.mode(source), source, cel.StringType)
			errs = append(errs, celError(err, source, path.Child("messageExpression"))...)
		}
	}
	message := strings.TrimSpace(validation.Message)
	switch {
	case validation.Message != "" && message == "":
		errs = append(errs, field.Invalid(path.Child("message"), validation.Message, "message must be non-empty if specified"))
	case lineBreak.MatchString(message):
		errs = append(errs, field.Invalid(path.Child("message"), validation.Message, "message must not contain line breaks"))
	}
	return append(errs, validateReason(validation, path.Child("reason"))...)
}

func (v validator) auditAnnotations(scope *expression.Scope, policy string, annotations []admissionregistrationv1.AuditAnnotation, stored known, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(annotations) > maxAuditAnnotations {
		errs = append(errs, field.Invalid(path, len(annotations), fmt.Sprintf("must not have more than %d auditAnnotations", maxAuditAnnotations)))
	}
	seen := map[string]bool{}
	for i, annotation := range annotations {
		at := path.Index(i)
		if policy == "" {
			errs = append(errs, field.Invalid(at.Child("key"), annotation.Key, "requires metadata.name be non-empty"))
		} else {
			name := policy + "/" + annotation.Key
			for _, message := range content.IsLabelKey(name) {
				errs = append(errs, field.Invalid(at.Child("key"), name, message))
			}
		}
		errs = append(errs, v.auditExpression(scope, annotation.ValueExpression, stored, at.Child("valueExpression"))...)
		if seen[annotation.Key] {
			errs = append(errs, field.Duplicate(at.Child("key"), annotation.Key))
		}
		seen[annotation.Key] = true
	}
	return errs
}

func (v validator) auditExpression(scope *expression.Scope, source string, stored known, path *field.Path) field.ErrorList {
	switch trimmed := strings.TrimSpace(source); {
	case trimmed == "":
		return field.ErrorList{field.Required(path, "valueExpression is not specified")}
	case len(trimmed) > maxAuditExpression:
		return field.ErrorList{field.Required(path, fmt.Sprintf("must not exceed %d bytes in length", maxAuditExpression))}
	default:
		_, err := scope.Compile(stored.mode(source), trimmed, cel.StringType, cel.NullType)
		return celError(err, source, path)
	}
}
