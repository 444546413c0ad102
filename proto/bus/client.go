package bus

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
)

// Options of a connection to the bus.
type Options struct {
	URL string // "tls://10.0.0.1:4222"
	TLS *tls.Config
	// Token is asked for at every connect: a service-account token with the audience
	// TokenAudience.
	Token func() (string, error)
	Log   *slog.Logger
	// Received, when set, sees each message before it is taken in and says whether
	// to go on; tests lose messages with it.
	Received func(subject string) bool
}

// Conn is a connection to the bus. It reconnects by itself for as long as it is
// open; what is missed meanwhile is repaired by the listeners.
type Conn struct {
	nats    *nats.Conn
	options Options
}

const reconnectPause = 250 * time.Millisecond

// Connect opens a connection. A bus that cannot be reached yet is no error:
// until it can, listeners are fed from the API server.
func Connect(options Options) (*Conn, error) {
	if options.Log == nil {
		options.Log = slog.Default()
	}
	settings := []nats.Option{
		nats.Name("sampan"), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(reconnectPause),
		nats.PingInterval(5 * time.Second), nats.MaxPingsOutstanding(2),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { options.Log.Info("Bus disconnected", "err", err) }),
		nats.ReconnectHandler(func(*nats.Conn) { options.Log.Info("Bus connected again") }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			options.Log.Warn("Bus reports an error", "err", err)
		}),
		// A refused token may be an old one: the next try asks for a new one.
		nats.IgnoreAuthErrorAbort(),
	}
	if options.TLS != nil {
		settings = append(settings, nats.Secure(options.TLS))
	}
	if options.Token != nil {
		settings = append(settings, nats.TokenHandler(func() string {
			token, err := options.Token()
			if err != nil {
				options.Log.Warn("No token for the bus", "err", err)
			}
			return token
		}))
	}
	conn, err := nats.Connect(options.URL, settings...)
	if err != nil {
		return nil, fmt.Errorf("connecting to the bus %s: %w", options.URL, err)
	}
	return &Conn{nats: conn, options: options}, nil
}

// Close ends the connection and with it all watches.
func (c *Conn) Close() { c.nats.Close() }

// ListerWatcher lists from the API server and watches the bus. Source is the
// API server's ListerWatcher of the same resource and namespace ("" is all); it
// serves lists, repairs, and watches with selectors.
func (c *Conn) ListerWatcher(resource schema.GroupResource, namespace string, source cache.ListerWatcher) cache.ListerWatcher {
	return &listerWatcher{conn: c, resource: resource, namespace: namespace, source: source}
}

type listerWatcher struct {
	conn      *Conn
	resource  schema.GroupResource
	namespace string
	source    cache.ListerWatcher
}

// List implements cache.Lister.
func (l *listerWatcher) List(options metav1.ListOptions) (runtime.Object, error) {
	return l.source.List(options) //nolint:staticcheck // SA1019: a ListerWatcher has no other method
}

// IsWatchListSemanticsUnSupported tells client-go to list before it watches.
func (l *listerWatcher) IsWatchListSemanticsUnSupported() bool { return true }

// Watch implements cache.Watcher.
func (l *listerWatcher) Watch(options metav1.ListOptions) (watch.Interface, error) {
	if options.FieldSelector != "" || options.LabelSelector != "" || options.ResourceVersion == "" || options.ResourceVersion == "0" {
		return l.source.Watch(options) //nolint:staticcheck // SA1019: as above
	}
	var revision int64
	if _, err := fmt.Sscan(options.ResourceVersion, &revision); err != nil {
		return nil, fmt.Errorf("watching from resource version %q: %w", options.ResourceVersion, err)
	}
	w := &listener{lw: l, results: make(chan watch.Event, 100), complete: revision, messages: make(chan *nats.Msg, 4096)}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	for _, subject := range []string{Pattern(l.resource, l.namespace), HeartbeatSubject(l.resource)} {
		subscription, err := l.conn.nats.ChanSubscribe(subject, w.messages)
		if err != nil {
			w.cancel()
			w.unsubscribe()
			return nil, fmt.Errorf("subscribing to %s: %w", subject, err)
		}
		w.subscriptions = append(w.subscriptions, subscription)
	}
	go w.run()
	return w, nil
}

// silence is how long a bus may say nothing before the API server is asked: two
// heartbeats and some.
const silence = 5 * time.Second

// listener is one watch. It is complete up to a revision, and keeps being so.
type listener struct {
	lw            *listerWatcher
	ctx           context.Context
	cancel        context.CancelFunc
	results       chan watch.Event
	messages      chan *nats.Msg
	subscriptions []*nats.Subscription
	stop          sync.Once
	complete      int64
}

// Stop implements watch.Interface.
func (w *listener) Stop() { w.stop.Do(w.cancel) }

// ResultChan implements watch.Interface.
func (w *listener) ResultChan() <-chan watch.Event { return w.results }

func (w *listener) unsubscribe() {
	for _, s := range w.subscriptions {
		_ = s.Unsubscribe()
	}
}

