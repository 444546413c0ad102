package handlers

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sampan-io/sampan/services/apiserver/internal/negotiation"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
	"github.com/sampan-io/sampan/services/apiserver/internal/response"
	"github.com/sampan-io/sampan/services/apiserver/internal/rest"
	"github.com/sampan-io/sampan/services/apiserver/internal/watch"
)

// columns of a kind that does not say how it is printed.
func defaultTable() *registry.Table {
	doc := metav1.ObjectMeta{}.SwaggerDoc()
	return &registry.Table{
		Columns: []metav1.TableColumnDefinition{
			{Name: "Name", Type: "string", Format: "name", Description: doc["name"]},
			{Name: "Created At", Type: "date", Description: doc["creationTimestamp"]},
		},
		Row: func(obj runtime.Object) []any {
			o, ok := obj.(registry.Object)
			if !ok {
				return []any{"", ""}
			}
			return []any{o.GetName(), o.GetCreationTimestamp().UTC().Format(time.RFC3339)}
		},
	}
}

func (e *endpoint) table() *registry.Table {
	if e.resource.Table != nil {
		return e.resource.Table
	}
	return defaultTable()
}

// includeObject is the part of each object that a Table's rows carry.
func includeObject(r *http.Request) (metav1.IncludeObjectPolicy, error) {
	switch policy := metav1.IncludeObjectPolicy(r.URL.Query().Get("includeObject")); policy {
	case "", metav1.IncludeMetadata:
		return metav1.IncludeMetadata, nil
	case metav1.IncludeNone, metav1.IncludeObject:
		return policy, nil
	default:
		return "", apierrors.NewBadRequest(`unrecognized includeObject value: "` + string(policy) + `"`)
	}
}

// tableDocument is a Table whose rows are in JSON already.
type tableDocument struct {
	head metav1.Table // without rows
	rows []tableRow
}

// tableRow is one row in parts: what is printed, its ages not yet made, and the
// object that goes with it.
type tableRow struct{ printed, object []byte }

// tableOf prints cached objects.
func (e *endpoint) tableOf(r *http.Request, out negotiation.Output, objects []*watch.Object, meta metav1.ListMeta) (*tableDocument, error) {
	ctx := r.Context()
	policy, err := includeObject(r)
	if err != nil {
		return nil, err
	}
	if objects, err = e.inRowOrder(objects); err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	t := e.newTable(out, meta, len(objects))
	printed, err := e.encodeAll(ctx, objects, e.printed)
	if err != nil {
		return nil, rest.ConversionError(ctx, err)
	}
	included := make([][]byte, len(objects))
	switch policy {
	case metav1.IncludeMetadata:
		included, err = e.encodeAll(ctx, objects, e.partial)
	case metav1.IncludeObject:
		included, err = e.encodeAll(ctx, objects, e.json)
	}
	if err != nil {
		return nil, rest.ConversionError(ctx, err)
	}
	for i := range objects {
		t.rows = append(t.rows, tableRow{printed: printed[i], object: included[i]})
	}
	return t, nil
}

// inRowOrder is a list's objects in the order in which their kind is printed.
func (e *endpoint) inRowOrder(objects []*watch.Object) ([]*watch.Object, error) {
	order := e.table().Order
	if order == nil || len(objects) < 2 {
		return objects, nil
	}
	decoded := make(map[*watch.Object]runtime.Object, len(objects))
	for _, o := range objects {
		obj, err := o.Shared()
		if err != nil {
			return nil, err
		}
		decoded[o] = obj
	}
	sorted := slices.Clone(objects)
	slices.SortStableFunc(sorted, func(a, b *watch.Object) int { return order(decoded[a], decoded[b]) })
	return sorted, nil
}

func (e *endpoint) newTable(out negotiation.Output, meta metav1.ListMeta, rows int) *tableDocument {
	return &tableDocument{
		head: metav1.Table{
			TypeMeta:          metav1.TypeMeta{Kind: "Table", APIVersion: "meta.k8s.io/" + out.Version},
			ListMeta:          meta,
			ColumnDefinitions: e.table().Columns,
			Rows:              []metav1.TableRow{},
		},
		rows: make([]tableRow, 0, rows),
	}
}

// encodePrinted is the start of an object's row in JSON, up to the object.
func (e *endpoint) encodePrinted(ctx context.Context, obj runtime.Object) ([]byte, error) {
	obj, err := e.view(ctx, obj)
	if err != nil {
		return nil, err
	}
	printer := e.table()
	row := metav1.TableRow{Cells: printer.Row(obj)}
	if printer.Conditions != nil {
		row.Conditions = printer.Conditions(obj)
	}
	return printedRow(row)
}

// printedRow is a row in JSON without its object and what follows.
func printedRow(row metav1.TableRow) ([]byte, error) {
	cells, err := json.Marshal(row.Cells)
	if err != nil {
		return nil, err
	}
	printed := append([]byte(`{"cells":`), cells...)
	if len(row.Conditions) > 0 {
		conditions, err := json.Marshal(row.Conditions)
		if err != nil {
			return nil, err
		}
		printed = append(append(printed, `,"conditions":`...), conditions...)
	}
	return printed, nil
}

// tableOfObject prints an object that is not in the cache: the outcome of a dry
// run, a bookmark, a computed object.
func (e *endpoint) tableOfObject(r *http.Request, out negotiation.Output, objs []runtime.Object, meta metav1.ListMeta) (*tableDocument, error) {
	policy, err := includeObject(r)
	if err != nil {
		return nil, err
	}
	t := e.newTable(out, meta, len(objs))
	for _, obj := range objs {
		var row tableRow
		switch policy {
		case metav1.IncludeMetadata:
			row.object, err = encodePartialJSON(r.Context(), obj)
		case metav1.IncludeObject:
			row.object, err = response.JSON(obj)
		}
		if err == nil {
			row.printed, err = e.encodePrinted(r.Context(), obj)
		}
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		t.rows = append(t.rows, row)
	}
	return t, nil
}

func writeTable(w http.ResponseWriter, r *http.Request, code int, out negotiation.Output, t *tableDocument) error {
	parts, err := t.json(time.Now())
	if err == nil && (out.Pretty || out.Format != negotiation.JSON) {
		var data []byte
		data, err = response.FromJSON(join(parts), out)
		parts = [][]byte{data}
	}
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	response.Parts(w, r, code, out.Format.MediaType(), parts)
	return nil
}

// json is the table in JSON, as parts: the bytes that encoding/json makes,
// without checking each row's object again.
func (t *tableDocument) json(now time.Time) ([][]byte, error) {
	data, err := response.JSON(&t.head)
	if err != nil {
		return nil, err
	}
	const tail = "]}\n"
	parts := make([][]byte, 0, 3*len(t.rows)+2)
	parts = append(parts, data[:len(data)-len(tail)])
	var printed []byte
	for i, row := range t.rows {
		object := bytes.TrimSuffix(row.object, []byte("\n"))
		if object == nil {
			object = []byte("null")
		}
		// The rows share an array; where it grows, earlier parts keep the old one.
		start := len(printed)
		if i > 0 {
			printed = append(printed, ',')
		}
		printed = append(table.AppendResolved(printed, row.printed, now), `,"object":`...)
		parts = append(parts, printed[start:], object, []byte("}"))
	}
	return append(parts, []byte(tail)), nil
}
