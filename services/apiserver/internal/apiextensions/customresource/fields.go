package customresource

import (
	"fmt"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sampan-io/sampan/services/apiserver/internal/apiextensions/structural"
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
