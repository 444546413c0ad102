package handlers

import (
	"bytes"
	"context"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/negotiation"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/response"
	"github.com/sampan-io/sampan/services/apiserver/internal/rest"
	"github.com/sampan-io/sampan/services/apiserver/internal/watch"
)

// endpoint serves one resource.
type endpoint struct {
	api      *API
	resource *registry.Resource
	store    *rest.Store // nil for a resource that is not stored
	group    schema.GroupResource
	kind     schema.GroupVersionKind
	listKind string
	// fields are the selectable fields besides those of metadata.
	fields       map[string]bool
	subresources map[string]bool
	life         context.Context // watches end with it

	// jsonPrefix starts the JSON of each object; items of lists are without it.
	jsonPrefix                      []byte
	json, protobuf, partial, partPB watch.Encoding
	cbor, cborItem, partCBOR        watch.Encoding
	printed                         watch.Encoding // the start of a Table's row
}

func newEndpoint(api *API, resource *registry.Resource, life context.Context) *endpoint { //nolint:revive // a life is not the call's context
	e := &endpoint{
		api: api, resource: resource, group: resource.GroupResource(), life: life,
		kind: resource.GroupVersion().WithKind(resource.Kind), listKind: resource.ListKindName(),
		fields: map[string]bool{}, subresources: map[string]bool{},
	}
	if resource.KeyPrefix != "" {
		e.store = api.config.Engine.Version(resource.GroupVersionResource)
	}
	for i := range resource.Subresources {
		e.subresources[resource.Subresources[i].Name] = true
	}
	if resource.Fields != nil {
		for name := range resource.Fields(resource.New()) {
			e.fields[name] = true
		}
	}
	e.jsonPrefix = []byte(`{"kind":` + quote(e.kind.Kind) + `,"apiVersion":` + quote(e.kind.GroupVersion().String()) + `,`)
	version := "/" + e.kind.GroupVersion().String()
	if resource.Untyped != nil {
		version += "/" + resource.Untyped.Edition
	}
	e.json = watch.Encoding{Name: resource.JSONForm(), Encode: e.encodeJSON}
	e.protobuf = watch.Encoding{Name: "protobuf" + version, Encode: e.encodeProtobuf}
	e.partial = watch.Encoding{Name: "partial-json", Encode: encodePartialJSON}
	e.partPB = watch.Encoding{Name: "partial-protobuf", Encode: encodePartialProtobuf}
	e.printed = watch.Encoding{Name: "printed" + version, Encode: e.encodePrinted}
	e.cbor = watch.Encoding{Name: "cbor" + version, Encode: e.encodeCBOR}
	e.cborItem = watch.Encoding{Name: "cbor-item" + version, Encode: e.encodeCBORItem}
	e.partCBOR = watch.Encoding{Name: "partial-cbor", Encode: encodePartialCBOR}
	return e
}

// view is a cached object in the served version; it must not be changed. An
// object of an untyped kind is taken over.
func (e *endpoint) view(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	if e.resource.FromStored == nil {
		return obj, nil
	}
	converted, err := e.resource.FromStored(ctx, obj)
	if err != nil {
		return nil, err
	}
	converted.GetObjectKind().SetGroupVersionKind(e.kind)
	return converted, nil
}

func (e *endpoint) encodeJSON(ctx context.Context, obj runtime.Object) ([]byte, error) {
	obj, err := e.view(ctx, obj)
	if err != nil {
		return nil, err
	}
	return response.JSON(obj)
}

func (e *endpoint) encodeProtobuf(ctx context.Context, obj runtime.Object) ([]byte, error) {
	obj, err := e.view(ctx, obj)
	if err != nil {
		return nil, err
	}
	return response.Protobuf(obj)
}

func encodePartialJSON(_ context.Context, obj runtime.Object) ([]byte, error) {
	partial, err := partialOf(obj)
	if err != nil {
		return nil, err
	}
	return response.JSON(partial)
}

func encodePartialProtobuf(_ context.Context, obj runtime.Object) ([]byte, error) {
	partial, err := partialOf(obj)
	if err != nil {
		return nil, err
	}
	return response.Protobuf(partial)
}

// encoded is a cached object in the form of an answer, other than a Table:
// compact, with a final newline if it is JSON.
func (e *endpoint) encoded(ctx context.Context, o *watch.Object, out negotiation.Output) ([]byte, error) {
	if e.wired(out) {
		return o.Wire(), nil
	}
	return o.Encoded(ctx, e.form(out))
}

// wired says that an answer has objects as they are in the cache.
func (e *endpoint) wired(out negotiation.Output) bool {
	return out.Format == negotiation.Protobuf && out.View != negotiation.Metadata && e.resource.FromStored == nil && !e.resource.StoredAsJSON
}

// form is how an answer, other than a Table, has its objects.
func (e *endpoint) form(out negotiation.Output) watch.Encoding {
	binary := out.Format == negotiation.Protobuf
	switch {
	case out.View == negotiation.Metadata && out.Format == negotiation.CBOR:
		return e.partCBOR
	case out.Format == negotiation.CBOR:
		return e.cbor
	case out.View == negotiation.Metadata && binary:
		return e.partPB
	case out.View == negotiation.Metadata:
		return e.partial
	case binary:
		return e.protobuf
	default:
		return e.json
	}
}

// item is the JSON of an object as a member of a list, after its opening brace:
// without its kind, which the list's tells.
func (e *endpoint) item(data []byte) []byte {
	data = bytes.TrimSuffix(data, []byte("\n"))
	if rest, ok := bytes.CutPrefix(data, e.jsonPrefix); ok {
		return rest
	}
	return bytes.TrimPrefix(data, []byte("{"))
}

// partialOf is an object's metadata alone.
func partialOf(obj runtime.Object) (*metav1.PartialObjectMetadata, error) {
	meta, err := metaOf(obj)
	if err != nil {
		return nil, err
	}
	return &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"},
		ObjectMeta: *meta,
	}, nil
}

func quote(s string) string { return strconv.Quote(s) }
