package bus_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/sampan-io/sampan/proto/bus"
)

func services() schema.GroupResource { return schema.GroupResource{Resource: "services"} }

// fakeCluster is a log of changes of Services that is listed and watched as an
// API server's, and published on a real NATS server as the contract says.
type fakeCluster struct {
	t    testing.TB
	nats *server.Server
	port int
	log  *slog.Logger

	mu        sync.Mutex
	entries   []watch.Event // all that ever happened; objects have their revision
	revision  int64
	compacted int64
	broken    error // of watches and lists
	changed   chan struct{}
	watches   int

	publisher *nats.Conn
	silent    bool // nothing is published, as if the publisher had died
	twice     bool // every message is published twice
	large     bool // objects are left out
}

func newFakeCluster(t testing.TB) *fakeCluster {
	t.Helper()
	c := &fakeCluster{t: t, port: server.RANDOM_PORT, changed: make(chan struct{}), revision: 10, log: slog.New(slog.DiscardHandler)}
	c.startNATS()
	t.Cleanup(func() { c.stopNATS() })
	return c
}

func (c *fakeCluster) startNATS() {
	c.t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: c.port, NoLog: true, NoSigs: true})
	if err != nil {
		c.t.Fatalf("NATS server: %v", err)
	}
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		c.t.Fatal("NATS server does not start")
	}
	c.port = s.Addr().(*net.TCPAddr).Port
	publisher, err := nats.Connect("", nats.InProcessServer(s), nats.NoReconnect())
	if err != nil {
		c.t.Fatalf("publisher: %v", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nats, c.publisher = s, publisher
}

func (c *fakeCluster) stopNATS() {
	c.mu.Lock()
	s, publisher := c.nats, c.publisher
	c.publisher = nil
	c.mu.Unlock()
	if publisher != nil {
		publisher.Close()
	}
	s.Shutdown()
	s.WaitForShutdown()
}

func (c *fakeCluster) connect(received func(subject string) bool) *bus.Conn {
	c.t.Helper()
	conn, err := bus.Connect(bus.Options{URL: "nats://127.0.0.1:" + strconv.Itoa(c.port), Log: c.log, Received: received})
	if err != nil {
		c.t.Fatalf("connecting: %v", err)
	}
	c.t.Cleanup(conn.Close)
	return conn
}

// write commits a change and publishes it. It returns its revision.
func (c *fakeCluster) write(kind watch.EventType, namespace, name string) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.revision++
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"at": strconv.FormatInt(c.revision, 10)}}}
	previous, inNamespace := c.last(""), c.last(namespace)
	service.ResourceVersion = strconv.FormatInt(c.revision, 10)
	c.entries = append(c.entries, watch.Event{Type: kind, Object: service})
	close(c.changed)
	c.changed = make(chan struct{})
	event := &bus.Event{
		Type:      map[watch.EventType]bus.Event_Type{watch.Added: bus.Event_ADDED, watch.Modified: bus.Event_MODIFIED, watch.Deleted: bus.Event_DELETED}[kind],
		Namespace: namespace, Name: name, Revision: c.revision, PreviousOfResource: previous, PreviousOfNamespace: inNamespace,
		MediaType: runtime.ContentTypeProtobuf, ApiVersion: "v1",
	}
	if !c.large {
		event.Object = encode(c.t, service)
	}
	c.publish(bus.Subject(services(), namespace, name), event)
	return c.revision
}

// elsewhere commits a change of another resource.
func (c *fakeCluster) elsewhere() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.revision++
}

func encode(t testing.TB, service *corev1.Service) []byte {
	t.Helper()
	stored := service.DeepCopy()
	stored.ResourceVersion = ""
	stored.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Service"))
	var out bytes.Buffer
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(stored, &out); err != nil {
		t.Fatalf("encoding: %v", err)
	}
	return out.Bytes()
}

// last is the revision of the last change in a namespace. Caller must hold mu.
func (c *fakeCluster) last(namespace string) int64 {
	for i := len(c.entries) - 1; i >= 0; i-- {
		if service := c.entries[i].Object.(*corev1.Service); namespace == "" || service.Namespace == namespace {
			return revisionOf(service)
		}
	}
	return c.compacted
}

