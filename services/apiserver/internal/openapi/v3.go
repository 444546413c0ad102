package openapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// group is the description of a group version in OpenAPI 3.
type group struct {
	resources []*registry.Resource // that it describes
	document  document
}

func byVersion(resources []*registry.Resource) map[schema.GroupVersion][]*registry.Resource {
	groups := map[schema.GroupVersion][]*registry.Resource{}
	for _, r := range resources {
		groups[r.GroupVersion()] = append(groups[r.GroupVersion()], r)
	}
	return groups
}

// documentsV3 are the current documents and their index; neither is changed
// later.
func (s *Service) documentsV3() (documents map[string]document, index []byte, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stale {
		if err := s.refreshV3(); err != nil {
			return nil, nil, err
		}
		s.stale = false
	}
	return s.v3, s.index, nil
}

// refreshV3 makes the documents whose resources have changed. Caller must hold
// mu.
func (s *Service) refreshV3() error {
	wanted := byVersion(s.local())
	if err := s.buildGroups(wanted); err != nil {
		return err
	}
	maps.DeleteFunc(s.groups, func(gv schema.GroupVersion, _ *group) bool { return wanted[gv] == nil })
	s.v3 = map[string]document{}
	paths := map[string]map[string]string{}
	for gv, g := range s.groups {
		path := "apis/" + gv.String()
		if gv.Group == "" {
			path = "api/" + gv.Version
		}
		s.v3[path] = g.document
		paths[path] = map[string]string{"serverRelativeURL": groupURL(path, g.document.hash)}
	}
	for _, r := range s.remote {
		if r.V3 != "" {
			paths["apis/"+r.GroupVersion.String()] = map[string]string{"serverRelativeURL": r.V3}
		}
	}
	index, err := json.Marshal(object{"paths": paths})
	s.index = index
	return err
}

// buildGroups reads the embedded schemas only when a built-in group is to be
// described. Caller must hold mu.
func (s *Service) buildGroups(wanted map[schema.GroupVersion][]*registry.Resource) error {
	var all schemas
	for gv, resources := range wanted {
		if have := s.groups[gv]; have != nil && slices.Equal(have.resources, resources) {
			continue
		}
		from := s.base
		if from == nil || slices.ContainsFunc(resources, func(r *registry.Resource) bool { return r.Untyped == nil }) {
			if all == nil {
				loaded, err := loadSchemas(schemasV3)
				if err != nil {
					return err
				}
				all, s.base = loaded, loaded.closure(customModels())
			}
			from = all
		}
		doc, err := s.groupDocument(gv, resources, from)
		if err != nil {
			return fmt.Errorf("describing %s: %w", gv, err)
		}
		s.groups[gv] = &group{resources: resources, document: doc}
	}
	return nil
}

// customModels are those that the descriptions of custom resources refer to.
func customModels() []string {
	return []string{modelStatus, modelDeleteOptions, modelPatch, modelResourceList, modelScale, metaPrefix + "ObjectMeta", metaPrefix + "ListMeta"}
}

// MetaModels are the models of object metadata, which the schemas of custom
// resources refer to, in version 3.
func MetaModels() (map[string]json.RawMessage, error) {
	all, err := loadSchemas(schemasV3)
	if err != nil {
		return nil, err
	}
	return all.closure([]string{metaPrefix + "ObjectMeta"}), nil
}

func (s *Service) groupDocument(gv schema.GroupVersion, resources []*registry.Resource, all schemas) (document, error) {
	rendered, models := renderPaths(groupPaths(gv, resources), renderV3)
	all, err := withCustom(all, resources, false)
	if err != nil {
		return document{}, err
	}
	return newDocument(object{
		"openapi": "3.0.0", "info": s.info(), "paths": rendered,
		"components": object{"schemas": all.closure(models), "securitySchemes": object{
			"BearerToken": object{"type": "apiKey", "name": "authorization", "in": "header", "description": "Bearer Token authentication"},
		}},
		"security": []any{object{"BearerToken": []string{}}},
	})
}

// withCustom adds the models of kinds without a Go type.
func withCustom(all schemas, resources []*registry.Resource, v2 bool) (schemas, error) {
	custom, err := customSchemas(resources, v2)
	if err != nil || len(custom) == 0 {
		return all, err
	}
	maps.Copy(custom, all)
	return custom, nil
}

func customSchemas(resources []*registry.Resource, v2 bool) (schemas, error) {
	custom := schemas{}
	for _, r := range resources {
		if r.Untyped == nil {
			continue
		}
		models, err := r.Untyped.Models(v2)
		if apierrors.IsNotFound(err) {
			continue // it is going away
		}
		if err != nil {
			return nil, fmt.Errorf("describing %s: %w", r.GroupVersionResource, err)
		}
		maps.Copy(custom, models)
	}
	return custom, nil
}
