package openapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// Remote is the description of a group version that another server serves, in
// place of this one.
type Remote struct {
	GroupVersion schema.GroupVersion
	// V3 is where the server's description in version 3 is, relative to this server,
	// which passes the request on; "" is nowhere.
	V3 string
	// V2 is the server's share of the document of version 2; nil is none.
	V2 *Share
}

// Share is paths with the definitions that they refer to, of OpenAPI 2.
type Share struct {
	Paths       map[string]json.RawMessage
	Definitions map[string]json.RawMessage
}

// ParseShare takes a server's document of version 2 apart and keeps what is about
// one group version.
func ParseShare(data []byte, gv schema.GroupVersion) (*Share, error) {
	var document struct {
		Paths       map[string]json.RawMessage `json:"paths"`
		Definitions map[string]json.RawMessage `json:"definitions"`
	}
	if err := json.Unmarshal(data, &document); err != nil {
		return nil, fmt.Errorf("reading an OpenAPI document: %w", err)
	}
	share := &Share{Paths: map[string]json.RawMessage{}}
	var roots []string
	for path, item := range document.Paths {
		if !strings.HasPrefix(path, "/apis/"+gv.String()+"/") {
			continue
		}
		var compact bytes.Buffer
		if err := json.Compact(&compact, item); err != nil {
			return nil, fmt.Errorf("reading an OpenAPI document: %w", err)
		}
		share.Paths[path] = compact.Bytes()
		roots = append(roots, refersTo(compact.Bytes())...)
	}
	all := schemas{}
	for name, definition := range document.Definitions {
		var compact bytes.Buffer
		if err := json.Compact(&compact, definition); err != nil {
			return nil, fmt.Errorf("reading an OpenAPI document: %w", err)
		}
		all[name] = compact.Bytes()
		// Kinds are found by their definitions, though no path may refer to them.
		if bytes.Contains(compact.Bytes(), []byte(`"group":"`+gv.Group+`"`)) {
			roots = append(roots, name)
		}
	}
	share.Definitions = all.closure(roots)
	return share, nil
}

func refersTo(data []byte) []string {
	var names []string
	for _, match := range reference.FindAllSubmatch(data, -1) {
		names = append(names, string(match[1]))
	}
	return names
}

// SetRemote describes what other servers serve from now on.
func (s *Service) SetRemote(remote []Remote) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remote, s.stale, s.v2.stale = remote, true, true
}

// local are the resources that no other server serves. Caller must hold mu.
func (s *Service) local() []*registry.Resource {
	if len(s.remote) == 0 {
		return s.resources
	}
	return slices.DeleteFunc(slices.Clone(s.resources), func(local *registry.Resource) bool {
		return slices.ContainsFunc(s.remote, func(r Remote) bool { return r.GroupVersion == local.GroupVersion() })
	})
}

// remoteParts are the shares of other servers. A definition whose name is taken is
// left out when it is the same, and gets another name when it is not. Caller must
// hold mu.
func (s *Service) remoteParts(parts []*part) ([]*part, error) {
	taken := map[string]json.RawMessage{}
	var out []*part
	for _, r := range s.remote {
		if r.V2 == nil {
			continue
		}
		if len(taken) == 0 {
			if err := collect(taken, parts); err != nil {
				return nil, err
			}
		}
		p, err := r.V2.part(taken)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

// collect adds the definitions of parts.
func collect(into map[string]json.RawMessage, parts []*part) error {
	for _, p := range parts {
		data, err := decompress(p.definitions)
		if err != nil {
			return err
		}
		if err := json.Unmarshal(slices.Concat([]byte("{"), data, []byte("}")), &into); err != nil {
			return fmt.Errorf("reading definitions: %w", err)
		}
	}
	return nil
}

// part is the share without what is taken, to which it adds its own.
func (s *Share) part(taken map[string]json.RawMessage) (*part, error) {
	renamed := map[string]string{}
	for name, definition := range s.Definitions {
		if other, ok := taken[name]; ok && !sameDefinition(other, definition) {
			for n := 2; ; n++ {
				candidate := fmt.Sprintf("%s_v%d", name, n)
				if _, ok := taken[candidate]; !ok {
					renamed[name] = candidate
					break
				}
			}
		}
	}
	definitions := map[string]json.RawMessage{}
	for name, definition := range s.Definitions {
		if candidate, ok := renamed[name]; ok {
			name = candidate
		} else if _, ok := taken[name]; ok {
			continue
		}
		definitions[name] = rename(definition, renamed)
		taken[name] = definitions[name]
	}
	paths := map[string]json.RawMessage{}
	for path, item := range s.Paths {
		paths[path] = rename(item, renamed)
	}
	p := &part{}
	var err error
	if p.paths, err = members(paths); err != nil {
		return nil, err
	}
	p.definitions, err = members(definitions)
	return p, err
}

// sameDefinition takes definitions of the same type for the same: descriptions
// differ between versions of a library.
func sameDefinition(a, b json.RawMessage) bool {
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return false
	}
	first, err := json.Marshal(undescribed(x))
	if err != nil {
		return false
	}
	second, err := json.Marshal(undescribed(y))
	return err == nil && bytes.Equal(first, second)
}

// undescribed is a schema without its texts and the list of kinds that it is
// known under.
func undescribed(value any) any {
	switch v := value.(type) {
	case map[string]any:
		out := map[string]any{}
		for key, inner := range v {
			if _, text := inner.(string); key == "description" && text || key == "x-kubernetes-group-version-kind" || key == "default" {
				continue
			}
			out[key] = undescribed(inner)
		}
		return out
	case []any:
		for i := range v {
			v[i] = undescribed(v[i])
		}
	}
	return value
}

func rename(data json.RawMessage, names map[string]string) json.RawMessage {
	if len(names) == 0 {
		return data
	}
	return reference.ReplaceAllFunc(data, func(match []byte) []byte {
		name := string(reference.FindSubmatch(match)[1])
		if other, ok := names[name]; ok {
			return bytes.Replace(match, []byte("/"+name+`"`), []byte("/"+other+`"`), 1)
		}
		return match
	})
}
