package rest

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/watch"
)

// Subscribe implements registry.Subscriber.
func (e *Engine) Subscribe(ctx context.Context, resource schema.GroupResource, handle func(old, new runtime.Object)) error {
	s, err := e.store(resource)
	if err != nil {
		return err
	}
	sub := &subscription{store: s, handle: handle, known: map[objectKey]*watch.Object{}}
	watcher, err := sub.start(ctx)
	if err != nil {
		return err
	}
	e.subscribers.Add(1)
	go func() {
		defer e.subscribers.Done()
		sub.follow(ctx, watcher)
	}()
	return nil
}

// Wait returns when every subscription has ended, after their contexts have.
func (e *Engine) Wait() { e.subscribers.Wait() }

type objectKey struct{ namespace, name string }

// subscription follows one resource, with the last version of each object.
type subscription struct {
	store  *Store
	handle func(old, new runtime.Object)
	known  map[objectKey]*watch.Object
	buffer []watch.Event
}

// start opens a watch and delivers the objects that exist. On a restart it
// delivers only what has changed since.
func (s *subscription) start(ctx context.Context) (watch.Watcher, error) {
	watcher, err := s.store.cache.Watch(ctx, watch.WatchOptions{InitialEvents: true, Bookmarks: true, InitialBookmark: true})
	if err != nil {
		return nil, s.store.statusError(err, "")
	}
	present := map[objectKey]bool{}
	for {
		events, err := watcher.Next(ctx, s.buffer[:0])
		if err != nil {
			watcher.Close()
			return nil, s.store.statusError(err, "")
		}
		s.buffer = events
		for i, event := range events {
			if event.Type == watch.InitialEventsEnd {
				s.drop(present)
				for _, later := range events[i+1:] {
					s.deliver(later)
				}
				return watcher, nil
			}
			if event.Object != nil {
				present[keyOf(event.Object)] = true
			}
			s.deliver(event)
		}
	}
}

// drop delivers the deletion of objects that are no longer there.
func (s *subscription) drop(present map[objectKey]bool) {
	for key, o := range s.known {
		if !present[key] {
			s.deliver(watch.Event{Type: watch.Deleted, Object: o})
		}
	}
}

// follow delivers events until ctx ends. When the log no longer has what it
// missed, it starts again.
func (s *subscription) follow(ctx context.Context, watcher watch.Watcher) {
	defer func() { watcher.Close() }()
	for {
		events, err := watcher.Next(ctx, s.buffer[:0])
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			s.buffer = events
			for _, event := range events {
				s.deliver(event)
			}
			continue
		}
		if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			return // the store is closed
		}
		next, err := s.start(ctx)
		if err != nil {
			return
		}
		watcher.Close()
		watcher = next
	}
}

func keyOf(o *watch.Object) objectKey { return objectKey{o.Namespace, o.Name} }

func (s *subscription) deliver(event watch.Event) {
	if event.Object == nil {
		return
	}
	key := keyOf(event.Object)
	before := s.known[key]
	switch event.Type {
	case watch.Added, watch.Modified:
		if before != nil && before.Revision == event.Object.Revision {
			return
		}
		s.known[key] = event.Object
		s.handle(s.view(before), s.view(event.Object))
	case watch.Deleted:
		if before == nil {
			return
		}
		delete(s.known, key)
		s.handle(s.view(before), nil)
	}
}

// view is the shared form of an object, an untyped nil for none.
func (s *subscription) view(o *watch.Object) runtime.Object {
	if o == nil {
		return nil
	}
	obj, err := s.store.shared(context.Background(), o)
	if err != nil {
		return nil
	}
	return obj
}

var _ registry.Subscriber = (*Engine)(nil)
