package openapi

import (
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// Resolver finds the schemas of kinds, for those that check expressions against
// them. It holds the embedded schemas in memory, so it is made for one use.
type Resolver struct {
	all    schemas
	parsed map[string]*spec.Schema
}

// NewResolver loads the embedded schemas.
func NewResolver() (*Resolver, error) {
	all, err := loadSchemas(schemasV3)
	return &Resolver{all: all, parsed: map[string]*spec.Schema{}}, err
}

// Schema is a kind's schema, in which what it refers to stands in place.
func (r *Resolver) Schema(resource *registry.Resource) (*spec.Schema, error) {
	all, err := withCustom(r.all, []*registry.Resource{resource}, false)
	if err != nil {
		return nil, err
	}
	var broken error
	found := func(ref string) (*spec.Schema, bool) {
		name := strings.TrimPrefix(ref, "#/components/schemas/")
		if schema := r.parsed[name]; schema != nil {
			return schema, true
		}
		data, ok := all[name]
		if !ok {
			return nil, false
		}
		schema := &spec.Schema{}
		if err := json.Unmarshal(data, schema); err != nil {
			broken = fmt.Errorf("reading the schema %s: %w", name, err)
			return nil, false
		}
		if resource.Untyped == nil {
			r.parsed[name] = schema
		}
		return schema, true
	}
	schema, err := resolver.PopulateRefs(found, kindModel(resource))
	if broken != nil {
		return nil, broken
	}
	return schema, err
}
