package handlers

import (
	"bytes"
	"encoding/json"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sampan-io/sampan/services/apiserver/internal/negotiation"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/response"
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

// tableOf prints cached objects.
func (e *endpoint) tableOf(r *http.Request, out negotiation.Output, objects []*watch.Object, meta metav1.ListMeta) (*metav1.Table, error) {
	policy, err := includeObject(r)
	if err != nil {
		return nil, err
	}
	printer := e.table()
	t := newTable(out, printer, meta)
	t.Rows = make([]metav1.TableRow, 0, len(objects))
	for _, o := range objects {
		row, err := e.row(printer, o, policy)
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		t.Rows = append(t.Rows, row)
	}
	return t, nil
}

func newTable(out negotiation.Output, printer *registry.Table, meta metav1.ListMeta) *metav1.Table {
	return &metav1.Table{
		TypeMeta:          metav1.TypeMeta{Kind: "Table", APIVersion: "meta.k8s.io/" + out.Version},
		ListMeta:          meta,
		ColumnDefinitions: printer.Columns,
	}
}

func (e *endpoint) row(printer *registry.Table, o *watch.Object, policy metav1.IncludeObjectPolicy) (metav1.TableRow, error) {
	read := o.Shared
	if e.resource.Untyped != nil {
		read = o.Decode
	}
	obj, err := read()
	if err == nil {
		obj, err = e.view(obj)
	}
	if err != nil {
		return metav1.TableRow{}, err
	}
	row := metav1.TableRow{Cells: printer.Row(obj)}
	switch policy {
	case metav1.IncludeMetadata:
		row.Object.Raw, err = o.Encoded(e.partial)
	case metav1.IncludeObject:
		row.Object.Raw, err = o.Encoded(e.json)
	}
	return row, err
}

// tableOfObject prints an object that is not in the cache: the outcome of a dry
// run, a bookmark, a computed object.
func (e *endpoint) tableOfObject(r *http.Request, out negotiation.Output, objs []runtime.Object, meta metav1.ListMeta) (*metav1.Table, error) {
	policy, err := includeObject(r)
	if err != nil {
		return nil, err
	}
	printer := e.table()
	t := newTable(out, printer, meta)
	t.Rows = []metav1.TableRow{}
	for _, obj := range objs {
		row := metav1.TableRow{Cells: printer.Row(obj)}
		switch policy {
		case metav1.IncludeMetadata:
			row.Object.Raw, err = encodePartialJSON(obj)
		case metav1.IncludeObject:
			row.Object.Raw, err = response.JSON(obj)
		}
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		t.Rows = append(t.Rows, row)
	}
	return t, nil
}

func writeTable(w http.ResponseWriter, r *http.Request, code int, out negotiation.Output, t *metav1.Table) error {
	parts, err := tableJSON(t)
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

// tableJSON is a Table in JSON, as parts: the bytes that encoding/json makes,
// without checking each row's object again.
func tableJSON(t *metav1.Table) ([][]byte, error) {
	head := *t
	head.Rows = []metav1.TableRow{}
	data, err := response.JSON(&head)
	if err != nil {
		return nil, err
	}
	const tail = "]}\n"
	parts := make([][]byte, 0, 3*len(t.Rows)+2)
	parts = append(parts, data[:len(data)-len(tail)])
	separator := ""
	for i := range t.Rows {
		row := &t.Rows[i]
		cells, err := json.Marshal(row.Cells)
		if err != nil {
			return nil, err
		}
		before := append([]byte(separator+`{"cells":`), cells...)
		object := bytes.TrimSuffix(row.Object.Raw, []byte("\n"))
		if object == nil {
			object = []byte("null")
		}
		parts = append(parts, append(before, `,"object":`...), object, []byte("}"))
		separator = ","
	}
	return append(parts, []byte(tail)), nil
}
