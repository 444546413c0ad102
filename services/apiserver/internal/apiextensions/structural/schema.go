// Package structural applies the schema of one version of a custom resource to
// its objects: what is pruned, defaulted, refused, and how objects merge. The
// algorithms are upstream's leaf packages.
package structural

import (
	"fmt"
	"slices"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	structuraldefaulting "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	apiservervalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
)

// Schema is the compiled schema of one version. It may be used by many
// goroutines.
type Schema struct {
	kind schema.GroupVersionKind
	// shape is nil where the version has no schema: then objects are kept whole.
	shape *structuralschema.Structural
	// keep lets unknown fields be, as definitions of v1beta1 could ask for.
	keep bool

	// validators and rules are made when the first object is written.
	validators func() (validators, error)
	rules      func() *cel.Validator
	scale      *apiextensionsv1.CustomResourceSubresourceScale
	namespaced bool
}

// validators check objects against the parts of schemas that say what values may
// be.
type validators struct {
	whole, status apiservervalidation.SchemaValidator
}

// Compile compiles the schema of a version of a definition, which it does not
// keep, whose objects are of an accepted kind. A definition that was validated
// compiles.
func Compile(crd *apiextensionsv1.CustomResourceDefinition, version, kind string) (*Schema, error) {
	at := slices.IndexFunc(crd.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Name == version })
	if at < 0 {
		return nil, fmt.Errorf("%s has no version %s", crd.Name, version)
	}
	v := crd.Spec.Versions[at].DeepCopy()
	s := &Schema{
		kind: schema.GroupVersionKind{Group: crd.Spec.Group, Version: version, Kind: kind},
		keep: crd.Spec.PreserveUnknownFields, namespaced: crd.Spec.Scope == apiextensionsv1.NamespaceScoped,
	}
	if v.Subresources != nil {
		s.scale = v.Subresources.Scale
	}
	props, err := internalProps(v.Schema)
	if err != nil {
		return nil, fmt.Errorf("reading schema of %s: %w", s.kind, err)
	}
	if s.shape, err = shape(props, s.keep); err != nil {
		return nil, fmt.Errorf("reading schema of %s: %w", s.kind, err)
	}
	hasStatus := v.Subresources != nil && v.Subresources.Status != nil
	s.validators = sync.OnceValues(func() (validators, error) { return newValidators(props, hasStatus) })
	s.rules = sync.OnceValue(func() *cel.Validator { return cel.NewValidator(s.shape, true, celconfig.PerCallLimit) })
	return s, nil
}

// SchemaOf is the schema of a version in the form that upstream's packages work
// on, nil when it has none.
func SchemaOf(crd *apiextensionsv1.CustomResourceDefinition, version string) (*structuralschema.Structural, error) {
	external, err := apihelpers.GetSchemaForVersion(crd, version)
	if err != nil {
		return nil, err
	}
	props, err := internalProps(external.DeepCopy())
	if err != nil || props == nil {
		return nil, err
	}
	return structuralschema.NewStructural(props)
}

func internalProps(external *apiextensionsv1.CustomResourceValidation) (*apiextensions.JSONSchemaProps, error) {
	if external == nil || external.OpenAPIV3Schema == nil {
		return nil, nil
	}
	out := &apiextensions.CustomResourceValidation{}
	if err := apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(external, out, nil); err != nil {
		return nil, err
	}
	return out.OpenAPIV3Schema, nil
}

// shape is the structural schema, with defaults that are as they would be
// stored. A definition that keeps unknown fields need not be structural.
func shape(props *apiextensions.JSONSchemaProps, keep bool) (*structuralschema.Structural, error) {
	if props == nil {
		return nil, nil
	}
	s, err := structuralschema.NewStructural(props)
	if keep {
		return s, nil //nolint:nilerr // an older definition, which has no structural schema then
	}
	if err != nil {
		return nil, err
	}
	s = s.DeepCopy() // its defaults are the definition's
	return s, structuraldefaulting.PruneDefaults(s)
}

func newValidators(props *apiextensions.JSONSchemaProps, hasStatus bool) (validators, error) {
	var out validators
	var err error
	if out.whole, _, err = apiservervalidation.NewSchemaValidator(props); err != nil {
		return out, err
	}
	if !hasStatus || props == nil {
		return out, nil
	}
	if status, ok := props.Properties["status"]; ok {
		out.status, _, err = apiservervalidation.NewSchemaValidator(&status)
	}
	return out, err
}
