package structural

import (
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	structuraldefaulting "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	schemaobjectmeta "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	structuralpruning "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Coerce makes of a client's object what decoding into a Go type would: it drops
// what the schema does not know, and nulls where none may be, and refuses
// metadata of wrong types. With track it returns the paths of unknown fields.
func (s *Schema) Coerce(obj *unstructured.Unstructured, track bool) (unknown []string, err error) {
	meta, found, unknown, err := schemaobjectmeta.GetObjectMetaWithOptions(obj.Object, schemaobjectmeta.ObjectMetaOptions{ReturnUnknownFieldPaths: track})
	if err != nil {
		return nil, err
	}
	unknown = append(unknown, s.prune(obj, track)...)
	options := schemaobjectmeta.CoerceOptions{ReturnUnknownFieldPaths: track}
	invalid, embedded := schemaobjectmeta.CoerceWithOptions(nil, obj.Object, s.shape, false, options)
	if invalid != nil {
		return nil, invalid
	}
	if found {
		if err := schemaobjectmeta.SetObjectMeta(obj.Object, meta); err != nil {
			return nil, err
		}
	}
	return append(unknown, embedded...), nil
}

// Read makes of a stored or converted object what the schema allows by now:
// unknown fields go, defaults that were added since come.
func (s *Schema) Read(obj *unstructured.Unstructured) {
	s.prune(obj, false)
	s.Default(obj)
}

// Prune drops what the schema does not know.
func (s *Schema) Prune(obj *unstructured.Unstructured) { s.prune(obj, false) }

// prune drops unknown fields, and nulls that may not be and have no default.
func (s *Schema) prune(obj *unstructured.Unstructured, track bool) []string {
	if s.keep {
		return nil
	}
	unknown := structuralpruning.PruneWithOptions(obj.Object, s.shape, true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: track})
	structuraldefaulting.PruneNonNullableNullsWithoutDefaults(obj.Object, s.shape)
	return unknown
}

// Default sets absent fields that have a default.
func (s *Schema) Default(obj *unstructured.Unstructured) {
	if s.shape != nil && obj.Object != nil {
		structuraldefaulting.Default(obj.Object, s.shape)
	}
}
