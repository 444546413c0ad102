//go:build openapi

// Command openapi writes the OpenAPI schemas of the built-in types, for OpenAPI
// v3 and v2, as the compressed JSON files that the API server embeds. The Go
// form that openapi-gen makes lies in package definitions and is not kept: it
// would be compiled into the server and fill its heap.
package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sort"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-openapi/pkg/builder3/util"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/schemamutation"
	"k8s.io/kube-openapi/pkg/validation/spec"
	metricsv1 "k8s.io/metrics/pkg/apis/metrics/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/sampan-io/sampan/scripts/tools/openapi/definitions"
)

const kindExtension = "x-kubernetes-group-version-kind"

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: openapi DIRECTORY")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "openapi:", err)
		os.Exit(1)
	}
}

func write(dir string) error {
	kinds, err := kindsByModel()
	if err != nil {
		return err
	}
	if err := writeJSON(filepath.Join(dir, "definitions.v3.json.gz"), build("#/components/schemas/", kinds, formV3)); err != nil {
		return err
	}
	return writeJSON(filepath.Join(dir, "definitions.v2.json.gz"), build("#/definitions/", kinds, formV2))
}

func build(prefix string, kinds map[string][]map[string]any, form func(spec.Schema) spec.Schema) map[string]spec.Schema {
	out := map[string]spec.Schema{}
	for name, definition := range definitions.GetOpenAPIDefinitions(func(model string) spec.Ref {
		return spec.MustCreateRef(prefix + model)
	}) {
		shape := form(definition.Schema)
		if list := kinds[name]; list != nil {
			shape.AddExtension(kindExtension, list)
		}
		out[name] = shape
	}
	return out
}

// formV3 moves what stands beside a $ref into an allOf, as OpenAPI 3.0 wants.
func formV3(s spec.Schema) spec.Schema {
	delete(s.Extensions, common.ExtensionV2Schema)
	return *util.WrapRefs(&s)
}

// formV2 takes the version 2 form where a type has one, and drops defaults,
// which clients of version 2 misread as the server's.
func formV2(s spec.Schema) spec.Schema {
	if v2, ok := s.Extensions[common.ExtensionV2Schema].(spec.Schema); ok {
		s = v2
	}
	walker := schemamutation.Walker{
		RefCallback: schemamutation.RefCallbackNoop,
		SchemaCallback: func(s *spec.Schema) *spec.Schema {
			if s.Default == nil {
				return s
			}
			c := *s
			c.Default = nil
			return &c
		},
	}
	return *walker.WalkSchema(&s)
}

// kindsByModel is the group, version and kind of each model that is a kind.
func kindsByModel() (map[string][]map[string]any, error) {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientscheme.AddToScheme, apiextensionsv1.AddToScheme, apiregistrationv1.AddToScheme, metricsv1.AddToScheme, metricsv1beta1.AddToScheme,
	} {
		if err := add(s); err != nil {
			return nil, err
		}
	}
	kinds := map[string][]schema.GroupVersionKind{}
	for gvk := range s.AllKnownTypes() {
		obj, err := s.New(gvk)
		if err != nil {
			return nil, err
		}
		if named, ok := obj.(interface{ OpenAPIModelName() string }); ok && gvk.Version != runtime.APIVersionInternal {
			kinds[named.OpenAPIModelName()] = append(kinds[named.OpenAPIModelName()], gvk)
		}
	}
	out := map[string][]map[string]any{}
	for model, list := range kinds {
		sort.Slice(list, func(i, j int) bool { return list[i].String() < list[j].String() })
		for _, gvk := range list {
			out[model] = append(out[model], map[string]any{"group": gvk.Group, "kind": gvk.Kind, "version": gvk.Version})
		}
	}
	return out, nil
}

func writeJSON(path string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encoding %s: %w", path, err)
	}
	var buffer bytes.Buffer
	zip, err := gzip.NewWriterLevel(&buffer, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := zip.Write(data); err != nil {
		return err
	}
	if err := zip.Close(); err != nil {
		return err
	}
	fmt.Printf("%s: %d schemas bytes, %d compressed\n", path, len(data), buffer.Len())
	return os.WriteFile(path, buffer.Bytes(), 0o644)
}
