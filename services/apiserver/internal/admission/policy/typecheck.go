package policy

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/apiserver/pkg/cel/environment"
	celopenapi "k8s.io/apiserver/pkg/cel/openapi"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission/expression"
)

// maxTypes bounds the kinds that one policy is checked against.
const maxTypes = 10

// Schemas finds the schemas of what is served.
type Schemas interface {
	// KindOf is the kind of a resource; ok is false when it is not served.
	KindOf(resource schema.GroupVersionResource) (kind schema.GroupVersionKind, ok bool)
	// Schema is a kind's schema, nil when it has none.
	Schema(kind schema.GroupVersionKind) (*spec.Schema, error)
}

// checker checks the types of a policy's expressions against the kinds that it
// matches.
type checker struct {
	base    *environment.EnvSet
	schemas Schemas
	log     *slog.Logger
}

// skipped tells of a kind whose schema cannot be read; the others are checked.
func (c *checker) skipped(policy *admissionregistrationv1.ValidatingAdmissionPolicy, kind schema.GroupVersionKind, err error) {
	c.log.Warn("Reading a schema to check a policy's types", "policy", policy.Name, "kind", kind.String(), "err", err)
}

// typedKind is a kind that expressions are checked against.
type typedKind struct {
	kind  schema.GroupVersionKind
	scope *expression.Scope
}

// warnings are what is wrong with the policy's expressions for some of its kinds;
// that does not change what the policy does.
func (c *checker) warnings(policy *admissionregistrationv1.ValidatingAdmissionPolicy) ([]admissionregistrationv1.ExpressionWarning, error) {
	kinds, err := c.typedKinds(policy)
	if err != nil || len(kinds) == 0 {
		return nil, err
	}
	var out []admissionregistrationv1.ExpressionWarning
	check := func(path *field.Path, source string) {
		if source == "" {
			return
		}
		var lines []string
		for _, k := range kinds {
			if _, err := k.scope.Compile(expression.Stored, source); err != nil {
				lines = append(lines, fmt.Sprintf("%v: %s\n", k.kind, strings.TrimPrefix(err.Detail, "compilation failed: ")))
			}
		}
		if len(lines) > 0 {
			out = append(out, admissionregistrationv1.ExpressionWarning{FieldRef: path.String(), Warning: strings.Join(lines, "\n")})
		}
	}
	for i, v := range policy.Spec.Validations {
		path := field.NewPath("spec", "validations").Index(i)
		check(path.Child("expression"), v.Expression)
		check(path.Child("messageExpression"), v.MessageExpression)
	}
	return out, nil
}

// typedKinds are the kinds that the policy names, with the environments in which
// object has their types.
func (c *checker) typedKinds(policy *admissionregistrationv1.ValidatingAdmissionPolicy) ([]typedKind, error) {
	var params *apiservercel.DeclType
	if kind := policy.Spec.ParamKind; kind != nil {
		version, err := schema.ParseGroupVersion(kind.APIVersion)
		if err != nil {
			return nil, err
		}
		if params, err = c.declaration(version.WithKind(kind.Kind)); err != nil {
			c.skipped(policy, version.WithKind(kind.Kind), err)
		}
	}
	var out []typedKind
	for _, kind := range c.kinds(policy) {
		object, err := c.declaration(kind)
		if err != nil {
			c.skipped(policy, kind, err)
		}
		if object == nil {
			continue
		}
		scope, err := c.scope(policy, object, params)
		if err != nil {
			return nil, err
		}
		out = append(out, typedKind{kind, scope})
	}
	return out, nil
}

func (c *checker) scope(policy *admissionregistrationv1.ValidatingAdmissionPolicy, object, params *apiservercel.DeclType) (*expression.Scope, error) {
	declared := []*apiservercel.DeclType{object}
	paramsType := cel.DynType
	if params != nil {
		declared, paramsType = append(declared, params), params.CelType()
	}
	d := expression.Declarations{Params: policy.Spec.ParamKind != nil, Authorizer: true}
	set, err := expression.Declare(c.base, d, object.CelType(), paramsType, declared...)
	if err != nil {
		return nil, err
	}
	scope, err := expression.NewScope(set, len(policy.Spec.Variables) > 0)
	if err != nil {
		return nil, err
	}
	for _, v := range policy.Spec.Variables {
		_ = scope.Variable(v.Name, expression.Stored, v.Expression) // shows where it is used
	}
	return scope, nil
}

// declaration is a kind's type in the language, nil for a kind without a schema.
func (c *checker) declaration(kind schema.GroupVersionKind) (*apiservercel.DeclType, error) {
	s, err := c.schemas.Schema(kind)
	if err != nil || s == nil {
		return nil, err
	}
	declared := common.SchemaDeclType(&celopenapi.Schema{Schema: s}, true)
	if declared == nil {
		return nil, nil //nolint:nilnil // a schema that the language has no type for
	}
	return declared.MaybeAssignTypeName(kind.Kind + "." + strings.ReplaceAll(kind.Version+"."+kind.Group, "-", "_")), nil
}

// kinds are those that the policy names without wildcards, in order.
func (c *checker) kinds(policy *admissionregistrationv1.ValidatingAdmissionPolicy) []schema.GroupVersionKind {
	var out []schema.GroupVersionKind
	if policy.Spec.MatchConstraints == nil {
		return nil
	}
	for _, rule := range policy.Spec.MatchConstraints.ResourceRules {
		if slices.Contains(rule.APIGroups, "*") || slices.Contains(rule.APIVersions, "*") {
			continue
		}
		for _, resource := range resourcesOf(&rule.Rule) {
			if kind, ok := c.schemas.KindOf(resource); ok && !slices.Contains(out, kind) && len(out) < maxTypes {
				out = append(out, kind)
			}
		}
	}
	slices.SortFunc(out, func(a, b schema.GroupVersionKind) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Version, b.Version), cmp.Compare(a.Kind, b.Kind))
	})
	return out
}

func resourcesOf(rule *admissionregistrationv1.Rule) []schema.GroupVersionResource {
	var out []schema.GroupVersionResource
	for _, group := range rule.APIGroups {
		for _, version := range rule.APIVersions {
			for _, resource := range rule.Resources {
				if !strings.ContainsAny(resource, "*/") {
					out = append(out, schema.GroupVersionResource{Group: group, Version: version, Resource: resource})
				}
			}
		}
	}
	return out
}

// errChecked ends an update that has nothing to change.
var errChecked = errors.New("checked already")
