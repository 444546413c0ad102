package customresource

import (
	"context"
	"fmt"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sampan-io/sampan/services/apiserver/internal/apiextensions/structural"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

func fieldNames(selectable []apiextensionsv1.SelectableField) []string {
	var names []string
	for _, f := range selectable {
		names = append(names, strings.TrimPrefix(f.JSONPath, "."))
	}
	return names
}

// selectable reads the fields that lists and watches can select by.
func selectable(list []apiextensionsv1.SelectableField) func(obj runtime.Object) fields.Set {
	names := fieldNames(list)
	return func(obj runtime.Object) fields.Set {
		set := fields.Set{}
		for _, name := range names {
			value, found, err := unstructured.NestedFieldNoCopy(content(obj), structural.Path(name)...)
			if err != nil || !found || value == nil {
				set[name] = ""
				continue
			}
			set[name] = fmt.Sprint(value)
		}
		return set
	}
}

// addFields makes the version's fields selectable: from the stored object, or
// from the converted one where a webhook converts.
func (v *view) addFields(r *registry.Resource) {
	r.Fields = selectable(v.spec.SelectableFields)
	if !v.kind.converter.ByWebhook() {
		r.Indexed = fieldNames(v.spec.SelectableFields)
		return
	}
	r.Untyped.Select = func(ctx context.Context, obj runtime.Object) (fields.Set, error) {
		converted, err := v.fromStored(ctx, obj)
		if err != nil {
			return nil, err
		}
		return r.Fields(converted), nil
	}
}
