package handlers

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/http"
	"time"

	"github.com/gorilla/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sampan-io/sampan/services/apiserver/internal/negotiation"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/response"
	"github.com/sampan-io/sampan/services/apiserver/internal/watch"
)

// writeTimeout is how long a client may take none of what is sent to it before
// its stream is closed.
const writeTimeout = 30 * time.Second

// stream writes watch events in frames.
type stream struct {
	endpoint *endpoint
	w        http.ResponseWriter
	control  *http.ResponseController
	r        *http.Request
	out      negotiation.Output
	columns  bool // the first Table has been sent
	tellEnd  bool // the client asked for the bookmark that ends the initial events
	buffer   []byte
	// stalled ends the stream when the client takes nothing for writeTimeout. It
	// runs only during writes.
	stalled *time.Timer
	socket  *websocket.Conn // nil for a plain answer
}

func (e *endpoint) newStream(w http.ResponseWriter, r *http.Request, out negotiation.Output) *stream {
	s := &stream{endpoint: e, w: w, control: http.NewResponseController(w), r: r, out: out}
	s.stalled = time.AfterFunc(writeTimeout, func() { _ = s.control.SetWriteDeadline(time.Now()) })
	s.stalled.Stop()
	return s
}

// start sends the headers, so that the client knows the watch is open.
func (s *stream) start() {
	s.w.Header().Set("Content-Type", s.out.Format.StreamType())
	s.w.Header().Set("Cache-Control", "no-cache, private")
	s.w.WriteHeader(http.StatusOK)
	s.flush()
}

// flush sends what is buffered and says whether the client still listens.
func (s *stream) flush() bool {
	if s.socket != nil {
		sent := len(s.buffer) == 0 || s.message(s.buffer)
		s.buffer = s.buffer[:0]
		return sent
	}
	s.stalled.Reset(writeTimeout)
	defer s.stalled.Stop()
	if len(s.buffer) > 0 {
		if _, err := s.w.Write(s.buffer); err != nil {
			return false
		}
		s.buffer = s.buffer[:0]
	}
	return s.control.Flush() == nil
}

// maxBuffered is how much is gathered before it is written.
const maxBuffered = 256 << 10

// follow goes on with the endpoint that serves the resource by now, and says
// whether one does.
func (s *stream) follow() bool {
	now := s.endpoint.api.endpoint(s.endpoint.resource.GroupVersionResource)
	if now != nil && now != s.endpoint {
		s.endpoint, s.columns = now, false
	}
	return now != nil
}

func (s *stream) send(event *watch.Event) error {
	if event.Type == watch.InitialEventsEnd && !s.tellEnd {
		return nil
	}
	kind, object, err := s.encode(event)
	if err != nil {
		s.fail(err)
		return err
	}
	if err := s.frame(kind, object); err != nil {
		return err
	}
	// A WebSocket has each event in a message of its own.
	if (s.socket != nil || len(s.buffer) > maxBuffered) && !s.flush() {
		return http.ErrHandlerTimeout
	}
	return nil
}

// frame appends one event.
func (s *stream) frame(kind string, object []byte) error {
	switch s.out.Format {
	case negotiation.CBOR:
		var err error
		s.buffer, err = cborEvent(s.buffer, kind, object)
		return err
	case negotiation.JSON, negotiation.YAML:
		s.buffer = append(s.buffer, `{"type":"`...)
		s.buffer = append(s.buffer, kind...)
		s.buffer = append(s.buffer, `","object":`...)
		if n := len(object); n > 0 && object[n-1] == '\n' {
			object = object[:n-1]
		}
		s.buffer = append(s.buffer, object...)
		s.buffer = append(s.buffer, '}')
		if s.socket == nil {
			s.buffer = append(s.buffer, '\n')
		}
		return nil
	}
	extension := appendHeader(nil, tagExtensionRaw, len(object))
	head := appendField(nil, tagEventType, []byte(kind))
	head = appendHeader(head, tagEventObject, len(extension)+len(object))
	head = append(head, extension...)
	if s.socket == nil { // a message has its length
		s.buffer = binary.BigEndian.AppendUint32(s.buffer, uint32(len(head)+len(object)))
	}
	s.buffer = append(s.buffer, head...)
	s.buffer = append(s.buffer, object...)
	return nil
}

// convertAhead has the objects of events converted together, where another program
// does that. Sending them tells of what goes wrong.
func (s *stream) convertAhead(ctx context.Context, events []watch.Event) {
	if !s.endpoint.converts() {
		return
	}
	var objects []*watch.Object
	for i := range events {
		if events[i].Object != nil {
			objects = append(objects, events[i].Object)
		}
	}
	form := s.endpoint.form(s.out)
	if s.out.View == negotiation.Table {
		form = s.endpoint.printed
	}
	_, _ = s.endpoint.encodeAll(ctx, objects, form)
}

// encode is an event's type and object.
func (s *stream) encode(event *watch.Event) (string, []byte, error) {
	switch event.Type {
	case watch.Bookmark, watch.InitialEventsEnd:
		object, err := s.encodeBookmark(event)
		return "BOOKMARK", object, err
	}
	kind := map[watch.EventType]string{watch.Added: "ADDED", watch.Modified: "MODIFIED", watch.Deleted: "DELETED"}[event.Type]
	if s.out.View != negotiation.Table {
		object, err := s.endpoint.encoded(s.r.Context(), event.Object, s.out)
		return kind, object, err
	}
	table, err := s.endpoint.tableOf(s.r, s.out, []*watch.Object{event.Object}, metav1.ListMeta{ResourceVersion: versionOf(event.Object.Revision)})
	if err != nil {
		return kind, nil, err
	}
	object, err := s.encodeTable(table)
	return kind, object, err
}

// encodeTable sends the columns with the first table only.
func (s *stream) encodeTable(table *tableDocument) ([]byte, error) {
	if s.columns {
		table.head.ColumnDefinitions = nil
	}
	s.columns = true
	parts, err := table.json(time.Now())
	if err != nil {
		return nil, err
	}
	return response.FromJSON(join(parts), negotiation.Output{Format: s.out.Format})
}

func (s *stream) encodeBookmark(event *watch.Event) ([]byte, error) {
	object, err := s.endpoint.bookmark(event)
	if err != nil {
		return nil, err
	}
	obj, ok := object.(registry.Object)
	if !ok {
		return nil, fmt.Errorf("%T has no kind", object)
	}
	compact := negotiation.Output{Format: s.out.Format}
	switch s.out.View {
	case negotiation.Table:
		table, err := s.endpoint.tableOfObject(s.r, s.out, []runtime.Object{obj}, metav1.ListMeta{ResourceVersion: versionOf(event.Revision)})
		if err != nil {
			return nil, err
		}
		return s.encodeTable(table)
	case negotiation.Metadata:
		partial, err := partialOf(obj)
		if err != nil {
			return nil, err
		}
		return response.Encode(partial, compact)
	}
	return response.Encode(obj, compact)
}

// fail ends the stream with an ERROR event.
func (s *stream) fail(err error) {
	status := response.Status(err)
	if apierrors.IsResourceExpired(err) {
		status.Code = http.StatusGone
	}
	object, encodeErr := response.Encode(status, negotiation.Output{Format: s.out.Format})
	if encodeErr != nil {
		return
	}
	if s.frame("ERROR", object) == nil {
		s.flush()
	}
}
