package bus

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// silence is how long a bus may say nothing before the API server is asked: two
	// heartbeats and some.
	silence = 5 * time.Second
	// bookmarkEvery is how often the reader is told how far the watch is, so that it
	// does not fall behind what the API server has compacted.
	bookmarkEvery = 30 * time.Second
	// backlog is how many messages wait for a slow reader. What comes beyond is lost,
	// noticed and repaired.
	backlog = 1024
)

// listener is one watch. It is complete up to a revision, and keeps being so.
//
// It goes to and fro between two states. Listening, it is fed from the bus
// alone. Following, it is fed by the API server's watch too, because a message
// showed a gap, because the bus was silent or has just been reached (again); it
// listens again as soon as the bus speaks and nothing is known to be missing.
// In both every message is taken in or shows a gap, so the order in which the
// two sources come does not matter.
type listener struct {
	lw            *listerWatcher
	heartbeats    string // subject
	bookmarks     bool
	ctx           context.Context
	cancel        context.CancelFunc
	results       chan watch.Event
	messages      chan *nats.Msg
	reconnected   chan struct{}
	subscriptions []*nats.Subscription

	// complete is the revision up to which everything was passed on, and target that
	// of the newest change heard of. Invariant: a gap is open while target >
	// complete. Both are of the goroutine that runs.
	complete, target int64
	bookmarked       time.Time
}

func newListener(ctx context.Context, l *listerWatcher, revision int64, bookmarks bool) *listener {
	w := &listener{
		lw: l, heartbeats: HeartbeatSubject(l.resource, l.namespace), bookmarks: bookmarks, complete: revision, bookmarked: time.Now(),
		results: make(chan watch.Event, 100), messages: make(chan *nats.Msg, backlog), reconnected: make(chan struct{}, 1),
	}
	w.ctx, w.cancel = context.WithCancel(ctx)
	return w
}

// Stop implements watch.Interface.
func (w *listener) Stop() { w.cancel() }

// ResultChan implements watch.Interface.
func (w *listener) ResultChan() <-chan watch.Event { return w.results }

// errStopped says that nobody wants the watch any more.
var errStopped = errors.New("watch was stopped")

func (w *listener) run() {
	defer close(w.results)
	defer w.lw.conn.remove(w)
	defer w.unsubscribe()
	defer w.cancel()
	defer context.AfterFunc(w.lw.conn.life, w.cancel)()
	// What changed between the list and the subscription came by no message.
	heard := false
	for {
		err := w.follow(heard)
		if err == nil {
			heard, err = w.listen()
		}
		if err != nil {
			w.fail(err)
			return
		}
	}
}

// listen takes messages in until one shows a gap (heard), or until something
// may have been missed without one.
func (w *listener) listen() (heard bool, err error) {
	timer := time.NewTimer(silence)
	defer timer.Stop()
	for {
		select {
		case <-w.ctx.Done():
			return false, errStopped
		case <-w.reconnected:
			return false, nil
		case <-timer.C:
			return false, nil
		case m := <-w.messages:
			if w.receive(m) && w.target > w.complete {
				w.lw.conn.repairs.Add(1)
				return true, nil
			}
		}
		timer.Reset(silence)
	}
}

// receive takes a message in; false when it was lost.
func (w *listener) receive(m *nats.Msg) bool {
	if received := w.lw.conn.options.Received; received != nil && !received(m.Subject) {
		return false
	}
	if m.Subject == w.heartbeats {
		var beat Heartbeat
		if err := proto.Unmarshal(m.Data, &beat); err != nil {
			w.lw.conn.options.Log.Warn("Heartbeat cannot be read", "subject", m.Subject, "err", err)
			return false
		}
		w.heartbeat(&beat)
		return true
	}
	var event Event
	if err := proto.Unmarshal(m.Data, &event); err != nil {
		w.lw.conn.options.Log.Warn("Message cannot be read", "subject", m.Subject, "err", err)
		return false
	}
	w.event(&event)
	return true
}

// event takes one change in: in order, repeated, or after a gap.
func (w *listener) event(e *Event) {
	previous := e.PreviousOfResource
	if w.lw.namespace != "" {
		previous = e.PreviousOfNamespace
	}
	if e.Revision <= w.complete {
		return // known: it was in the list, or came by a repair
	}
	w.target = max(w.target, e.Revision)
	if previous > w.complete || len(e.Object) == 0 {
		return
	}
	event, err := decode(e)
	if err != nil {
		// The API server may present it in a way that this program understands.
		w.lw.conn.options.Log.Warn("Event cannot be read from the bus", "resource", w.lw.resource, "err", err)
		return
	}
	w.lw.conn.events.Add(1)
	w.complete = e.Revision
	w.send(event)
}

func (w *listener) heartbeat(beat *Heartbeat) {
	w.target = max(w.target, beat.Last)
	if w.target > w.complete {
		return
	}
	w.complete = max(w.complete, beat.Revision)
	if !w.bookmarks || time.Since(w.bookmarked) < bookmarkEvery {
		return
	}
	if obj := w.lw.bookmark(w.complete); obj != nil {
		w.bookmarked = time.Now()
		w.send(watch.Event{Type: watch.Bookmark, Object: obj})
	}
}

func (w *listener) send(e watch.Event) {
	select {
	case w.results <- e:
	case <-w.ctx.Done():
	}
}
