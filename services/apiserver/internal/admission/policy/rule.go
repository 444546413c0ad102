package policy

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/google/cel-go/common/types/ref"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission/expression"
	"github.com/sampan-io/sampan/services/apiserver/internal/admission/intercept"
)

// rule is what validating and mutating policies have in common.
type rule struct {
	name       string
	ignore     bool // failures do not refuse
	params     *admissionregistrationv1.ParamKind
	criteria   *intercept.Criteria
	conditions intercept.Conditions
	scope      *expression.Scope
	invalid    error // why the policy cannot be used at all
}

// binding puts a policy into effect.
type binding struct {
	name       string
	criteria   *intercept.Criteria
	invalid    error
	parameters parameters
	actions    []admissionregistrationv1.ValidationAction
}

// source of a rule.
type source struct {
	name        string
	failure     *admissionregistrationv1.FailurePolicyType
	params      *admissionregistrationv1.ParamKind
	constraints *admissionregistrationv1.MatchResources
	conditions  []admissionregistrationv1.MatchCondition
	variables   []admissionregistrationv1.Variable
	patches     bool
}

func newRule(e *expression.Environments, s source) rule {
	r := rule{name: s.name, params: s.params, ignore: s.failure != nil && *s.failure == admissionregistrationv1.Ignore}
	r.criteria, r.invalid = intercept.NewCriteria(s.constraints)
	r.conditions = intercept.CompileConditions(e, s.conditions, s.params != nil)
	scope, err := e.Scope(expression.Declarations{Params: s.params != nil, Authorizer: true, Patches: s.patches}, len(s.variables) > 0)
	if err != nil {
		r.invalid = err
		return r
	}
	r.scope = scope
	for _, v := range s.variables {
		_ = scope.Variable(v.Name, expression.Stored, v.Expression) // fails what uses it, when it is used
	}
	return r
}

func newBinding(name string, kind *admissionregistrationv1.ParamKind, ref *admissionregistrationv1.ParamRef, match *admissionregistrationv1.MatchResources) binding {
	b := binding{name: name, parameters: newParameters(kind, ref)}
	b.criteria, b.invalid = intercept.NewCriteria(match)
	return b
}

// version is an object in one of its states.
type version struct {
	uid        types.UID
	generation int64
}

func versionOf(obj runtime.Object) version {
	meta := obj.(metav1.Object)
	return version{meta.GetUID(), meta.GetGeneration()}
}

func byName(list []runtime.Object) []runtime.Object {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b runtime.Object) int {
		return cmp.Compare(a.(metav1.Object).GetName(), b.(metav1.Object).GetName())
	})
	return list
}

// use is a policy's evaluation for one binding and one parameter.
type use struct {
	binding *binding
	target  intercept.Target
	version *intercept.Version
	vars    *expression.Variables
	param   runtime.Object
}

// failure is why a policy or binding could not be evaluated.
type failure struct {
	binding *binding // nil for the policy itself
	err     error
}

func (f *failure) message() string {
	if f.binding == nil {
		return fmt.Sprintf("failed to configure policy: %v", f.err)
	}
	return fmt.Sprintf("failed to configure binding: %v", f.err)
}

// uses are the evaluations of a policy that a request needs, one after the other:
// visit is called for each, and its object may change in between.
func (r *rule) uses(ctx context.Context, kinds Kinds, request *intercept.Request, bindings []binding, visit func(use) error, failed func(failure)) error {
	target, ok, err := request.Match(ctx, r.criteria)
	switch {
	case err != nil:
		failed(failure{err: err})
		return nil
	case !ok:
		return nil
	case r.invalid != nil:
		failed(failure{err: r.invalid})
		return nil
	}
	for i := range bindings {
		b := &bindings[i]
		found, err := r.bound(ctx, kinds, request, b)
		if err != nil {
			failed(failure{b, err})
			continue
		}
		for _, param := range found {
			u := use{binding: b, target: target, param: param}
			if u.version, err = request.As(ctx, target); err != nil {
				failed(failure{b, err})
				continue
			}
			vars, err := request.Variables(ctx, u.version)
			if err != nil {
				return err
			}
			u.vars = vars.With(r.scope, paramValue(param))
			if err := visit(u); err != nil {
				return err
			}
		}
	}
	return nil
}

// bound are the parameters of a binding for a request; none when the binding
// does not match it.
func (r *rule) bound(ctx context.Context, kinds Kinds, request *intercept.Request, b *binding) ([]runtime.Object, error) {
	if b.invalid != nil {
		return nil, b.invalid
	}
	if _, ok, err := request.Match(ctx, b.criteria); err != nil || !ok {
		return nil, err
	}
	return b.parameters.collect(ctx, kinds, request.Attributes.Namespace)
}

// met says whether the match conditions hold. Namespaces are not shown to them.
func (r *rule) met(ctx context.Context, conditions *intercept.ConditionMetrics, request *intercept.Request, u use) (bool, error) {
	if len(r.conditions) == 0 {
		return true, nil
	}
	vars := request.ConditionVariables(u.version).With(nil, u.vars.Params)
	return r.conditions.Met(ctx, vars, conditions, intercept.Subject{
		Name: r.name, Kind: "policy", Type: "validate", Operation: request.Operation,
	})
}

// paramValue is a parameter in the language, nil for none.
func paramValue(param runtime.Object) ref.Val {
	if param == nil {
		return nil
	}
	return expression.Value(param)
}
