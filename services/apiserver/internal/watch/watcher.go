package watch

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
)

const (
	logPart        = 500 // log entries read at once by a watch that is behind the ring
	bookmarkJitter = 0.25
	// bookmarkBeforeEnd is how long before a watch's deadline its last bookmark
	// comes, so that the client resumes from there (upstream's 2 seconds).
	bookmarkBeforeEnd = 2 * time.Second
)

// watcher is a cursor into a cache's ring, or into the store's log while it is
// behind the ring.
type watcher struct {
	cache   *Cache
	options WatchOptions
	bucket  bucket

	// initial are the objects that are sent first, with the revision that they are
	// complete up to.
	initial []*Object
	started bool // the initial events have been sent

	revision int64 // everything up to here was sent or does not match
	position int64 // in the ring, when inRing
	inRing   bool
	asleep   *signal // of bucket, that position has seen everything before

	timer  *time.Timer // next bookmark
	closed sync.Once
}

// Watch opens a cursor. Errors are API statuses: 410 for a revision below the
// compacted one, 504 for one that does not exist yet.
func (c *Cache) Watch(ctx context.Context, o WatchOptions) (Watcher, error) {
	w := &watcher{cache: c, options: o, bucket: c.bucketOf(o), revision: o.Revision, started: true}
	if o.InitialEvents {
		if err := w.startWithObjects(ctx); err != nil {
			return nil, err
		}
	} else {
		if err := c.await(ctx, o.Revision); err != nil {
			return nil, err
		}
		if oldest := c.store.CompactedRevision(); o.Revision < oldest {
			return nil, expired(o.Revision, oldest)
		}
	}
	c.watchers.Add(1)
	return w, nil
}

func (w *watcher) startWithObjects(ctx context.Context) error {
	v, revision, err := w.cache.fresh(ctx, w.options.Versions)
	if err != nil {
		return err
	}
	w.cache.ascend(v, ListOptions{Namespace: w.options.Namespace, Name: w.options.Name}, func(object *Object) bool {
		if w.matches(object) {
			w.initial = append(w.initial, object)
		}
		return true
	})
	w.revision, w.position, w.inRing, w.started = revision, v.next, w.options.Versions.Match != Exact, false
	return nil
}

// Close releases the cursor.
func (w *watcher) Close() {
	if w.timer != nil {
		w.timer.Stop()
	}
	if w.asleep != nil {
		w.cache.leave(w.bucket, w.asleep)
		w.asleep = nil
	}
	w.closed.Do(func() { w.cache.watchers.Add(-1) })
}

// Next waits for events.
func (w *watcher) Next(ctx context.Context, buf []Event) ([]Event, error) {
	limit := cap(buf) - len(buf)
	if limit <= 0 {
		limit = logPart
	}
	if w.options.Bookmarks && w.timer == nil {
		w.timer = time.NewTimer(w.untilBookmark(ctx))
	}
	if !w.started {
		if out := w.nextInitial(buf, limit); len(out) > len(buf) {
			return out, nil
		}
	}
	for {
		out, wake, err := w.advance(ctx, buf, limit)
		if err != nil || len(out) > len(buf) {
			return out, err
		}
		if wake == nil { // moved through the log without a match
			if err := ctx.Err(); err != nil {
				return buf, err
			}
			continue
		}
		if out, err = w.await(ctx, wake, buf, limit); err != nil || len(out) > len(buf) {
			return out, err
		}
	}
}

// await sleeps until there may be something, or until a bookmark is due, which
// it appends.
func (w *watcher) await(ctx context.Context, wake <-chan struct{}, buf []Event, limit int) ([]Event, error) {
	var bookmark <-chan time.Time
	if w.timer != nil {
		bookmark = w.timer.C
	}
	select {
	case <-wake:
		return buf, nil
	case <-ctx.Done():
		return buf, ctx.Err()
	case <-bookmark:
	}
	w.timer.Reset(w.untilBookmark(ctx))
	out, caughtUp, err := w.progress(ctx, buf, limit)
	if err == nil && caughtUp {
		out = append(out, Event{Type: Bookmark, Revision: w.revision})
	}
	return out, err
}

// untilBookmark is the pause to the next bookmark: the usual one, or less when
// the watch ends before.
func (w *watcher) untilBookmark(ctx context.Context) time.Duration {
	pause := wait.Jitter(w.cache.options.BookmarkEvery, bookmarkJitter)
	if deadline, ok := ctx.Deadline(); ok {
		if left := time.Until(deadline) - bookmarkBeforeEnd; left > 0 && left < pause {
			return left
		}
	}
	return pause
}

func (w *watcher) nextInitial(buf []Event, limit int) []Event {
	n := min(limit, len(w.initial))
	for _, object := range w.initial[:n] {
		buf = append(buf, Event{Type: Added, Object: object, Revision: object.Revision})
	}
	w.initial = w.initial[n:]
	if len(w.initial) == 0 && n < limit {
		w.started, w.initial = true, nil
		if w.options.InitialBookmark {
			buf = append(buf, Event{Type: InitialEventsEnd, Revision: w.revision})
		}
	}
	return buf
}

