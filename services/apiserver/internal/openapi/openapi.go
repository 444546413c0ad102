// Package openapi serves the OpenAPI descriptions of the API, version 2 as one
// document and version 3 as an index with one document per group version, made
// from the resource list and the embedded schemas on first use.
package openapi

import (
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/munnerz/goautoneg"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// Service answers /openapi/v2 and /openapi/v3. It keeps documents compressed;
// nothing is built before it is asked for.
type Service struct {
	version   string
	resources []*registry.Resource

	once  sync.Once
	err   error
	v2    document
	v3    map[string]document // by "api/v1", "apis/apps/v1"
	index []byte
}

// document is one description: its JSON, compressed, and a hash of it.
type document struct {
	compressed []byte
	hash       string
}

// New describes resources; version is the server's.
func New(version string, resources []*registry.Resource) *Service {
	return &Service{version: version, resources: resources}
}

// Handler serves every path under /openapi.
func (s *Service) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "the OpenAPI documents can only be read", http.StatusMethodNotAllowed)
			return
		}
		s.once.Do(s.build)
		if s.err != nil {
			http.Error(w, s.err.Error(), http.StatusInternalServerError)
			return
		}
		switch path := strings.TrimSuffix(r.URL.Path, "/"); {
		case path == "/openapi/v2":
			serve(w, r, s.v2, "application/com.github.proto-openapi.spec.v2.v1.0+protobuf", handler.ToProtoBinary)
		case path == "/openapi/v3":
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(s.index)
		case strings.HasPrefix(path, "/openapi/v3/"):
			s.serveGroup(w, r, strings.TrimPrefix(path, "/openapi/v3/"))
		default:
			http.NotFound(w, r)
		}
	})
}

func (s *Service) serveGroup(w http.ResponseWriter, r *http.Request, group string) {
	doc, ok := s.v3[group]
	if !ok {
		http.NotFound(w, r)
		return
	}
	// A request that names the current hash may be cached for good; one that names
	// an old one is sent to the current document.
	if hash := r.URL.Query().Get("hash"); hash != "" {
		if hash != doc.hash {
			http.Redirect(w, r, groupURL(group, doc.hash), http.StatusMovedPermanently)
			return
		}
		w.Header().Set("Cache-Control", "public, immutable")
	}
	serve(w, r, doc, "application/com.github.proto-openapi.spec.v3.v1.0+protobuf", handler3.ToV3ProtoBinary)
}

func serve(w http.ResponseWriter, r *http.Request, doc document, protobufType string, toProtobuf func([]byte) ([]byte, error)) {
	chosen, ok := negotiate(r.Header.Get("Accept"), protobufType)
	if !ok {
		http.Error(w, "only application/json and "+protobufType+" are served", http.StatusNotAcceptable)
		return
	}
	etag := `"` + doc.hash + `"`
	w.Header().Set("Etag", etag)
	w.Header().Set("Vary", "Accept, Accept-Encoding")
	if r.Header.Get("If-None-Match") == etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.Header().Set("Content-Type", chosen)
	if chosen == "application/json" && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(doc.compressed)
		return
	}
	data, err := decompress(doc.compressed)
	if err == nil && chosen == protobufType {
		data, err = toProtobuf(data)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = w.Write(data)
}

// negotiate picks JSON or protobuf. Clients spell the protobuf type with an "@"
// too, which is no valid media type; the answer has a "." in its place.
func negotiate(accept, protobufType string) (string, bool) {
	if accept == "" {
		return "application/json", true
	}
	for _, clause := range goautoneg.ParseAccept(accept) {
		switch spelled := clause.Type + "/" + clause.SubType; spelled {
		case "application/json", "*/*", "application/*":
			return "application/json", true
		case protobufType, strings.Replace(protobufType, ".v1.0", "@v1.0", 1):
			return protobufType, true
		}
	}
	return "", false
}

func (s *Service) build() {
	groups := map[schema.GroupVersion][]*registry.Resource{}
	for _, r := range s.resources {
		gv := r.GroupVersion()
		groups[gv] = append(groups[gv], r)
	}
	if s.err = s.buildV3(groups); s.err == nil {
		s.err = s.buildV2(groups)
	}
}

func (s *Service) info() object {
	return object{"title": "Kubernetes", "version": s.version}
}

func (s *Service) buildV3(groups map[schema.GroupVersion][]*registry.Resource) error {
	all, err := loadSchemas(schemasV3)
	if err != nil {
		return err
	}
	s.v3 = map[string]document{}
	index := map[string]map[string]string{}
	for gv, resources := range groups {
		rendered, models := renderPaths(groupPaths(gv, resources), renderV3)
		doc, err := newDocument(object{
			"openapi": "3.0.0", "info": s.info(), "paths": rendered,
			"components": object{"schemas": all.closure(models), "securitySchemes": object{
				"BearerToken": object{"type": "apiKey", "name": "authorization", "in": "header", "description": "Bearer Token authentication"},
			}},
			"security": []any{object{"BearerToken": []string{}}},
		})
		if err != nil {
			return fmt.Errorf("describing %s: %w", gv, err)
		}
		path := "apis/" + gv.String()
		if gv.Group == "" {
			path = "api/" + gv.Version
		}
		s.v3[path] = doc
		index[path] = map[string]string{"serverRelativeURL": groupURL(path, doc.hash)}
	}
	s.index, err = json.Marshal(object{"paths": index})
	return err
}

func (s *Service) buildV2(groups map[schema.GroupVersion][]*registry.Resource) error {
	all, err := loadSchemas(schemasV2)
	if err != nil {
		return err
	}
	everything := paths{}
	for gv, resources := range groups {
		for path, operations := range groupPaths(gv, resources) {
			everything[path] = operations
		}
	}
	rendered, models := renderPaths(everything, renderV2)
	s.v2, err = newDocument(object{
		"swagger": "2.0", "info": s.info(), "paths": rendered, "definitions": all.closure(models),
		"securityDefinitions": object{"BearerToken": object{"type": "apiKey", "name": "authorization", "in": "header", "description": "Bearer Token authentication"}},
		"security":            []any{object{"BearerToken": []string{}}},
	})
	return err
}

func newDocument(content object) (document, error) {
	data, err := json.Marshal(content)
	if err != nil {
		return document{}, err
	}
	compressed, err := compress(data)
	if err != nil {
		return document{}, err
	}
	return document{compressed: compressed, hash: fmt.Sprintf("%X", sha512.Sum512(data))}, nil
}

func groupURL(group, hash string) string {
	return "/openapi/v3/" + group + "?hash=" + url.QueryEscape(hash)
}
