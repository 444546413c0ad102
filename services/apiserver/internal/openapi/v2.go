package openapi

import (
	"bytes"
	"encoding/json"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// v2 is the one document of OpenAPI 2, and the parts that it is put together
// from: the built-in kinds, and each group version of custom resources.
type v2 struct {
	stale    bool // document is older than the resources
	document document
	builtIn  *part
	custom   map[schema.GroupVersion]*part
}

// part is a share of the paths and definitions: the members of both JSON
// objects, without braces, compressed.
type part struct {
	resources          []*registry.Resource
	paths, definitions []byte
}

func (s *Service) documentV2() (document, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.v2.stale {
		return s.v2.document, nil
	}
	parts, err := s.partsV2()
	if err != nil {
		return document{}, err
	}
	others, err := s.remoteParts(parts)
	if err != nil {
		return document{}, err
	}
	data, err := s.joinV2(append(parts, others...))
	if err != nil {
		return document{}, err
	}
	s.v2.document, err = documentOf(data)
	s.v2.stale = err != nil
	return s.v2.document, err
}

// partsV2 makes the parts whose resources have changed. Caller must hold mu.
func (s *Service) partsV2() ([]*part, error) {
	builtIn, custom := split(s.local())
	if s.v2.builtIn == nil || !slices.Equal(s.v2.builtIn.resources, builtIn) {
		all, err := loadSchemas(schemasV2)
		if err != nil {
			return nil, err
		}
		if s.v2.builtIn, err = newPart(builtIn, all, customModels()); err != nil {
			return nil, err
		}
	}
	parts := []*part{s.v2.builtIn}
	kept := map[schema.GroupVersion]*part{}
	for gv, resources := range byVersion(custom) {
		p := s.v2.custom[gv]
		if p == nil || !slices.Equal(p.resources, resources) {
			models, err := customSchemas(resources, true)
			if err == nil {
				p, err = newPart(resources, models, nil)
			}
			if err != nil {
				return nil, err
			}
		}
		kept[gv] = p
		parts = append(parts, p)
	}
	s.v2.custom = kept
	return parts, nil
}

func split(resources []*registry.Resource) (builtIn, custom []*registry.Resource) {
	for _, r := range resources {
		if r.Untyped == nil {
			builtIn = append(builtIn, r)
		} else {
			custom = append(custom, r)
		}
	}
	return builtIn, custom
}

func newPart(resources []*registry.Resource, all schemas, further []string) (*part, error) {
	everything := paths{}
	for gv, list := range byVersion(resources) {
		for path, operations := range groupPaths(gv, list) {
			everything[path] = operations
		}
	}
	rendered, models := renderPaths(everything, renderV2)
	p := &part{resources: resources}
	var err error
	if p.paths, err = members(rendered); err != nil {
		return nil, err
	}
	p.definitions, err = members(all.closure(append(models, further...)))
	return p, err
}

// members is what stands between the braces of a JSON object, compressed.
func members(content any) ([]byte, error) {
	data, err := json.Marshal(content)
	if err != nil {
		return nil, err
	}
	return compress(data[1 : len(data)-1])
}

// joinV2 is the whole document. Caller must hold mu.
func (s *Service) joinV2(parts []*part) ([]byte, error) {
	frame, err := json.Marshal(object{
		"swagger": "2.0", "info": s.info(),
		"securityDefinitions": object{"BearerToken": object{"type": "apiKey", "name": "authorization", "in": "header", "description": "Bearer Token authentication"}},
		"security":            []any{object{"BearerToken": []string{}}},
	})
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	out.WriteString(`{"paths":{`)
	if err := joinMembers(&out, parts, func(p *part) []byte { return p.paths }); err != nil {
		return nil, err
	}
	out.WriteString(`},"definitions":{`)
	if err := joinMembers(&out, parts, func(p *part) []byte { return p.definitions }); err != nil {
		return nil, err
	}
	out.WriteString(`},`)
	out.Write(frame[1:])
	return out.Bytes(), nil
}

func joinMembers(out *bytes.Buffer, parts []*part, of func(*part) []byte) error {
	separator := ""
	for _, p := range parts {
		data, err := decompress(of(p))
		if err != nil {
			return err
		}
		if len(data) == 0 {
			continue
		}
		out.WriteString(separator)
		out.Write(data)
		separator = ","
	}
	return nil
}