// progress looks whether the watcher has seen everything up to what is current
// now; w.revision is that revision then.
func (w *watcher) progress(ctx context.Context, buf []Event, limit int) (out []Event, caughtUp bool, err error) {
	current := w.cache.store.Applied()
	out, wake, err := w.advance(ctx, buf, limit)
	if err != nil || len(out) > len(buf) || wake == nil {
		return out, false, err
	}
	w.revision = max(w.revision, current)
	return out, true, nil
}

// advance appends what is at hand. With nothing at hand it returns the channel
// to sleep on; a nil channel says to come again.
func (w *watcher) advance(ctx context.Context, buf []Event, limit int) (out []Event, wake <-chan struct{}, err error) {
	c := w.cache
	c.mu.RLock()
	if w.skip() {
		wake = w.asleep.channel
		c.mu.RUnlock()
		return buf, wake, nil
	}
	if !w.inRing && w.revision >= c.ring.floor {
		w.position, w.inRing = c.ring.after(w.revision), true
	}
	if w.inRing && w.position < c.ring.start() {
		w.inRing = false // fell out: go on in the log
	}
	if !w.inRing {
		c.mu.RUnlock()
		out, err = w.fromLog(ctx, buf, limit)
		return out, nil, err
	}
	events := c.ring.from(w.position)
	c.mu.RUnlock()

	out = buf
	for i, e := range events {
		if len(out)-len(buf) == limit {
			events = events[:i]
			break
		}
		if out, err = w.filter(out, e); err != nil {
			return out, nil, err
		}
		w.revision = e.revision
	}
	w.position += int64(len(events))
	if len(out) > len(buf) {
		return out, nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ring.end() != w.position {
		return out, nil, nil
	}
	w.asleep = c.sleep(w.bucket)
	return out, w.asleep.channel, nil
}

// skip moves a watcher that slept over the events of other buckets, however many
// there were, and says whether it sleeps on. Caller must hold the cache's mu.
func (w *watcher) skip() (asleep bool) {
	s := w.asleep
	if s == nil {
		return false
	}
	if s.fired {
		w.position, w.revision, w.asleep = s.position, max(w.revision, s.revision), nil
		return false
	}
	w.position, w.revision = w.cache.ring.end(), max(w.revision, w.cache.view.Load().revision)
	return true
}

// filter appends the event as the watch's selectors show it.
func (w *watcher) filter(out []Event, e *ringEvent) ([]Event, error) {
	before := e.before != nil && w.matches(e.before)
	after := e.after != nil && w.matches(e.after)
	switch {
	case after && before:
		return append(out, Event{Type: Modified, Object: e.after, Revision: e.revision}), nil
	case after:
		return append(out, Event{Type: Added, Object: e.after, Revision: e.revision}), nil
	case before:
		object, err := e.left()
		if err != nil {
			return out, err
		}
		return append(out, Event{Type: Deleted, Object: object, Revision: e.revision}), nil
	}
	return out, nil
}

func (w *watcher) matches(object *Object) bool {
	return (w.options.Namespace == "" || object.Namespace == w.options.Namespace) &&
		(w.options.Name == "" || object.Name == w.options.Name) &&
		matches(object, w.options.Labels, w.options.Fields)
}

// fromLog reads a part of the store's log.
func (w *watcher) fromLog(ctx context.Context, buf []Event, limit int) ([]Event, error) {
	events, complete, err := w.cache.store.Log(ctx, w.cache.config.Prefix, w.revision, min(limit, logPart))
	var compacted *storage.CompactedError
	if errors.As(err, &compacted) {
		w.cache.expired.Add(1)
		return buf, expired(w.revision, compacted.Compacted)
	}
	if err != nil {
		return buf, err
	}
	w.cache.fromLog.Add(int64(len(events)))
	for _, event := range events {
		e, err := w.cache.fromEvent(event)
		if err != nil {
			return buf, err
		}
		if buf, err = w.filter(buf, e); err != nil {
			return buf, err
		}
	}
	w.revision = max(w.revision, complete)
	return buf, nil
}

// fromEvent is a log entry as the ring would hold it.
func (c *Cache) fromEvent(event storage.Event) (*ringEvent, error) {
	e := &ringEvent{revision: event.Revision}
	var err error
	if event.PrevValue != nil {
		if e.before, err = loose(c.newObject(event.Key, event.PrevValue, event.PrevRevision, event.CreateRevision, nil)); err != nil {
			return nil, err
		}
	}
	if event.Operation != storage.Delete {
		e.after, err = loose(c.newObject(event.Key, event.Value, event.Revision, event.CreateRevision, nil))
	}
	if e.before != nil {
		e.once.Do(func() { e.err = errRetired }) // no one shares what it would make
	}
	return e, err
}
