package customresource

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	openapiv2 "k8s.io/apiextensions-apiserver/pkg/controller/openapi/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/sampan-io/sampan/services/apiserver/internal/apiextensions/structural"
)

// Models are OpenAPI models in JSON, by name, made on first use.
type Models func() (map[string]json.RawMessage, error)

const (
	metaPrefix   = "io.k8s.apimachinery.pkg.apis.meta.v1."
	conventions  = "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md"
	gvkExtension = "x-kubernetes-group-version-kind"
)

// modelName is upstream's name for the model of a custom kind.
func modelName(kind schema.GroupVersionKind) string {
	parts := strings.Split(kind.Group, ".")
	slices.Reverse(parts)
	return strings.Join(parts, ".") + "." + kind.Version + "." + kind.Kind
}

// describe is how a schema is told to clients.
type describe struct {
	v2 bool
	// skeleton leaves out what says which values are valid, for merging.
	skeleton bool
}

func (d describe) ref(model string) *spec.Schema {
	if d.v2 {
		return spec.RefSchema("#/definitions/" + model)
	}
	return spec.RefSchema("#/components/schemas/" + model)
}

// models are the OpenAPI models of the kind and of its list.
func (v *view) models(v2 bool) (map[string]json.RawMessage, error) {
	crd, err := v.kind.config.Load()
	if err != nil {
		return nil, err
	}
	d := describe{v2: v2}
	object, err := d.object(crd, v.spec.Name, v.gvk)
	if err != nil {
		return nil, err
	}
	list := d.list(v)
	if selectable := selectableExtension(v.spec.SelectableFields); selectable != nil && !v2 {
		object.AddExtension("x-kubernetes-selectable-fields", selectable)
		list.AddExtension("x-kubernetes-selectable-fields", selectable)
	}
	out := map[string]json.RawMessage{}
	for name, model := range map[string]*spec.Schema{modelName(v.gvk): object, modelName(v.listKind()): list} {
		if out[name], err = json.Marshal(model); err != nil {
			return nil, fmt.Errorf("describing %s: %w", name, err)
		}
	}
	return out, nil
}

func (v *view) listKind() schema.GroupVersionKind {
	return v.gvk.GroupVersion().WithKind(v.kind.names.ListKind)
}

func selectableExtension(list []apiextensionsv1.SelectableField) []any {
	var out []any
	for _, name := range fieldNames(list) {
		out = append(out, map[string]any{"fieldPath": name})
	}
	return out
}

// object is the model of a kind in one version.
func (d describe) object(crd *apiextensionsv1.CustomResourceDefinition, version string, kind schema.GroupVersionKind) (*spec.Schema, error) {
	shape, err := structural.SchemaOf(crd, version)
	if err != nil && !d.skeleton {
		return nil, err
	}
	out := d.shape(shape, crd.Spec.PreserveUnknownFields)
	out.AddExtension(gvkExtension, []any{map[string]any{"group": kind.Group, "version": kind.Version, "kind": kind.Kind}})
	return out, nil
}

func (d describe) shape(shape *structuralschema.Structural, keep bool) *spec.Schema {
	// A model with properties would tell kubectl that there are no others.
	if shape == nil || d.v2 && (shape.XPreserveUnknownFields || keep) {
		return &spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"}}}
	}
	shape = shape.Unfold()
	if d.skeleton {
		shape = shape.StripValueValidations().StripNullable()
	}
	if d.v2 {
		shape = openapiv2.ToStructuralOpenAPIV2(shape)
	}
	out := shape.ToKubeOpenAPI()
	out.SetProperty("metadata", *d.ref(metaPrefix + "ObjectMeta").WithDescription("Standard object's metadata. More info: " + conventions + "#metadata"))
	d.addKind(out)
	d.addEmbedded(out)
	return out
}

func (d describe) addKind(s *spec.Schema) {
	doc := metav1.TypeMeta{}.SwaggerDoc()
	s.SetProperty("apiVersion", *spec.StringProperty().WithDescription(doc["apiVersion"]))
	s.SetProperty("kind", *spec.StringProperty().WithDescription(doc["kind"]))
}

