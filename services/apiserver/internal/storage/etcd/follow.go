package etcd

import (
	"context"
	"errors"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
)

// followAgain is the pause before a watch that has ended is opened again.
const followAgain = 200 * time.Millisecond

// sink is one that follows the keys under a prefix.
type sink struct {
	prefix  string
	after   int64
	deliver storage.Sink
	// behind says that the sink is still being given history; what comes meanwhile
	// waits.
	behind  bool
	waiting []storage.Event
}

var errWatchEnded = errors.New("etcd has ended the watch")

// follow hands every change to the sinks until the store is closed.
func (s *Store) follow() {
	for s.life.Err() == nil {
		err := s.followOnce(s.life)
		if s.life.Err() != nil {
			return
		}
		if errors.Is(err, rpctypes.ErrCompacted) {
			s.options.Log.Error("etcd has compacted changes that this server has not seen; it must start again", "after", s.Applied())
			s.options.Exit(1)
			return
		}
		s.options.Log.Warn("The watch of etcd has ended and is opened again", "err", err)
		select {
		case <-time.After(followAgain):
		case <-s.life.Done():
		}
	}
}

func (s *Store) followOnce(ctx context.Context) error {
	ctx, cancel := context.WithCancel(s.watchStream(ctx))
	defer cancel()
	watch := s.client.Watch(ctx, s.top(), clientv3.WithPrefix(), clientv3.WithRev(s.Applied()+1), clientv3.WithPrevKV(), clientv3.WithProgressNotify())
	for answer := range watch {
		if err := answer.Err(); err != nil {
			return err
		}
		if answer.IsProgressNotify() {
			s.dispatch(nil, answer.Header.Revision)
			continue
		}
		if len(answer.Events) == 0 {
			continue
		}
		events := make([]storage.Event, len(answer.Events))
		for i, event := range answer.Events {
			events[i] = s.event(event)
		}
		s.dispatch(events, events[len(events)-1].Revision)
	}
	return errWatchEnded
}

// watchStream marks the context of the one watch that is followed: requests for
// progress go to the stream with the same mark. Without a leader the watch ends,
// for a member cut off from the others would be silent for ever.
func (s *Store) watchStream(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(clientv3.WithRequireLeader(ctx), "sampan-stream", "follow")
}

func (s *Store) event(e *clientv3.Event) storage.Event {
	out := storage.Event{Operation: storage.Update, Key: s.logical(e.Kv.Key), Value: e.Kv.Value, Revision: e.Kv.ModRevision, CreateRevision: e.Kv.CreateRevision}
	switch {
	case e.Type == clientv3.EventTypeDelete:
		out.Operation, out.Value = storage.Delete, nil
	case e.IsCreate():
		out.Operation = storage.Create
	}
	if e.PrevKv != nil && out.Operation != storage.Create {
		out.PrevRevision, out.PrevValue, out.CreateRevision = e.PrevKv.ModRevision, e.PrevKv.Value, e.PrevKv.CreateRevision
	}
	return out
}

// dispatch hands events to the sinks, and then lets those go on who waited for
// them.
func (s *Store) dispatch(events []storage.Event, revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if revision <= s.Applied() {
		return
	}
	for i := range events {
		events[i].Hint = s.hintOf(events[i])
	}
	for _, sink := range s.sinks {
		sink.take(events)
	}
	s.applied.Store(revision)
	close(s.moved)
	s.moved = make(chan struct{})
}

// take hands a sink its part of what was committed.
func (k *sink) take(events []storage.Event) {
	var own []storage.Event
	for _, e := range events {
		if e.Revision > k.after && strings.HasPrefix(e.Key, k.prefix) {
			own = append(own, e)
		}
	}
	switch {
	case len(own) == 0:
	case k.behind:
		k.waiting = append(k.waiting, own...)
	default:
		k.deliver(own)
	}
}

// Attach delivers history after a revision and then what is committed.
func (s *Store) Attach(ctx context.Context, prefix string, after int64, deliver storage.Sink) error {
	current, err := s.Current(ctx)
	switch {
	case err != nil:
		return err
	case after > current:
		return &storage.FutureRevisionError{Requested: after, Current: current}
	case after < s.CompactedRevision():
		return s.compactedError(ctx, after)
	}
	k := &sink{prefix: prefix, after: after, deliver: deliver}
	detach, from := s.attach(k)
	if k.behind {
		if err := s.catchUp(ctx, k, from); err != nil {
			detach()
			return err
		}
	}
	context.AfterFunc(ctx, detach)
	return nil
}

// attach registers a sink, which is behind when there is history up to from that
// it has not seen.
func (s *Store) attach(k *sink) (detach func(), from int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	from = s.Applied()
	k.behind = k.after < from
	s.nextSink++
	id := s.nextSink
	s.sinks[id] = k
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.sinks, id)
	}, from
}

// catchUp gives a sink history and then what has come meanwhile.
func (s *Store) catchUp(ctx context.Context, k *sink, to int64) error {
	events, _, err := s.history(ctx, k.prefix, k.after, to, 0)
	if err != nil {
		return err
	}
	if len(events) > 0 {
		k.deliver(events)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(k.waiting) > 0 {
		k.deliver(k.waiting)
	}
	k.behind, k.waiting = false, nil
	return nil
}
