package expression

import (
	"context"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/cel/lazy"
)

// variablesType is the type of what is composed under "variables".
const variablesType = "kubernetes.variables"

// Scope compiles the expressions of one policy, whose variables build on each
// other. It is used by one goroutine; what it compiled may be used by many.
type Scope struct {
	set      *environment.EnvSet
	fields   *apiservercel.DeclType // nil without variables
	composed []composed
}

// composed is one variable of a policy.
type composed struct {
	name    string
	program *Program
	err     error
}

// Scope is where a policy with those declarations is compiled; composing says
// that it has variables of its own.
func (e *Environments) Scope(d Declarations, composing bool) (*Scope, error) {
	set, err := e.set(d)
	if err != nil {
		return nil, err
	}
	return NewScope(set, composing)
}

// Sibling compiles expressions that see the scope's variables, but other
// declarations.
func (e *Environments) Sibling(scope *Scope, d Declarations) (*Scope, error) {
	set, err := e.set(d)
	if err != nil {
		return nil, err
	}
	if scope.fields == nil {
		return &Scope{set: set}, nil
	}
	set, err = withVariables(set, scope.fields)
	return &Scope{set: set, fields: scope.fields}, err
}

// NewScope is a Scope over any environment that Declare made.
func NewScope(set *environment.EnvSet, composing bool) (*Scope, error) {
	if !composing {
		return &Scope{set: set}, nil
	}
	fields := apiservercel.NewObjectType(variablesType, map[string]*apiservercel.DeclField{})
	set, err := withVariables(set, fields)
	if err != nil {
		return nil, err
	}
	return &Scope{set: set, fields: fields}, nil
}

func withVariables(set *environment.EnvSet, fields *apiservercel.DeclType) (*environment.EnvSet, error) {
	return set.Extend(environment.VersionedOptions{
		IntroducedVersion: always(),
		EnvOptions:        []cel.EnvOption{cel.Variable(plugincel.VariableVarName, fields.CelType())},
		DeclTypes:         []*apiservercel.DeclType{fields},
	})
}

// Variable compiles a variable, which later expressions may use. One that does
// not compile makes those fail that use it.
func (s *Scope) Variable(name string, mode Mode, source string) *apiservercel.Error {
	program, err := compile(s.set, mode, source, nil)
	variable := composed{name: name, program: program}
	kind := apiservercel.DynType
	if err != nil {
		variable.err = err
	} else {
		kind = declared(program.output)
	}
	s.fields.Fields[name] = apiservercel.NewDeclField(name, kind, true, nil, nil)
	s.composed = append(s.composed, variable)
	return err
}

// Compile compiles an expression that must have one of the types; none allows
// all.
func (s *Scope) Compile(mode Mode, source string, returns ...*cel.Type) (*Program, *apiservercel.Error) {
	return compile(s.set, mode, source, returns)
}

// declared is a type of the language as a declaration.
func declared(t *cel.Type) *apiservercel.DeclType {
	simple := map[*cel.Type]*apiservercel.DeclType{
		cel.AnyType: apiservercel.AnyType, cel.BoolType: apiservercel.BoolType, cel.BytesType: apiservercel.BytesType,
		cel.DoubleType: apiservercel.DoubleType, cel.DurationType: apiservercel.DurationType, cel.IntType: apiservercel.IntType,
		cel.NullType: apiservercel.NullType, cel.StringType: apiservercel.StringType, cel.TimestampType: apiservercel.TimestampType,
		cel.UintType: apiservercel.UintType,
	}
	if found := simple[t]; found != nil {
		return found
	}
	if t != nil && t.HasTrait(traits.ContainerType) && t.HasTrait(traits.IndexerType) {
		switch parameters := t.Parameters(); len(parameters) {
		case 1:
			return apiservercel.NewListType(declared(parameters[0]), -1)
		case 2:
			return apiservercel.NewMapType(declared(parameters[0]), declared(parameters[1]), -1)
		}
	}
	return apiservercel.DynType
}

// Value is a Go value as a value of the language, made lazily. It may be used by
// one goroutine only.
func Value(obj runtime.Object) ref.Val {
	switch typed := obj.(type) {
	case nil:
		return types.NullValue
	case *unstructured.Unstructured:
		return types.DefaultTypeAdapter.NativeToValue(typed.Object)
	default:
		return common.SchemalessTypedToVal(typed)
	}
}

// Variables are what expressions see in one request. They are used by one
// goroutine.
type Variables struct {
	Object, OldObject, Request, Namespace, Params ref.Val
	// Authorizer and RequestResource are nil where expressions have no authorizer.
	Authorizer, RequestResource ref.Val
	// Frame may be nil; then each expression has one of its own.
	Frame *Frame

	composed *lazy.MapValue
	ctx      context.Context
	budget   *Budget
}

// With are the variables as the expressions of a policy see them, with a parameter
// (nil for none), and with its own variables, which are evaluated when they are
// first asked for. Where it has neither they are v itself.
func (v *Variables) With(scope *Scope, params ref.Val) *Variables {
	composing := scope != nil && scope.fields != nil
	if !composing && params == nil {
		return v
	}
	copied := *v
	vars := &copied
	vars.Params = params
	if !composing {
		return vars
	}
	vars.composed = lazy.NewMapValue(scope.fields)
	for _, variable := range scope.composed {
		vars.composed.Append(variable.name, func(*lazy.MapValue) ref.Val { return vars.compose(variable) })
	}
	return vars
}

func (v *Variables) compose(variable composed) ref.Val {
	if variable.err != nil {
		return types.NewErr("composited variable %q fails to compile: %v", variable.name, variable.err)
	}
	value, details, err := variable.program.program.ContextEval(v.ctx, v)
	if details == nil || !v.budget.spend(details.ActualCost()) {
		return types.NewErr("composited variable %q exceeds the cost budget", variable.name)
	}
	if err != nil {
		return types.NewErr("composited variable %q fails to evaluate: %v", variable.name, err)
	}
	return value
}

// ResolveName implements interpreter.Activation.
func (v *Variables) ResolveName(name string) (any, bool) {
	switch name {
	case plugincel.ObjectVarName:
		return v.Object, true
	case plugincel.OldObjectVarName:
		return v.OldObject, true
	case plugincel.RequestVarName:
		return v.Request, true
	case plugincel.NamespaceVarName:
		return v.Namespace, true
	case plugincel.ParamsVarName:
		if v.Params == nil {
			return types.NullValue, true
		}
		return v.Params, true
	case plugincel.AuthorizerVarName:
		return v.Authorizer, v.Authorizer != nil
	case plugincel.RequestResourceAuthorizerVarName:
		return v.RequestResource, v.RequestResource != nil
	case plugincel.VariableVarName:
		return v.composed, v.composed != nil
	}
	return nil, false
}

// Parent implements interpreter.Activation.
func (v *Variables) Parent() interpreter.Activation { return nil }

// RequestValue is a request as expressions see it: without its objects.
func RequestValue(r *admissionv1.AdmissionRequest) ref.Val {
	request := *r
	request.Object, request.OldObject = runtime.RawExtension{}, runtime.RawExtension{}
	return common.SchemalessTypedToVal(&request)
}

// NamespaceValue is a namespace as expressions see it; nil is null.
func NamespaceValue(n *corev1.Namespace) ref.Val {
	if n == nil {
		return types.NullValue
	}
	seen := &corev1.Namespace{ObjectMeta: n.ObjectMeta, Spec: n.Spec, Status: n.Status}
	seen.OwnerReferences, seen.ManagedFields = nil, nil
	return common.SchemalessTypedToVal(seen)
}