func (w *listener) run() {
	defer close(w.results)
	defer w.unsubscribe()
	timer := time.NewTimer(silence)
	defer timer.Stop()
	for {
		var err error
		select {
		case <-w.ctx.Done():
			return
		case m := <-w.messages:
			err = w.receive(m)
		case <-timer.C:
			// The bus is silent: it, or the way to it, is gone. Until it speaks again the
			// API server's own watch goes on from here.
			err = w.follow(nil)
		}
		if err != nil {
			w.fail(err)
			return
		}
		timer.Reset(silence)
	}
}

func (w *listener) receive(m *nats.Msg) error {
	if received := w.lw.conn.options.Received; received != nil && !received(m.Subject) {
		return nil
	}
	return w.take(m)
}

// fail ends the watch with an error, which makes a reflector list anew where
// that is needed.
func (w *listener) fail(err error) {
	if w.ctx.Err() != nil || errors.Is(err, errEnded) {
		return // a reflector watches again from its last revision
	}
	var status interface{ Status() metav1.Status }
	if errors.As(err, &status) {
		s := status.Status()
		w.send(watch.Event{Type: watch.Error, Object: &s})
		return
	}
	w.lw.conn.options.Log.Warn("Watch from the bus ended", "resource", w.lw.resource, "err", err)
}

func (w *listener) take(m *nats.Msg) error {
	if m.Subject == HeartbeatSubject(w.lw.resource) {
		var beat Heartbeat
		if err := proto.Unmarshal(m.Data, &beat); err != nil {
			return fmt.Errorf("reading heartbeat: %w", err)
		}
		return w.heartbeat(&beat)
	}
	var event Event
	if err := proto.Unmarshal(m.Data, &event); err != nil {
		return fmt.Errorf("reading message: %w", err)
	}
	return w.event(&event)
}

// event takes one change in: in order, repeated, or after a gap.
func (w *listener) event(e *Event) error {
	previous := e.PreviousOfResource
	if w.lw.namespace != "" {
		previous = e.PreviousOfNamespace
	}
	switch {
	case e.Revision <= w.complete:
		return nil // known: it was in the list, or came by a repair
	case previous > w.complete, len(e.Object) == 0:
		return w.repair(e.Revision)
	}
	obj, err := decode(e)
	if err != nil {
		return err
	}
	types := map[Event_Type]watch.EventType{Event_ADDED: watch.Added, Event_MODIFIED: watch.Modified, Event_DELETED: watch.Deleted}
	w.complete = e.Revision
	w.send(watch.Event{Type: types[e.Type], Object: obj})
	return nil
}

func (w *listener) heartbeat(beat *Heartbeat) error {
	last := beat.LastOfResource
	if w.lw.namespace != "" {
		last = min(last, max(w.complete, beat.LastOfNamespace[w.lw.namespace]))
	}
	if last > w.complete {
		return w.repair(last)
	}
	w.complete = max(w.complete, beat.Revision)
	return nil
}

// repair reads from the API server what is missing up to and including a
// revision at which the resource is known to have changed.
func (w *listener) repair(to int64) error {
	return w.follow(func(revision int64) bool { return revision >= to })
}

var errEnded = errors.New("the API server's watch ended")

// follow passes on the API server's watch from what is complete, until an event
// at whose revision done is true. Without done it goes on until the bus speaks
// again. Messages that come during a repair wait in the channel: what the repair
// brought is known by then, and what it did not shows as a gap.
func (w *listener) follow(done func(revision int64) bool) error {
	source, err := w.lw.source.Watch(metav1.ListOptions{ //nolint:staticcheck // SA1019: a ListerWatcher has no other method
		ResourceVersion: fmt.Sprint(w.complete), AllowWatchBookmarks: true,
	})
	if err != nil {
		return err
	}
	defer source.Stop()
	var messages chan *nats.Msg
	if done == nil {
		messages = w.messages
	}
	for {
		select {
		case <-w.ctx.Done():
			return nil
		case m := <-messages:
			return w.receive(m)
		case e, ok := <-source.ResultChan():
			if !ok {
				return errEnded
			}
			if e.Type == watch.Error {
				return statusError(e.Object)
			}
			revision, err := revisionOf(e.Object)
			if err != nil {
				return err
			}
			w.complete = max(w.complete, revision)
			w.send(e)
			if done != nil && done(revision) {
				return nil
			}
		}
	}
}

func (w *listener) send(e watch.Event) {
	select {
	case w.results <- e:
	case <-w.ctx.Done():
	}
}

type eventError struct{ status metav1.Status }

func (e *eventError) Error() string         { return e.status.Message }
func (e *eventError) Status() metav1.Status { return e.status }

func statusError(obj runtime.Object) error {
	if status, ok := obj.(*metav1.Status); ok {
		return &eventError{*status}
	}
	return errEnded
}

func revisionOf(obj runtime.Object) (int64, error) {
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return 0, err
	}
	var revision int64
	_, err = fmt.Sscan(accessor.GetResourceVersion(), &revision)
	return revision, err
}

// decode is a message's object with its resourceVersion.
func decode(e *Event) (runtime.Object, error) {
	obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(e.Object, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("decoding object of %s/%s: %w", e.Namespace, e.Name, err)
	}
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	accessor.SetResourceVersion(fmt.Sprint(e.Revision))
	return obj, nil
}
