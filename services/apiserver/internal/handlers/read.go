package handlers

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/negotiation"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
	"github.com/sampan-io/sampan/services/apiserver/internal/response"
	"github.com/sampan-io/sampan/services/apiserver/internal/rest"
	"github.com/sampan-io/sampan/services/apiserver/internal/watch"
)

// get answers with one object, from its cached bytes.
func (e *endpoint) get(w http.ResponseWriter, r *http.Request, info *request.Info) error {
	out, err := negotiation.Accept(r, e.answers())
	if err != nil {
		return err
	}
	options := &metav1.GetOptions{}
	if err := decodeQuery(r, options); err != nil {
		return err
	}
	fresh, err := versions(options.ResourceVersion, "", false)
	if err != nil {
		return err
	}
	o, err := e.store.Cache().Get(r.Context(), e.namespace(info), info.Name, fresh)
	if err != nil {
		return rest.StatusError(err, e.group, info.Name)
	}
	return e.writeCached(w, r, http.StatusOK, out, o)
}

// writeCached answers with a cached object.
func (e *endpoint) writeCached(w http.ResponseWriter, r *http.Request, code int, out negotiation.Output, o *watch.Object) error {
	if out.View == negotiation.Table {
		table, err := e.tableOf(r, out, []*watch.Object{o}, metav1.ListMeta{ResourceVersion: versionOf(o.Revision)})
		if err != nil {
			return err
		}
		return writeTable(w, r, code, out, table)
	}
	data, err := e.encoded(r.Context(), o, out)
	if err == nil && (out.Format == negotiation.JSON || out.Format == negotiation.YAML) {
		data, err = response.FromJSON(data, out)
	}
	if err != nil {
		return rest.ConversionError(r.Context(), err)
	}
	response.Bytes(w, r, code, out, data)
	return nil
}

func versionOf(revision int64) string { return strconv.FormatInt(revision, 10) }

// list answers with a consistent list, put together from the objects' cached
// bytes.
func (e *endpoint) list(w http.ResponseWriter, r *http.Request, info *request.Info) error {
	out, err := negotiation.Accept(r, e.answers())
	if err != nil {
		return err
	}
	l, err := e.listing(r, "")
	if err != nil {
		return err
	}
	selection, err := e.selection(l, e.namespace(info))
	if err != nil {
		return err
	}
	list, err := e.store.Cache().List(r.Context(), selection)
	if err != nil {
		return e.listError(err, l, selection)
	}
	meta := listMeta(list)
	if out.View == negotiation.Table {
		table, err := e.tableOf(r, out, list.Objects, meta)
		if err != nil {
			return err
		}
		return writeTable(w, r, http.StatusOK, out, table)
	}
	return e.writeList(w, r, out, list, meta)
}

// listEncoder is a list in one of the formats, as parts.
type listEncoder func(context.Context, *watch.List, metav1.ListMeta, negotiation.Output) ([][]byte, error)

func (e *endpoint) writeList(w http.ResponseWriter, r *http.Request, out negotiation.Output, list *watch.List, meta metav1.ListMeta) error {
	if binary := map[negotiation.Format]listEncoder{negotiation.Protobuf: e.protobufList, negotiation.CBOR: e.cborList}[out.Format]; binary != nil {
		parts, err := binary(r.Context(), list, meta, out)
		if err != nil {
			return rest.ConversionError(r.Context(), err)
		}
		response.Parts(w, r, http.StatusOK, out.Format.MediaType(), parts)
		return nil
	}
	parts, err := e.jsonList(r.Context(), list, meta, out)
	if err != nil {
		return rest.ConversionError(r.Context(), err)
	}
	if out.Format == negotiation.YAML || out.Pretty {
		data, err := response.FromJSON(join(parts), out)
		if err != nil {
			return apierrors.NewInternalError(err)
		}
		parts = [][]byte{data}
	}
	response.Parts(w, r, http.StatusOK, out.Format.MediaType(), parts)
	return nil
}

func join(parts [][]byte) []byte {
	var all []byte
	for _, part := range parts {
		all = append(all, part...)
	}
	return all
}

func listMeta(list *watch.List) metav1.ListMeta {
	meta := metav1.ListMeta{ResourceVersion: versionOf(list.Revision)}
	if list.Next != "" {
		meta.Continue = continuation{Revision: list.Revision, After: list.Next}.encode()
		if list.Remaining >= 0 {
			meta.RemainingItemCount = &list.Remaining
		}
	}
	return meta
}

// jsonList is a list in JSON, as parts: the bytes that upstream's encoder would
// make of the typed list.
func (e *endpoint) jsonList(ctx context.Context, list *watch.List, meta metav1.ListMeta, out negotiation.Output) ([][]byte, error) {
	head, err := json.Marshal(meta)
	if err != nil {
		return nil, err
	}
	kind, version := e.listKind, e.kind.GroupVersion().String()
	if out.View == negotiation.Metadata {
		kind, version = "PartialObjectMetadataList", "meta.k8s.io/"+out.Version
	}
	start := `{"kind":` + quote(kind) + `,"apiVersion":` + quote(version) + `,"metadata":` + string(head) + `,"items":[`
	parts := make([][]byte, 0, 2*len(list.Objects)+2)
	parts = append(parts, []byte(start))
	separator := []byte("{")
	items, err := e.encodeAll(ctx, list.Objects, e.form(out))
	if err != nil {
		return nil, err
	}
	for i, data := range items {
		if i == 1 {
			separator = []byte(",{")
		}
		parts = append(parts, separator, e.item(data))
	}
	return append(parts, []byte("]}\n")), nil
}

// selection is what a list asks of the cache.
func (e *endpoint) selection(l *listing, namespace string) (watch.ListOptions, error) {
	s := watch.ListOptions{Namespace: namespace, Labels: l.labels, Fields: l.fields, Limit: int(l.Limit)}
	if name, ok := l.fields.RequiresExactMatch("metadata.name"); ok {
		s.Name = name
	}
	var err error
	if l.Continue == "" {
		s.Versions, err = versions(l.ResourceVersion, l.ResourceVersionMatch, l.Limit > 0)
		return s, err
	}
	if l.ResourceVersion != "" && l.ResourceVersion != "0" {
		return s, apierrors.NewBadRequest("specifying resource version is not allowed when using continue")
	}
	c, err := decodeContinue(l.Continue)
	if err != nil {
		return s, apierrors.NewBadRequest("invalid continue token: " + err.Error())
	}
	s.StartAfter = c.After
	if c.Revision > 0 {
		s.Versions = watch.Versions{Match: watch.Exact, Revision: c.Revision}
	}
	return s, nil
}

// listError gives a client whose continued list has expired a token with which
// it can go on, without consistency.
func (e *endpoint) listError(err error, l *listing, selection watch.ListOptions) error {
	err = rest.StatusError(err, e.group, "")
	var status *apierrors.StatusError
	if l.Continue == "" || !apierrors.IsResourceExpired(err) || !errors.As(err, &status) {
		return err
	}
	expired := apierrors.NewResourceExpired("The provided continue parameter is too old to display a consistent list result. " +
		"You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. " +
		"Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.")
	expired.ErrStatus.Continue = continuation{Revision: -1, After: selection.StartAfter}.encode()
	return expired
}
