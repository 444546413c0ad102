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
// nothing is built before it is asked for, and only what has changed since.
type Service struct {
	version string

	mu        sync.Mutex
	resources []*registry.Resource
	remote    []Remote
	stale     bool // v3 is older than resources and remote
	groups    map[schema.GroupVersion]*group
	v3        map[string]document // by "api/v1", "apis/apps/v1"
	index     []byte
	base      schemas // of version 3, what custom resources refer to
	v2        v2
}

// document is one description: its JSON, compressed, and a hash of it.
type document struct {
	compressed []byte
	hash       string
}

// New describes resources; version is the server's.
func New(version string, resources []*registry.Resource) *Service {
	s := &Service{version: version, groups: map[schema.GroupVersion]*group{}}
	s.Set(resources)
	return s
}

// Set describes other resources from now on.
func (s *Service) Set(resources []*registry.Resource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resources, s.stale, s.v2.stale = resources, true, true
}

// Handler serves every path under /openapi.
func (s *Service) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "the OpenAPI documents can only be read", http.StatusMethodNotAllowed)
			return
		}
		path := strings.TrimSuffix(r.URL.Path, "/")
		err := error(nil)
		switch {
		case path == "/openapi/v2":
			err = s.serveV2(w, r)
		case path == "/openapi/v3":
			err = s.serveIndex(w)
		case strings.HasPrefix(path, "/openapi/v3/"):
			err = s.serveGroup(w, r, strings.TrimPrefix(path, "/openapi/v3/"))
		default:
			http.NotFound(w, r)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
}

func (s *Service) serveV2(w http.ResponseWriter, r *http.Request) error {
	doc, err := s.documentV2()
	if err != nil {
		return err
	}
	serve(w, r, doc, "application/com.github.proto-openapi.spec.v2.v1.0+protobuf", handler.ToProtoBinary)
	return nil
}

func (s *Service) serveIndex(w http.ResponseWriter) error {
	_, index, err := s.documentsV3()
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(index)
	return nil
}

func (s *Service) serveGroup(w http.ResponseWriter, r *http.Request, group string) error {
	documents, _, err := s.documentsV3()
	if err != nil {
		return err
	}
	doc, ok := documents[group]
	if !ok {
		http.NotFound(w, r)
		return nil
	}
	// A request that names the current hash may be cached for good; one that names
	// an old one is sent to the current document.
	if hash := r.URL.Query().Get("hash"); hash != "" {
		if hash != doc.hash {
			http.Redirect(w, r, groupURL(group, doc.hash), http.StatusMovedPermanently)
			return nil
		}
		w.Header().Set("Cache-Control", "public, immutable")
	}
	serve(w, r, doc, "application/com.github.proto-openapi.spec.v3.v1.0+protobuf", handler3.ToV3ProtoBinary)
	return nil
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

func (s *Service) info() object {
	return object{"title": "Kubernetes", "version": s.version}
}

func newDocument(content object) (document, error) {
	data, err := json.Marshal(content)
	if err != nil {
		return document{}, err
	}
	return documentOf(data)
}

func documentOf(data []byte) (document, error) {
	compressed, err := compress(data)
	if err != nil {
		return document{}, err
	}
	return document{compressed: compressed, hash: fmt.Sprintf("%X", sha512.Sum512(data))}, nil
}

func groupURL(group, hash string) string {
	return "/openapi/v3/" + group + "?hash=" + url.QueryEscape(hash)
}
