// Package expression compiles and runs the CEL expressions of admission: match
// conditions of webhooks and policies, and what policies validate and mutate.
package expression

import (
	"fmt"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"k8s.io/apimachinery/pkg/util/version"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/cel/library"
	"k8s.io/apiserver/pkg/cel/mutation"
)

// Mode says which features of the language an expression may use.
type Mode = environment.Type

// The modes: what is written now must be understood by the server before this
// one; what is stored already may use all.
const (
	New    = environment.NewExpressions
	Stored = environment.StoredExpressions
)

// Declarations say which variables and types expressions see besides object,
// oldObject, request and namespaceObject.
type Declarations struct {
	Params     bool // params
	Authorizer bool // authorizer and authorizer.requestResource
	Patches    bool // Object, JSONPatch and their kin
}

// Environments makes the environments in which expressions are compiled. Making
// one takes milliseconds, so each is made on first use and kept.
type Environments struct {
	base func() *environment.EnvSet

	mu   sync.Mutex
	sets map[Declarations]*environment.EnvSet
}

// NewEnvironments is without any environment yet.
func NewEnvironments() *Environments {
	return &Environments{
		base: sync.OnceValue(func() *environment.EnvSet {
			return environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
		}),
		sets: map[Declarations]*environment.EnvSet{},
	}
}

// Base is the environment without admission's variables.
func (e *Environments) Base() *environment.EnvSet { return e.base() }

// set is the environment with the declarations. It fails only for a mistake in
// the program.
func (e *Environments) set(d Declarations) (*environment.EnvSet, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if set := e.sets[d]; set != nil {
		return set, nil
	}
	set, err := Declare(e.base(), d, cel.DynType, cel.DynType)
	if err != nil {
		return nil, err
	}
	e.sets[d] = set
	return set, nil
}

// Declare adds admission's variables to an environment: object and params with
// the given types, whose declarations are among declared.
func Declare(base *environment.EnvSet, d Declarations, object, params *cel.Type, declared ...*apiservercel.DeclType) (*environment.EnvSet, error) {
	request, namespace := plugincel.BuildRequestType(), plugincel.BuildNamespaceType()
	options := []cel.EnvOption{
		cel.Variable(plugincel.ObjectVarName, object),
		cel.Variable(plugincel.OldObjectVarName, object),
		cel.Variable(plugincel.RequestVarName, request.CelType()),
		cel.Variable(plugincel.NamespaceVarName, namespace.CelType()),
	}
	if d.Params {
		options = append(options, cel.Variable(plugincel.ParamsVarName, params))
	}
	if d.Authorizer {
		options = append(options,
			cel.Variable(plugincel.AuthorizerVarName, library.AuthorizerType),
			cel.Variable(plugincel.RequestResourceAuthorizerVarName, library.ResourceCheckType))
	}
	set, err := base.Extend(
		environment.VersionedOptions{
			IntroducedVersion: always(), EnvOptions: options,
			DeclTypes: append([]*apiservercel.DeclType{namespace, request}, declared...),
		},
		environment.StrictCostOpt,
	)
	if err == nil && d.Patches {
		// A step of its own: declared types replace the types that options of the same
		// step resolve.
		set, err = set.Extend(environment.VersionedOptions{IntroducedVersion: always(), EnvOptions: []cel.EnvOption{
			common.ResolverEnvOption(&mutation.DynamicTypeResolver{}),
			environment.UnversionedLib(library.JSONPatch),
		}})
	}
	if err != nil {
		return nil, fmt.Errorf("making a CEL environment: %w", err)
	}
	return set, nil
}

// always is a version before every one that an environment can be compatible
// with.
func always() *version.Version { return version.MajorMinor(1, 0) }

// ApplyConfigurationType is what a mutation of type ApplyConfiguration evaluates
// to.
func ApplyConfigurationType() *cel.Type { return types.NewObjectType("Object") }

// JSONPatchType is what a mutation of type JSONPatch evaluates to.
func JSONPatchType() *cel.Type { return cel.ListType(types.NewObjectType("JSONPatch")) }
