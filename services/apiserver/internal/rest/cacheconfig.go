package rest

import (
	"context"
	"maps"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/watch"
)

// CacheConfigs describes the caches that resources need, one per key prefix, in
// the order of the resources.
func CacheConfigs(resources []*registry.Resource) []watch.Config {
	var order []string
	shared := map[string][]*registry.Resource{}
	for _, r := range resources {
		if r.KeyPrefix == "" {
			continue
		}
		if shared[r.KeyPrefix] == nil {
			order = append(order, r.KeyPrefix)
		}
		shared[r.KeyPrefix] = append(shared[r.KeyPrefix], r)
	}
	configs := make([]watch.Config, 0, len(order))
	for _, prefix := range order {
		configs = append(configs, CacheConfig(shared[prefix]))
	}
	return configs
}

// CacheConfig describes the cache of resources that share a key prefix. The one
// that is served as it is stored names it.
func CacheConfig(resources []*registry.Resource) watch.Config {
	first := resources[0]
	for _, r := range resources {
		if r.FromStored == nil {
			first = r
			break
		}
	}
	return watch.Config{
		Resource:     first.GroupResource(),
		Prefix:       strings.TrimSuffix(first.KeyPrefix, "/") + "/",
		Namespaced:   first.Namespaced,
		Decode:       newCodec(first).decode,
		AttributesOf: func(obj runtime.Object) watch.Attributes { return attributesOf(resources, obj) },
		Indexed:      first.Indexed,
	}
}

// attributesOf has the selectable fields of every version that is served.
func attributesOf(resources []*registry.Resource, obj runtime.Object) watch.Attributes {
	meta, ok := obj.(registry.Object)
	if !ok {
		return watch.Attributes{}
	}
	a := watch.Attributes{
		Namespace: meta.GetNamespace(), Name: meta.GetName(), UID: string(meta.GetUID()),
		Labels: labels.Set(meta.GetLabels()), Fields: fields.Set{},
	}
	for _, r := range resources {
		if r.Fields == nil || r.Untyped != nil && r.Untyped.Select != nil {
			continue
		}
		view := obj
		if r.FromStored != nil && r.Untyped == nil {
			converted, err := r.FromStored(context.Background(), obj)
			if err != nil {
				continue
			}
			view = converted
		}
		maps.Copy(a.Fields, r.Fields(view))
	}
	a.Fields["metadata.name"] = a.Name
	if resources[0].Namespaced {
		a.Fields["metadata.namespace"] = a.Namespace
	}
	return a
}
