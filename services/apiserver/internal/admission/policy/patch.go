package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"google.golang.org/protobuf/types/known/structpb"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	celmutation "k8s.io/apiserver/pkg/cel/mutation"
	"k8s.io/apiserver/pkg/cel/mutation/dynamic"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission/intercept"
)

// typesOf converts objects of a version for structured merges. Kinds that are not
// stored, such as Scale, have no schema; their fields are taken as they are.
func (m *mutating) typesOf(v *intercept.Version) managedfields.TypeConverter {
	if kind, ok := m.config.Kinds.Kind(v.Kind); ok {
		return kind.Types()
	}
	return managedfields.NewDeducedTypeConverter()
}

// applyConfiguration merges what an expression evaluated to into the object, as
// server-side apply would; obj is not changed.
func applyConfiguration(converter managedfields.TypeConverter, obj runtime.Object, evaluated ref.Val) (runtime.Object, error) {
	made, ok := evaluated.(*dynamic.ObjectVal)
	if !ok {
		return nil, fmt.Errorf("unsupported return type from ApplyConfiguration expression: %v", evaluated.Type())
	}
	if err := made.CheckTypeNamesMatchFieldPathNames(); err != nil {
		return nil, fmt.Errorf("type mismatch: %w", err)
	}
	fields, ok := made.Value().(map[string]any)
	if !ok {
		return nil, fmt.Errorf("invalid return type: %T", made.Value())
	}
	patch := &unstructured.Unstructured{Object: fields}
	patch.SetGroupVersionKind(obj.GetObjectKind().GroupVersionKind())
	merged, err := merge(converter, obj, patch)
	if err != nil {
		return nil, fmt.Errorf("error applying patch: %w", err)
	}
	return likeOriginal(obj, merged)
}

func merge(converter managedfields.TypeConverter, obj runtime.Object, patch *unstructured.Unstructured) (runtime.Object, error) {
	applied, err := converter.ObjectToTyped(patch)
	if err != nil {
		return nil, fmt.Errorf("failed to convert patch object to typed object: %w", err)
	}
	if atomic := atomics(nil, applied.Schema(), applied.TypeRef(), applied.AsValue()); len(atomic) > 0 {
		return nil, fmt.Errorf("invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: %v", strings.Join(atomic, ", "))
	}
	live, err := converter.ObjectToTyped(obj, typed.AllowDuplicates)
	if err != nil {
		return nil, fmt.Errorf("failed to convert original object to typed object: %w", err)
	}
	merged, err := live.Merge(applied)
	if err != nil {
		return nil, fmt.Errorf("failed to merge patch: %w", err)
	}
	return converter.TypedToObject(merged)
}

// atomics are the paths of atomic lists, maps and structs in a configuration: to
// set one would drop what the configuration does not repeat.
func atomics(path fieldpath.Path, s *schema.Schema, ref schema.TypeRef, v value.Value) (found []string) {
	atom, ok := s.Resolve(ref)
	if !ok {
		return nil
	}
	if v.IsMap() && atom.Map != nil {
		if atom.Map.ElementRelationship == schema.Atomic {
			found = append(found, path.String())
		}
		v.AsMap().Iterate(func(key string, child value.Value) bool {
			if field, ok := atom.FindField(key); ok {
				found = append(found, atomics(append(path.Copy(), fieldpath.PathElement{FieldName: &key}), s, field.Type, child)...)
			}
			return true
		})
	}
	if v.IsList() && atom.List != nil {
		if atom.List.ElementRelationship == schema.Atomic {
			found = append(found, path.String())
		}
		list := v.AsList()
		for i := range list.Length() {
			found = append(found, atomics(append(path.Copy(), fieldpath.PathElement{Index: &i}), s, atom.List.ElementType, list.At(i))...)
		}
	}
	return found
}

// likeOriginal is a merged object in the Go type of the original.
func likeOriginal(obj, merged runtime.Object) (runtime.Object, error) {
	if reflect.TypeOf(obj) == reflect.TypeOf(merged) {
		return merged, nil
	}
	u, ok := merged.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("a merge made a %T", merged)
	}
	out := reflect.New(reflect.TypeOf(obj).Elem()).Interface().(runtime.Object)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
		return nil, err
	}
	return out, nil
}

// applyJSONPatch applies the patch that an expression evaluated to. It returns nil
// when a test operation fails: then the object stays as it is.
func applyJSONPatch(v *intercept.Version, evaluated ref.Val) (runtime.Object, error) {
	list, ok := evaluated.(traits.Lister)
	if !ok {
		return nil, errors.New("type mismatch: JSONPatch expression should evaluate to array")
	}
	patch := jsonpatch.Patch{}
	for it := list.Iterator(); it.HasNext() == types.True; {
		operation, err := operationOf(it.Next())
		if err != nil {
			return nil, err
		}
		patch = append(patch, operation)
	}
	document, _, err := v.JSON()
	if err != nil {
		return nil, err
	}
	obj, err := intercept.ApplyPatch(patch, document, v.Object)
	if errors.Is(err, jsonpatch.ErrTestFailed) {
		return nil, nil //nolint:nilnil // no object is no change
	}
	if err != nil {
		return nil, fmt.Errorf("JSON Patch: %w", err)
	}
	return obj, nil
}

func operationOf(evaluated ref.Val) (jsonpatch.Operation, error) {
	native, err := evaluated.ConvertToNative(reflect.TypeFor[*celmutation.JSONPatchVal]())
	if err != nil {
		return nil, fmt.Errorf("type mismatch: JSONPatch expression should evaluate to array of JSONPatch: %w", err)
	}
	op, ok := native.(*celmutation.JSONPatchVal)
	if !ok {
		return nil, fmt.Errorf("type mismatch: JSONPatch expression should evaluate to array of JSONPatch, got element of %T", native)
	}
	operation := jsonpatch.Operation{"op": raw(strconv.Quote(op.Op)), "path": raw(strconv.Quote(op.Path))}
	if op.From != "" {
		operation["from"] = raw(strconv.Quote(op.From))
	}
	if op.Val == nil {
		return operation, nil
	}
	if made, ok := op.Val.(*dynamic.ObjectVal); ok {
		if err := made.CheckTypeNamesMatchFieldPathNames(); err != nil {
			return nil, fmt.Errorf("type mismatch: %w", err)
		}
	}
	converted, err := op.Val.ConvertToNative(reflect.TypeFor[*structpb.Value]())
	if err != nil {
		return nil, fmt.Errorf("the value of a JSON patch has no JSON form: %w", err)
	}
	data, err := json.Marshal(converted)
	if err != nil {
		return nil, fmt.Errorf("the value of a JSON patch has no JSON form: %w", err)
	}
	operation["value"] = raw(string(data))
	return operation, nil
}

func raw(text string) *json.RawMessage {
	message := json.RawMessage(text)
	return &message
}