// addEmbedded describes the kind and metadata of objects within objects.
func (d describe) addEmbedded(s *spec.Schema) {
	if s == nil {
		return
	}
	for name, property := range s.Properties {
		d.addEmbedded(&property)
		s.Properties[name] = property
	}
	if s.Items != nil {
		d.addEmbedded(s.Items.Schema)
	}
	if s.AdditionalProperties != nil {
		d.addEmbedded(s.AdditionalProperties.Schema)
	}
	if keep, _ := s.Extensions.GetBool("x-kubernetes-preserve-unknown-fields"); keep && d.v2 {
		return
	}
	if embedded, _ := s.Extensions.GetBool("x-kubernetes-embedded-resource"); !embedded {
		return
	}
	d.addKind(s)
	s.SetProperty("metadata", *d.ref(metaPrefix + "ObjectMeta").WithDescription("Standard object's metadata. More info: " + conventions + "#metadata"))
	for _, name := range []string{"kind", "apiVersion"} {
		if !slices.Contains(s.Required, name) {
			s.Required = append(s.Required, name)
		}
	}
}

func (d describe) list(v *view) *spec.Schema {
	items := spec.ArrayProperty(d.ref(modelName(v.gvk))).WithDescription(fmt.Sprintf("List of %s. More info: %s", v.kind.names.Plural, conventions))
	out := new(spec.Schema).Typed("object", "").
		WithDescription(fmt.Sprintf("%s is a list of %s", v.kind.names.ListKind, v.kind.names.Kind)).
		WithRequired("items").
		SetProperty("items", *items).
		SetProperty("metadata", *d.ref(metaPrefix + "ListMeta").WithDescription("Standard list metadata. More info: " + conventions + "#types-kinds"))
	d.addKind(out)
	kind := v.listKind()
	out.AddExtension(gvkExtension, []any{map[string]any{"group": kind.Group, "version": kind.Version, "kind": kind.Kind}})
	return out
}

// types relates objects to their schemas, for server-side apply. Objects of this
// version must have declared fields only; those of others may carry fields that
// only this one has, for conversions that rename nothing lose nothing.
func (v *view) types() (managedfields.TypeConverter, error) {
	crd, err := v.kind.config.Load()
	if err != nil {
		return nil, err
	}
	meta, err := v.kind.config.MetaModels()
	if err != nil {
		return nil, err
	}
	models := map[string]*spec.Schema{}
	for name, data := range meta {
		models[name] = &spec.Schema{}
		if err := json.Unmarshal(data, models[name]); err != nil {
			return nil, fmt.Errorf("reading model %s: %w", name, err)
		}
	}
	d := describe{skeleton: true}
	for _, version := range crd.Spec.Versions {
		kind := schema.GroupVersionKind{Group: v.gvk.Group, Version: version.Name, Kind: v.gvk.Kind}
		model, err := d.object(crd, version.Name, kind)
		if err != nil {
			return nil, err
		}
		if version.Name != v.gvk.Version {
			loosen(model)
		}
		models[modelName(kind)] = model
	}
	types, err := managedfields.NewTypeConverter(models, crd.Spec.PreserveUnknownFields)
	if err != nil {
		return nil, fmt.Errorf("reading the schema of %s: %w", v.kind.name, err)
	}
	return types, nil
}

// loosen lets objects have fields that are not declared.
func loosen(s *spec.Schema) {
	if s == nil {
		return
	}
	if len(s.Properties) > 0 {
		s.AddExtension("x-kubernetes-preserve-unknown-fields", true)
	}
	for name, property := range s.Properties {
		loosen(&property)
		s.Properties[name] = property
	}
	if s.Items != nil {
		loosen(s.Items.Schema)
	}
	if s.AdditionalProperties != nil {
		loosen(s.AdditionalProperties.Schema)
	}
}
