package bus

import (
	"context"
	"fmt"
	"reflect"
	"strconv"
	"sync"

	"github.com/nats-io/nats.go"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// ListerWatcher lists from the API server and watches the bus. Source is the
// API server's typed ListerWatcher of the same resource and namespace ("" is
// all); it serves lists, repairs, and watches with selectors.
func (c *Conn) ListerWatcher(resource schema.GroupResource, namespace string, source cache.ListerWatcher) cache.ListerWatcher {
	return &listerWatcher{conn: c, resource: resource, namespace: namespace, source: cache.ToListerWatcherWithContext(source)}
}

type listerWatcher struct {
	conn      *Conn
	resource  schema.GroupResource
	namespace string
	source    cache.ListerWatcherWithContext

	mu   sync.Mutex
	item reflect.Type // of the lists' items; nil before the first list
}

var _ cache.ListerWatcherWithContext = (*listerWatcher)(nil)

// IsWatchListSemanticsUnSupported tells client-go to list before it watches.
func (l *listerWatcher) IsWatchListSemanticsUnSupported() bool { return true }

// List implements cache.Lister.
func (l *listerWatcher) List(options metav1.ListOptions) (runtime.Object, error) {
	return l.ListWithContext(context.Background(), options)
}

// ListWithContext implements cache.ListerWithContext.
func (l *listerWatcher) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	list, err := l.source.ListWithContext(ctx, options)
	if err == nil {
		l.learn(list)
	}
	return list, err
}

// learn remembers of which type objects are, for bookmarks.
func (l *listerWatcher) learn(list runtime.Object) {
	items, err := meta.GetItemsPtr(list)
	if err != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.item = reflect.TypeOf(items).Elem().Elem()
}

// bookmark is an empty object at a revision; nil when objects' type is not known.
func (l *listerWatcher) bookmark(revision int64) runtime.Object {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.item == nil || l.item.Kind() != reflect.Struct {
		return nil
	}
	obj, ok := reflect.New(l.item).Interface().(runtime.Object)
	if !ok {
		return nil
	}
	accessor, err := meta.Accessor(obj)
	if _, untyped := obj.(runtime.Unstructured); untyped || err != nil {
		return nil
	}
	accessor.SetResourceVersion(strconv.FormatInt(revision, 10))
	return obj
}

// Watch implements cache.Watcher.
func (l *listerWatcher) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return l.WatchWithContext(context.Background(), options)
}

// WatchWithContext implements cache.WatcherWithContext. The watch has no
// timeout: heartbeats say that it lives. What the bus cannot serve (selectors,
// initial events) the API server does.
func (l *listerWatcher) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	initial := options.SendInitialEvents != nil && *options.SendInitialEvents
	if options.FieldSelector != "" || options.LabelSelector != "" || initial || options.ResourceVersion == "" || options.ResourceVersion == "0" {
		return l.source.WatchWithContext(ctx, options)
	}
	revision, err := strconv.ParseInt(options.ResourceVersion, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("watching from resource version %q: %w", options.ResourceVersion, err)
	}
	w := newListener(ctx, l, revision, options.AllowWatchBookmarks)
	if err := w.subscribe(l.conn.nats); err != nil {
		w.cancel()
		w.unsubscribe()
		l.conn.options.Log.Warn("Watching the API server, for the bus does not take a subscription", "resource", l.resource, "err", err)
		return l.source.WatchWithContext(ctx, options)
	}
	l.conn.add(w)
	go w.run()
	return w, nil
}

func (w *listener) subscribe(conn *nats.Conn) error {
	for _, subject := range []string{Pattern(w.lw.resource, w.lw.namespace), w.heartbeats} {
		subscription, err := conn.ChanSubscribe(subject, w.messages)
		if err != nil {
			return fmt.Errorf("subscribing to %s: %w", subject, err)
		}
		w.subscriptions = append(w.subscriptions, subscription)
	}
	return nil
}

func (w *listener) unsubscribe() {
	for _, s := range w.subscriptions {
		_ = s.Unsubscribe() // fails only when the connection is closed
	}
}
