// Package customresource makes, of a CustomResourceDefinition, the resources that
// serve its objects: one for each version.
package customresource

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/apiextensions/conversion"
	"github.com/sampan-io/sampan/services/apiserver/internal/apiextensions/structural"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// Config is what resources are made of.
type Config struct {
	// Load reads the definition again when its schemas are first needed: until then
	// they cost no memory.
	Load func() (*apiextensionsv1.CustomResourceDefinition, error)
	// Conversions reaches conversion webhooks.
	Conversions *conversion.Clients
	// MetaModels are the OpenAPI models of object metadata.
	MetaModels Models
}

// kind is what all versions of a custom resource share.
type kind struct {
	config    Config
	name      string // of the definition
	group     string
	storage   string // the version that objects are stored in
	names     apiextensionsv1.CustomResourceDefinitionNames
	converter *conversion.Converter
	schemas   map[string]compiled // by version
	// terminating kinds take no new objects.
	terminating bool
	edition     string
	specs       []apiextensionsv1.CustomResourceDefinitionVersion // without schemas
}

// compiled is the schema of one version, made on first use.
type compiled = func() (*structural.Schema, error)

// New makes the resources of a definition whose names were accepted, which it
// does not keep. The one of the storage version is among them even if it is not
// served: it says so by having no verbs.
func New(crd *apiextensionsv1.CustomResourceDefinition, config Config) ([]*registry.Resource, error) {
	storage, err := apihelpers.GetCRDStorageVersion(crd)
	if err != nil {
		return nil, fmt.Errorf("reading definition %s: %w", crd.Name, err)
	}
	converter, err := conversion.New(crd, config.Conversions)
	if err != nil {
		return nil, fmt.Errorf("reading definition %s: %w", crd.Name, err)
	}
	k := &kind{
		config: config, name: crd.Name, group: crd.Spec.Group, storage: storage, names: *crd.Status.AcceptedNames.DeepCopy(),
		converter: converter, schemas: map[string]compiled{}, terminating: crd.DeletionTimestamp != nil,
		edition: fmt.Sprintf("%s-%d", crd.UID, crd.Generation),
	}
	for _, version := range crd.Spec.Versions {
		k.schemas[version.Name] = k.compile(version.Name)
		version.Schema = nil
		k.specs = append(k.specs, *version.DeepCopy())
	}
	var out []*registry.Resource
	for i := range k.specs {
		if v := &k.specs[i]; v.Served || v.Name == storage {
			out = append(out, k.resource(v, crd))
		}
	}
	return out, nil
}

func (k *kind) compile(version string) compiled {
	return sync.OnceValues(func() (*structural.Schema, error) {
		crd, err := k.config.Load()
		if err != nil {
			return nil, fmt.Errorf("reading the schema of %s: %w", k.name, err)
		}
		return structural.Compile(crd, version, k.names.Kind)
	})
}

// schema is the compiled schema of a version.
func (k *kind) schema(version string) (*structural.Schema, error) {
	load := k.schemas[version]
	if load == nil {
		return nil, fmt.Errorf("%s has no version %s", k.name, version)
	}
	return load()
}

