package bus

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
)

const (
	retryMin = 100 * time.Millisecond
	retryMax = 10 * time.Second
)

// follow passes on the API server's watch from what is complete, beside what
// the bus says, until the bus has been heard and nothing that was heard of is
// missing. It opens the watch again when that ends or cannot be had; errors that
// a new list cures are returned.
func (w *listener) follow(heard bool) error {
	w.lw.conn.following.Add(1)
	defer w.lw.conn.following.Add(-1)
	if !heard {
		select {
		case <-w.reconnected:
		default:
		}
	}
	pause := retryMin
	for {
		before := w.complete
		done, err := w.followOnce(&heard)
		if done {
			return nil
		}
		if err != nil && !passing(err) {
			return err
		}
		if w.complete > before {
			pause = retryMin
		}
		if done, err = w.wait(pause/2+rand.N(pause), &heard); done || err != nil {
			return err
		}
		pause = min(2*pause, retryMax)
	}
}

type opened struct {
	watch watch.Interface
	err   error
}

// followOnce follows one watch of the API server, which nil err says has ended.
func (w *listener) followOnce(heard *bool) (done bool, err error) {
	ctx, cancel := context.WithCancel(w.ctx)
	opening := make(chan opened, 1)
	options := metav1.ListOptions{ResourceVersion: strconv.FormatInt(w.complete, 10), AllowWatchBookmarks: true}
	go func() {
		source, err := w.lw.source.WatchWithContext(ctx, options)
		opening <- opened{source, err}
	}()
	var source watch.Interface
	defer func() {
		cancel()
		if source == nil { // still opening, or never had
			if late := <-opening; late.watch != nil {
				late.watch.Stop()
			}
			return
		}
		source.Stop()
	}()
	var events <-chan watch.Event
	for {
		select {
		case <-w.ctx.Done():
			return false, errStopped
		case m := <-w.messages:
			*heard = w.receive(m) || *heard
		case o := <-opening:
			if o.err != nil {
				opening <- opened{}
				return false, o.err
			}
			source, events = o.watch, o.watch.ResultChan()
		case e, ok := <-events:
			if !ok {
				return false, nil
			}
			if err := w.pass(e); err != nil {
				return false, err
			}
		}
		if *heard && w.target <= w.complete {
			return true, nil
		}
	}
}

// pass passes an event of the API server on.
func (w *listener) pass(e watch.Event) error {
	if e.Type == watch.Error {
		return apierrors.FromObject(e.Object)
	}
	revision, err := revisionOf(e.Object)
	if err != nil {
		return fmt.Errorf("reading event of the API server: %w", err)
	}
	if revision <= w.complete {
		return nil // the bus was faster
	}
	w.complete = revision
	if e.Type != watch.Bookmark || w.bookmarks {
		w.send(e)
	}
	return nil
}

// wait is a pause in which the bus may bring what is missing.
func (w *listener) wait(pause time.Duration, heard *bool) (done bool, err error) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-w.ctx.Done():
			return false, errStopped
		case <-timer.C:
			return false, nil
		case m := <-w.messages:
			*heard = w.receive(m) || *heard
			if *heard && w.target <= w.complete {
				return true, nil
			}
		}
	}
}

// passing says that an error may be gone at the next try, unlike one that a new
// list must cure (410) or that the reader should see (403).
func passing(err error) bool {
	if errors.Is(err, errStopped) {
		return false
	}
	var status apierrors.APIStatus
	return !errors.As(err, &status) || apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err)
}

// fail ends the watch with an error, which makes a reflector list anew where
// that is needed.
func (w *listener) fail(err error) {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		s := status.Status()
		w.send(watch.Event{Type: watch.Error, Object: &s})
		return
	}
	if !errors.Is(err, errStopped) {
		w.lw.conn.options.Log.Warn("Watch from the bus ended", "resource", w.lw.resource, "err", err)
	}
}

func revisionOf(obj runtime.Object) (int64, error) {
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(accessor.GetResourceVersion(), 10, 64)
}

// decode is a message as a watch would have it.
func decode(e *Event) (watch.Event, error) {
	var event watch.Event
	switch e.Type {
	case Event_ADDED:
		event.Type = watch.Added
	case Event_MODIFIED:
		event.Type = watch.Modified
	case Event_DELETED:
		event.Type = watch.Deleted
	default:
		return event, fmt.Errorf("type %s of %s/%s is not known", e.Type, e.Namespace, e.Name)
	}
	obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(e.Object, nil, nil)
	if err != nil {
		return event, fmt.Errorf("decoding %s/%s: %w", e.Namespace, e.Name, err)
	}
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return event, err
	}
	accessor.SetResourceVersion(strconv.FormatInt(e.Revision, 10))
	// As client-go's typed clients have them.
	obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	event.Object = obj
	return event, nil
}
