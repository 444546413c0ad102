package upstreamtest

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	upstreamwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	upstream "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/flowcontrol"

	"github.com/sampan-io/sampan/services/apiserver/internal/watch"
)

// Watch implements upstream's interface.
func (a *Adapter) Watch(ctx context.Context, key string, opts upstream.ListOptions) (upstreamwatch.Interface, error) {
	prefix, err := upstream.PrepareKey(resource, key, opts.Recursive)
	if err != nil {
		return nil, err
	}
	o := watch.WatchOptions{Labels: opts.Predicate.Label, Fields: opts.Predicate.Field, Bookmarks: opts.Predicate.AllowWatchBookmarks}
	o.Namespace, o.Name = scope(prefix, opts.Recursive)
	revision, err := a.version.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return nil, err
	}
	initial := opts.SendInitialEvents
	switch {
	case initial != nil && *initial:
		o.InitialEvents, o.InitialBookmark = true, o.Bookmarks
		o.Versions, err = a.versions(opts.ResourceVersion)
	case revision == 0 && initial == nil:
		o.InitialEvents = true
		o.Versions, err = a.versions(opts.ResourceVersion)
	case revision == 0:
		o.Revision = a.cache.Revision()
	default:
		o.Revision = int64(revision)
	}
	if err != nil {
		return nil, err
	}
	s := &stream{version: a.version, results: make(chan upstreamwatch.Event, 100)}
	ctx, s.cancel = context.WithCancel(ctx)
	watcher, err := a.cache.Watch(ctx, o)
	if apierrors.IsResourceExpired(err) { // told on the stream, as by the server
		go s.fail(ctx, err)
		return s, nil
	}
	if err != nil {
		s.cancel()
		return nil, err
	}
	go s.run(ctx, watcher)
	return s, nil
}

// stream is one watch as upstream's suites read it.
type stream struct {
	version upstream.APIObjectVersioner
	results chan upstreamwatch.Event
	cancel  context.CancelFunc
}

func (s *stream) Stop()                                  { s.cancel() }
func (s *stream) ResultChan() <-chan upstreamwatch.Event { return s.results }
func (s *stream) send(ctx context.Context, e upstreamwatch.Event) {
	select {
	case s.results <- e:
	case <-ctx.Done():
	}
}

func (s *stream) run(ctx context.Context, watcher watch.Watcher) {
	defer close(s.results)
	defer s.cancel()
	defer watcher.Close()
	flowcontrol.WatchInitialized(ctx)
	for {
		events, err := watcher.Next(ctx, make([]watch.Event, 0, 10))
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			s.send(ctx, upstreamwatch.Event{Type: upstreamwatch.Error, Object: statusOf(err)})
			return
		}
		for _, e := range events {
			out, err := s.event(e)
			if err != nil {
				s.send(ctx, upstreamwatch.Event{Type: upstreamwatch.Error, Object: statusOf(err)})
				return
			}
			s.send(ctx, out)
		}
	}
}

func (s *stream) fail(ctx context.Context, err error) {
	defer close(s.results)
	defer s.cancel()
	s.send(ctx, upstreamwatch.Event{Type: upstreamwatch.Error, Object: statusOf(err)})
}

func statusOf(err error) *metav1.Status {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		out := status.Status()
		return &out
	}
	return &apierrors.NewInternalError(err).ErrStatus
}

func (s *stream) event(e watch.Event) (upstreamwatch.Event, error) {
	if e.Object == nil {
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{ResourceVersion: itoa(e.Revision)}}
		if e.Type == watch.InitialEventsEnd {
			pod.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
		}
		return upstreamwatch.Event{Type: upstreamwatch.Bookmark, Object: pod}, nil
	}
	obj, err := e.Object.Decode()
	out := upstreamwatch.Event{Type: upstreamwatch.Modified, Object: obj}
	switch e.Type {
	case watch.Added:
		out.Type = upstreamwatch.Added
	case watch.Deleted:
		out.Type = upstreamwatch.Deleted
	}
	return out, err
}
