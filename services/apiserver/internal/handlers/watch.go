package handlers

import (
	"context"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/gorilla/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/negotiation"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
	"github.com/sampan-io/sampan/services/apiserver/internal/rest"
	"github.com/sampan-io/sampan/services/apiserver/internal/watch"
)

// batch is how many events a watch encodes before it flushes.
const batch = 64

// watch streams events until the client goes, the watch's time ends, or the
// server stops.
func (e *endpoint) watch(w http.ResponseWriter, r *http.Request, info *request.Info) error {
	answers := e.answers()
	answers.Stream = true
	out, err := negotiation.Accept(r, answers)
	if err != nil {
		return err
	}
	l, err := e.watchListing(r, info)
	if err != nil {
		return err
	}
	options, err := e.watchOptions(l, info)
	if err != nil {
		return err
	}
	tellEnd := options.InitialBookmark
	options.InitialBookmark = options.InitialEvents
	ctx, cancel := e.watchContext(r.Context(), l)
	defer cancel()
	watcher, err := e.store.Cache().Watch(ctx, options)
	if err != nil {
		return e.watchError(w, r, out, rest.StatusError(err, e.group, ""))
	}
	defer watcher.Close()
	s := e.newStream(w, r, out)
	s.tellEnd = tellEnd
	if websocket.IsWebSocketUpgrade(r) {
		closing, ok := s.upgrade(cancel)
		if !ok {
			return nil
		}
		defer closing()
	} else {
		s.start()
	}
	if !options.InitialEvents {
		request.Begun(ctx)
	}
	s.run(ctx, watcher)
	return nil
}

func (e *endpoint) watchListing(r *http.Request, info *request.Info) (*listing, error) {
	name := ""
	if len(info.Parts) > 1 {
		name = info.Name
	}
	l := &listing{}
	query := r.URL.Query()
	if !query.Has("watch") { // the path says it
		query.Set("watch", "true")
		target := *r.URL
		target.RawQuery = query.Encode()
		copied := *r
		copied.URL = &target
		r = &copied
	}
	l, err := e.listing(r, name)
	if err != nil {
		return nil, err
	}
	l.Watch = true
	return l, nil
}

func (e *endpoint) watchOptions(l *listing, info *request.Info) (watch.WatchOptions, error) {
	o := watch.WatchOptions{
		Namespace: e.namespace(info), Labels: l.labels, Fields: l.fields, Bookmarks: l.AllowWatchBookmarks,
	}
	if name, ok := l.fields.RequiresExactMatch("metadata.name"); ok {
		o.Name = name
	}
	if len(info.Parts) > 1 {
		o.Name = info.Name
	}
	n, err := revision(l.ResourceVersion)
	if err != nil {
		return o, err
	}
	switch {
	case l.SendInitialEvents != nil && *l.SendInitialEvents:
		o.InitialEvents, o.InitialBookmark = true, l.AllowWatchBookmarks
		o.Versions, err = versions(l.ResourceVersion, "", false)
	case n == 0 && l.SendInitialEvents == nil:
		o.InitialEvents = true
		o.Versions, err = versions(l.ResourceVersion, "", false)
	case n == 0: // without the initial state: only what happens from now on
		o.Revision = e.store.Cache().Revision()
	default:
		o.Revision = n
	}
	return o, err
}

// watchContext ends with the watch's time, or when the server stops.
func (e *endpoint) watchContext(ctx context.Context, l *listing) (context.Context, context.CancelFunc) {
	timeout := e.api.config.MinRequestTimeout
	timeout += time.Duration(rand.Float64() * float64(timeout))
	if l.TimeoutSeconds != nil && *l.TimeoutSeconds > 0 {
		timeout = time.Duration(*l.TimeoutSeconds) * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	unhook := context.AfterFunc(e.api.open, cancel)
	unlive := context.AfterFunc(e.life, cancel)
	return ctx, func() { unhook(); unlive(); cancel() }
}

// watchError answers a watch that cannot start. One whose revision is gone gets
// its error as an event, as clients of watches expect it.
func (e *endpoint) watchError(w http.ResponseWriter, r *http.Request, out negotiation.Output, err error) error {
	if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		return err
	}
	s := e.newStream(w, r, out)
	s.start()
	s.fail(err)
	return nil
}

// run sends events until ctx ends or the client no longer takes them.
func (s *stream) run(ctx context.Context, watcher watch.Watcher) {
	buffer := make([]watch.Event, 0, batch)
	for {
		events, err := watcher.Next(ctx, buffer[:0])
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			s.fail(rest.StatusError(err, s.endpoint.group, ""))
			return
		}
		if !s.follow() {
			return
		}
		s.convertAhead(ctx, events)
		for i := range events {
			if events[i].Type == watch.InitialEventsEnd {
				request.Begun(ctx)
			}
			if err := s.send(&events[i]); err != nil {
				return
			}
			events[i] = watch.Event{}
		}
		if !s.flush() {
			return
		}
	}
}

// bookmark is the object of a bookmark event: empty but for its version.
func (e *endpoint) bookmark(event *watch.Event) (obj interface{ metav1.Object }, err error) {
	empty := e.resource.New()
	empty.GetObjectKind().SetGroupVersionKind(e.kind)
	obj, err = meta.Accessor(empty)
	if err != nil {
		return nil, err
	}
	obj.SetResourceVersion(versionOf(event.Revision))
	if event.Type == watch.InitialEventsEnd {
		obj.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	return obj, nil
}
