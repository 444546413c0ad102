// Package robustness kills services and cuts power under load and checks what
// was promised: acknowledged writes stay, watches are complete and in order,
// containers and rules survive.
package robustness

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// load writes ConfigMaps from several writers and remembers what the server
// acknowledged: per object the newest acknowledged counter and revision.
type load struct {
	client    kubernetes.Interface
	namespace string
	writers   int

	mu       sync.Mutex
	acked    map[string]ack
	writes   atomic.Int64
	failures atomic.Int64
	group    sync.WaitGroup
	cancel   context.CancelFunc
}

// ack is an acknowledged write of one object. Each object has one writer, so
// the server must hold this write or a later, unacknowledged one.
type ack struct {
	counter  int
	revision int64
}

func startLoad(ctx context.Context, client kubernetes.Interface, namespace string, writers int) *load {
	ctx, cancel := context.WithCancel(ctx)
	l := &load{client: client, namespace: namespace, writers: writers, acked: map[string]ack{}, cancel: cancel}
	for w := range writers {
		l.group.Go(func() { l.write(ctx, w) })
	}
	return l
}

// write creates objects and updates each a few times. After a failure it goes on
// with a new object, for the old one's state is unknown.
func (l *load) write(ctx context.Context, writer int) {
	maps := l.client.CoreV1().ConfigMaps(l.namespace)
	for i := 0; ctx.Err() == nil; i++ {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("w%d-%d-%d", writer, time.Now().UnixNano(), i)}}
		for counter := 1; counter <= 5 && ctx.Err() == nil; counter++ {
			object.Data = map[string]string{"counter": strconv.Itoa(counter), "padding": "0123456789abcdef0123456789abcdef"}
			var err error
			request, cancel := context.WithTimeout(ctx, 5*time.Second)
			if counter == 1 {
				object, err = maps.Create(request, object, metav1.CreateOptions{})
			} else {
				object, err = maps.Update(request, object, metav1.UpdateOptions{})
			}
			cancel()
			if err != nil {
				l.failures.Add(1)
				select { // the server may be down: do not spin
				case <-ctx.Done():
				case <-time.After(5 * time.Millisecond):
				}
				break
			}
			l.acknowledged(object, counter)
		}
	}
}

func (l *load) acknowledged(object *corev1.ConfigMap, counter int) {
	revision, err := strconv.ParseInt(object.ResourceVersion, 10, 64)
	if err != nil {
		panic("the server sent a resourceVersion that is no integer: " + object.ResourceVersion)
	}
	l.writes.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acked[object.Name] = ack{counter, revision}
}

// stop ends the writers and waits for them.
func (l *load) stop() {
	l.cancel()
	l.group.Wait()
}

// check compares what the server has with what it acknowledged and returns how
// many acknowledged writes are lost.
func (l *load) check(ctx context.Context) (lost int, err error) {
	list, err := l.client.CoreV1().ConfigMaps(l.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	have := map[string]ack{}
	for _, object := range list.Items {
		counter, err := strconv.Atoi(object.Data["counter"])
		if err != nil {
			continue // not of this load
		}
		revision, err := strconv.ParseInt(object.ResourceVersion, 10, 64)
		if err != nil {
			return 0, err
		}
		have[object.Name] = ack{counter, revision}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, want := range l.acked {
		got, ok := have[name]
		if !ok || got.counter < want.counter || got.revision < want.revision || (got.counter == want.counter && got.revision != want.revision) {
			lost++
		}
	}
	return lost, nil
}

// follower watches all ConfigMaps of a namespace through every interruption and
// checks order, uniqueness and, at the end, completeness.
type follower struct {
	client    kubernetes.Interface
	namespace string
	revision  string
	seen      map[string]int64 // newest revision by name
	faults    []string
	mu        sync.Mutex
	progress  chan struct{}
	group     sync.WaitGroup
	cancel    context.CancelFunc
}

func startFollower(ctx context.Context, client kubernetes.Interface, namespace string) (*follower, error) {
	list, err := client.CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	f := &follower{client: client, namespace: namespace, revision: list.ResourceVersion, seen: map[string]int64{}, progress: make(chan struct{}, 1), cancel: cancel}
	for _, object := range list.Items {
		f.seen[object.Name], _ = strconv.ParseInt(object.ResourceVersion, 10, 64)
	}
	f.group.Go(func() { f.follow(ctx) })
	return f, nil
}

func (f *follower) follow(ctx context.Context) {
	for ctx.Err() == nil {
		watcher, err := f.client.CoreV1().ConfigMaps(f.namespace).Watch(ctx, metav1.ListOptions{ResourceVersion: f.revision, AllowWatchBookmarks: true})
		if err != nil {
			if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
				f.fault("revision %s expired", f.revision)
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Millisecond):
			}
			continue
		}
		for event := range watcher.ResultChan() {
			object, ok := event.Object.(*corev1.ConfigMap)
			if status, broken := event.Object.(*metav1.Status); broken && status.Reason == metav1.StatusReasonInternalError {
				break // client-go's word for a connection that ended inside an event
			}
			if !ok {
				f.fault("event %s carries %T: %v", event.Type, event.Object, event.Object)
				continue
			}
			f.event(string(event.Type), object)
		}
	}
}

func (f *follower) event(kind string, object *corev1.ConfigMap) {
	before, _ := strconv.ParseInt(f.revision, 10, 64)
	now, err := strconv.ParseInt(object.ResourceVersion, 10, 64)
	switch {
	case err != nil:
		f.fault("revision %q", object.ResourceVersion)
		return
	case kind == "BOOKMARK" && now < before, kind != "BOOKMARK" && now <= before:
		f.fault("%s of %s at %d came after %d", kind, object.Name, now, before)
	}
	f.mu.Lock()
	f.revision = object.ResourceVersion
	switch kind {
	case "ADDED":
		if _, known := f.seen[object.Name]; known {
			f.faults = append(f.faults, "ADDED twice: "+object.Name)
		}
		f.seen[object.Name] = now
	case "MODIFIED":
		if _, known := f.seen[object.Name]; !known {
			f.faults = append(f.faults, "MODIFIED before ADDED: "+object.Name)
		}
		f.seen[object.Name] = now
	case "DELETED":
		delete(f.seen, object.Name)
	}
	f.mu.Unlock()
	select {
	case f.progress <- struct{}{}:
	default:
	}
}

func (f *follower) fault(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = append(f.faults, fmt.Sprintf(format, args...))
}

// finish waits until the follower has seen what a list shows, and returns its
// faults. Writes that were given up by their client may still be carried out, so
// the list is made anew until both agree.
func (f *follower) finish(ctx context.Context) []string {
	defer f.group.Wait()
	defer f.cancel()
	for {
		list, err := f.client.CoreV1().ConfigMaps(f.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return []string{err.Error()}
		}
		missing, extra, faults := f.compare(list.Items)
		if missing == 0 && extra == 0 {
			return faults
		}
		select {
		case <-f.progress:
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return append(faults, fmt.Sprintf("%d objects missing or stale, %d too many", missing, extra))
		}
	}
}

func (f *follower) compare(items []corev1.ConfigMap) (missing, extra int, faults []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, object := range items {
		if revision, _ := strconv.ParseInt(object.ResourceVersion, 10, 64); f.seen[object.Name] != revision {
			missing++
		}
	}
	return missing, len(f.seen) - len(items), f.faults
}
