package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/rest"
)

// Log writes a line for each event.
type Log struct {
	mu     sync.Mutex
	out    io.Writer
	legacy bool
	lost   func(n int)
}

// NewLog writes to out: JSON, or upstream's older lines of text.
func NewLog(out io.Writer, legacy bool, measures *Measures) *Log {
	return &Log{out: out, legacy: legacy, lost: measures.lost("log")}
}

func (m *Measures) lost(plugin string) func(n int) {
	counter := m.errors.WithLabelValues(plugin)
	return func(n int) { counter.Add(float64(n)) }
}

// Take implements Sink.
func (l *Log) Take(events ...*Event) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, event := range events {
		line, err := l.line(event)
		if err == nil {
			_, err = l.out.Write(line)
		}
		if err != nil {
			l.lost(len(events) - i)
			return fmt.Errorf("writing the audit log: %w", err)
		}
	}
	return nil
}

func (l *Log) line(event *Event) ([]byte, error) {
	if l.legacy {
		return []byte(legacyLine(event) + "\n"), nil
	}
	line, err := json.Marshal(event)
	return append(line, '\n'), err
}

// legacyLine has upstream's fields in upstream's order.
func legacyLine(e *Event) string {
	or := func(value, none string) string {
		if value == "" {
			return none
		}
		return value
	}
	list := func(values []string) string {
		quoted := make([]string, len(values))
		for i, v := range values {
			quoted[i] = strconv.Quote(v)
		}
		return strings.Join(quoted, ",")
	}
	as, asGroups, namespace, code, ip := "<self>", "<lookup>", "", "<deferred>", "<unknown>"
	if u := e.ImpersonatedUser; u != nil {
		as = u.Username
		if u.Groups != nil {
			asGroups = list(u.Groups)
		}
	}
	if e.ObjectRef != nil {
		namespace = e.ObjectRef.Namespace
	}
	if e.ResponseStatus != nil {
		code = strconv.Itoa(int(e.ResponseStatus.Code))
	}
	if len(e.SourceIPs) > 0 {
		ip = e.SourceIPs[0]
	}
	groups := "<none>"
	if len(e.User.Groups) > 0 {
		groups = list(e.User.Groups)
	}
	return fmt.Sprintf("%s AUDIT: id=%q stage=%q ip=%q method=%q user=%q groups=%s as=%q asgroups=%s user-agent=%q namespace=%q uri=%q response=%q",
		e.RequestReceivedTimestamp.Format(time.RFC3339Nano), e.AuditID, e.Stage, ip, e.Verb, or(e.User.Username, "<none>"), groups,
		as, asGroups, e.UserAgent, or(namespace, "<none>"), e.RequestURI, code)
}

// Webhook posts lists of events to a server.
type Webhook struct {
	life    context.Context //nolint:containedctx // a sink's life, not a call's
	client  rest.Interface
	backoff wait.Backoff
	lost    func(n int)
}

// NewWebhook posts to the server that a client is made for; initial is the pause before
// a post is tried again, which none is after life has ended.
func NewWebhook(life context.Context, client rest.Interface, initial time.Duration, measures *Measures) *Webhook {
	const steps, factor, jitter = 5, 1.5, 0.2
	return &Webhook{life: life, client: client, backoff: wait.Backoff{Duration: initial, Factor: factor, Jitter: jitter, Steps: steps}, lost: measures.lost("webhook")}
}

// Take implements Sink.
func (h *Webhook) Take(events ...*Event) error {
	list := auditv1.EventList{TypeMeta: metav1.TypeMeta{APIVersion: auditv1.SchemeGroupVersion.String(), Kind: "EventList"}}
	for _, event := range events {
		list.Items = append(list.Items, *event)
	}
	body, err := json.Marshal(list)
	if err != nil {
		h.lost(len(events))
		return err
	}
	if err = h.post(body); err == nil {
		return nil
	}
	_ = wait.ExponentialBackoffWithContext(h.life, h.backoff, func(context.Context) (bool, error) { // err tells more
		err = h.post(body)
		return err == nil, nil
	})
	if err != nil {
		h.lost(len(events))
		return fmt.Errorf("posting audit events: %w", err)
	}
	return nil
}

// post is one try, which the client's timeout bounds.
func (h *Webhook) post(body []byte) error {
	return h.client.Post().SetHeader("Content-Type", "application/json").Body(body).Do(context.Background()).Error()
}

// careless takes every event: what is lost has been counted, and fails no request.
type careless struct{ Sink }

// Careless is a sink whose losses fail no request.
func Careless(s Sink) Sink { return careless{s} }

func (c careless) Take(events ...*Event) error {
	_ = c.Sink.Take(events...) // it has been counted
	return nil
}

// truncating keeps events small: one that is too large loses its bodies.
type truncating struct {
	Sink
	event, batch int64
	lost         func(n int)
}

// Truncating is a sink that gets no event above a size and no batch above another, in
// bytes.
func Truncating(s Sink, event, batch int64, measures *Measures) Sink {
	return &truncating{Sink: s, event: event, batch: batch, lost: measures.lost("truncate")}
}

func (t *truncating) Take(events ...*Event) error {
	var failed error
	var batch []*Event
	var total int64
	flush := func() {
		if len(batch) > 0 {
			failed = errors.Join(failed, t.Sink.Take(batch...))
		}
		batch, total = nil, 0
	}
	for _, event := range events {
		size := sizeOf(event)
		if size > t.event && (event.RequestObject != nil || event.ResponseObject != nil) {
			event = withoutBodies(event)
			size = sizeOf(event)
		}
		if size > t.event {
			t.lost(1)
			continue
		}
		if total+size > t.batch {
			flush()
		}
		batch, total = append(batch, event), total+size
	}
	flush()
	return failed
}

func sizeOf(event *Event) int64 {
	data, err := json.Marshal(event)
	if err != nil {
		return 0
	}
	return int64(len(data))
}

func withoutBodies(event *Event) *Event {
	smaller := *event
	smaller.RequestObject, smaller.ResponseObject = nil, nil
	smaller.Annotations = map[string]string{"audit.k8s.io/truncated": "true"}
	for key, value := range event.Annotations {
		smaller.Annotations[key] = value
	}
	return &smaller
}