// publish sends a message. Caller must hold mu.
func (c *fakeCluster) publish(subject string, message proto.Message) {
	if c.silent || c.publisher == nil {
		return
	}
	data, err := proto.Marshal(message)
	if err != nil {
		c.t.Fatalf("encoding: %v", err)
	}
	for range map[bool]int{false: 1, true: 2}[c.twice] {
		if err := c.publisher.Publish(subject, data); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
			c.t.Errorf("publishing: %v", err)
		}
	}
}

// beat publishes a heartbeat of all and of each namespace.
func (c *fakeCluster) beat() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.publish(bus.HeartbeatSubject(services(), ""), &bus.Heartbeat{Revision: c.revision, Last: c.last("")})
	for _, namespace := range []string{"a", "b"} {
		c.publish(bus.HeartbeatSubject(services(), namespace), &bus.Heartbeat{Revision: c.revision, Last: c.last(namespace)})
	}
}

// beats publishes heartbeats until the test ends.
func (c *fakeCluster) beats() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			c.beat()
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	c.t.Cleanup(func() { cancel(); <-done })
}

func (c *fakeCluster) set(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

// compact forgets the log up to now.
func (c *fakeCluster) compact() { c.set(func() { c.compacted = c.revision }) }

func (c *fakeCluster) watchesSoFar() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.watches
}

// truth is what exists, by key.
func (c *fakeCluster) truth() map[string]*corev1.Service {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.existing()
}

// existing is truth. Caller must hold mu.
func (c *fakeCluster) existing() map[string]*corev1.Service {
	out := map[string]*corev1.Service{}
	for _, e := range c.entries {
		service := e.Object.(*corev1.Service)
		key := service.Namespace + "/" + service.Name
		if e.Type == watch.Deleted {
			delete(out, key)
		} else {
			out[key] = service
		}
	}
	return out
}

// api is the cluster's API server for a namespace ("" is all).
type api struct {
	*fakeCluster
	namespace string
}

func (a api) List(options metav1.ListOptions) (runtime.Object, error) {
	return a.ListWithContext(context.Background(), options)
}

func (a api) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return a.WatchWithContext(context.Background(), options)
}

func (a api) ListWithContext(context.Context, metav1.ListOptions) (runtime.Object, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.broken != nil {
		return nil, a.broken
	}
	list := &corev1.ServiceList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.FormatInt(a.revision, 10)}}
	for _, service := range a.existing() {
		if a.namespace == "" || service.Namespace == a.namespace {
			list.Items = append(list.Items, *service.DeepCopy())
		}
	}
	return list, nil
}

func (a api) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	after, err := strconv.ParseInt(options.ResourceVersion, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("resource version: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.watches++
	if a.broken != nil {
		return nil, a.broken
	}
	if after < a.compacted {
		return nil, apierrors.NewResourceExpired("too old")
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &apiWatch{results: make(chan watch.Event), cancel: cancel}
	go w.run(ctx, a, after)
	return w, nil
}

type apiWatch struct {
	results chan watch.Event
	cancel  context.CancelFunc
}

func (w *apiWatch) Stop()                          { w.cancel() }
func (w *apiWatch) ResultChan() <-chan watch.Event { return w.results }

func (w *apiWatch) run(ctx context.Context, a api, after int64) {
	defer close(w.results)
	next := 0
	for {
		a.mu.Lock()
		entries, changed := a.entries[next:], a.changed
		next = len(a.entries)
		a.mu.Unlock()
		for _, e := range entries {
			service := e.Object.(*corev1.Service)
			if revisionOf(service) <= after || a.namespace != "" && a.namespace != service.Namespace {
				continue
			}
			select {
			case w.results <- watch.Event{Type: e.Type, Object: service.DeepCopy()}:
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

func revisionOf(service *corev1.Service) int64 {
	revision, _ := strconv.ParseInt(service.ResourceVersion, 10, 64)
	return revision
}
