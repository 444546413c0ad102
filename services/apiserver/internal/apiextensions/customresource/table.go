package customresource

import (
	"bytes"
	"encoding/json"
	"reflect"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/jsonpath"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// column prints one field.
type column struct {
	kind string // "string", "integer", "number", "boolean", "date"
	mu   sync.Mutex
	path *jsonpath.JSONPath // evaluating it changes it: guarded by mu
}

// printed prints the columns that the definition names: the age alone when it
// names none, and none but the name when one of its paths cannot be read.
func printed(columns []apiextensionsv1.CustomResourceColumnDefinition) *registry.Table {
	doc := metav1.ObjectMeta{}.SwaggerDoc()
	if len(columns) == 0 {
		columns = []apiextensionsv1.CustomResourceColumnDefinition{
			{Name: "Age", Type: "date", Description: doc["creationTimestamp"], JSONPath: ".metadata.creationTimestamp"},
		}
	}
	headers := []metav1.TableColumnDefinition{table.Name()}
	var cells []*column
	for _, c := range columns {
		path := jsonpath.New(c.Name).AllowMissingKeys(true)
		if err := path.Parse("{" + c.JSONPath + "}"); err != nil {
			break
		}
		about := c.Description
		if about == "" {
			about = "Custom resource definition column (in JSONPath format): " + c.JSONPath
		}
		headers = append(headers, metav1.TableColumnDefinition{Name: c.Name, Type: c.Type, Format: c.Format, Description: about, Priority: c.Priority})
		cells = append(cells, &column{kind: c.Type, path: path})
	}
	return &registry.Table{Columns: headers, Row: func(obj runtime.Object) []any {
		row := make([]any, 1, 1+len(cells))
		if o, ok := obj.(metav1.Object); ok {
			row[0] = o.GetName()
		}
		for _, c := range cells {
			row = append(row, c.cell(content(obj)))
		}
		return row
	}}
}

// cell is the first value at the path, nil when there is none of the column's
// type.
func (c *column) cell(content map[string]any) any {
	c.mu.Lock()
	defer c.mu.Unlock()
	results, err := c.path.FindResults(content)
	if err != nil || len(results) == 0 || len(results[0]) == 0 || !results[0][0].CanInterface() {
		return nil
	}
	value := results[0][0].Interface()
	if c.kind != "string" {
		return cell(c.kind, value)
	}
	var text bytes.Buffer
	if err := c.path.PrintResults(&text, []reflect.Value{reflect.ValueOf(value)}); err != nil {
		return nil
	}
	return text.String()
}

func cell(kind string, value any) any {
	switch kind {
	case "integer":
		switch n := value.(type) {
		case int64:
			return n
		case float64:
			return int64(n)
		case json.Number:
			if i, err := n.Int64(); err == nil {
				return i
			}
		}
	case "number":
		switch n := value.(type) {
		case int64:
			return float64(n)
		case float64:
			return n
		}
	case "boolean":
		if b, ok := value.(bool); ok {
			return b
		}
	case "date":
		return date(value)
	}
	return nil
}

func date(value any) any {
	text, ok := value.(string)
	if !ok {
		return nil
	}
	var at metav1.Time
	if err := at.UnmarshalQueryParameter(text); err != nil {
		return "<invalid>"
	}
	return table.Since(at)
}