func (k *kind) resource(v *apiextensionsv1.CustomResourceDefinitionVersion, crd *apiextensionsv1.CustomResourceDefinition) *registry.Resource {
	version := schema.GroupVersion{Group: k.group, Version: v.Name}
	served := &view{kind: k, spec: v, gvk: version.WithKind(k.names.Kind)}
	r := &registry.Resource{
		GroupVersionResource: version.WithResource(k.names.Plural),
		Kind:                 k.names.Kind, ListKind: k.names.ListKind, Singular: k.names.Singular,
		ShortNames: k.names.ShortNames, Categories: k.names.Categories,
		Namespaced: crd.Spec.Scope == apiextensionsv1.NamespaceScoped,
		New:        served.create, KeyPrefix: "/registry/" + k.group + "/" + k.names.Plural,
		StoredVersion: schema.GroupVersion{Group: k.group, Version: k.storage}, StoredAsJSON: true,
		FromStored: served.fromStored, Strategy: served.strategy(), Table: printed(v.AdditionalPrinterColumns),
		Types: served.types,
		Untyped: &registry.Untyped{
			Edition: k.edition, Coerce: served.coerce, Convert: k.relate, ReplicasPaths: k.replicasPaths(),
			Model: modelName(version.WithKind(k.names.Kind)), ListModel: modelName(version.WithKind(k.names.ListKind)), Models: served.models,
		},
		Subresources: served.subresources(),
		Warnings:     k.deprecation(v),
	}
	if v.Name != k.storage {
		r.ToStored = k.toStored
	}
	if k.converter.ByWebhook() {
		r.Untyped.FromStoredAll = served.fromStoredAll
	}
	if !v.Served {
		r.Verbs = []string{}
	}
	if len(v.SelectableFields) > 0 {
		served.addFields(r)
	}
	return r
}

// view is a kind in one version.
type view struct {
	kind *kind
	spec *apiextensionsv1.CustomResourceDefinitionVersion
	gvk  schema.GroupVersionKind
}

func (v *view) schema() (*structural.Schema, error) { return v.kind.schema(v.spec.Name) }

func (v *view) create() runtime.Object {
	obj := &unstructured.Unstructured{Object: map[string]any{}}
	obj.SetGroupVersionKind(v.gvk)
	return obj
}

func (v *view) coerce(obj runtime.Object, track bool) ([]string, error) {
	u, err := asUnstructured(obj)
	if err != nil {
		return nil, err
	}
	s, err := v.schema()
	if err != nil {
		return nil, err
	}
	return s.Coerce(u, track)
}

// fromStored makes of a stored object what this version serves.
func (v *view) fromStored(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	converted, s, err := v.kind.convert(ctx, obj, v.gvk.Version)
	if err != nil {
		return nil, err
	}
	s.Read(converted)
	return converted, nil
}

// fromStoredAll is fromStored for many objects, about which a webhook is asked
// together. It replaces each.
func (v *view) fromStoredAll(ctx context.Context, objects []runtime.Object) error {
	s, err := v.schema()
	if err != nil {
		return err
	}
	converted := make([]*unstructured.Unstructured, len(objects))
	for i, obj := range objects {
		if converted[i], err = asUnstructured(obj); err != nil {
			return err
		}
	}
	if err := v.kind.converter.ConvertAll(ctx, converted, v.gvk.GroupVersion()); err != nil {
		return err
	}
	for i, obj := range converted {
		s.Read(obj)
		objects[i] = obj
	}
	return nil
}

// toStored makes of an object of another version what is stored.
func (k *kind) toStored(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	converted, s, err := k.convert(ctx, obj.DeepCopyObject(), k.storage)
	if err != nil {
		return nil, err
	}
	s.Prune(converted)
	return converted, nil
}

// convert brings an object into a version, whose schema is still to be applied.
func (k *kind) convert(ctx context.Context, obj runtime.Object, version string) (*unstructured.Unstructured, *structural.Schema, error) {
	s, err := k.schema(version)
	if err != nil {
		return nil, nil, err
	}
	u, err := asUnstructured(obj)
	if err != nil {
		return nil, nil, err
	}
	converted, err := k.converter.Convert(ctx, u, schema.GroupVersion{Group: k.group, Version: version})
	return converted, s, err
}

// relate brings an object into a version, with fields that its schema does not
// know: server-side apply needs them when it comes back.
func (k *kind) relate(ctx context.Context, obj runtime.Object, to schema.GroupVersion) (runtime.Object, error) {
	u, err := asUnstructured(obj)
	if err != nil {
		return nil, err
	}
	return k.converter.Convert(ctx, u, to)
}

func asUnstructured(obj runtime.Object) (*unstructured.Unstructured, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("a custom resource is a %T", obj)
	}
	return u, nil
}
