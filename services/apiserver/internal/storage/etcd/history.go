package etcd

import (
	"context"
	"errors"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
)

// Log reads the log after a revision.
func (s *Store) Log(ctx context.Context, prefix string, after int64, limit int) ([]storage.Event, int64, error) {
	if err := s.open(); err != nil {
		return nil, 0, err
	}
	to := s.Applied()
	if after > to {
		current, err := s.Current(ctx)
		if err != nil {
			return nil, 0, err
		}
		if after > current {
			return nil, 0, &storage.FutureRevisionError{Requested: after, Current: current}
		}
		to = current
	}
	if after < s.CompactedRevision() {
		return nil, 0, s.compactedError(ctx, after)
	}
	if after == to {
		return nil, to, nil
	}
	return s.history(ctx, prefix, after, to, limit)
}

// privateStream marks the context of a watch that has a stream of its own.
func (s *Store) privateStream(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(clientv3.WithRequireLeader(ctx), "sampan-stream", "history-"+strconv.FormatInt(s.histories.Add(1), 10))
}

// past is what a reader of history has so far.
type past struct {
	events   []storage.Event
	to       int64 // where it ends
	limit    int
	complete int64 // set when it is done
}

// history reads events after one revision and up to another, at most limit (0 is
// all) but never a part of one revision, and how far that is complete.
func (s *Store) history(ctx context.Context, prefix string, after, to int64, limit int) ([]storage.Event, int64, error) {
	ctx, cancel := context.WithCancel(s.privateStream(ctx))
	defer cancel()
	watch := s.client.Watch(ctx, s.physical(prefix), clientv3.WithPrefix(), clientv3.WithRev(after+1), clientv3.WithPrevKV())
	ticker := time.NewTicker(nudgeEvery)
	defer ticker.Stop()
	_ = s.client.RequestProgress(ctx) // asked again until there is an answer
	p := past{to: to, limit: limit}
	for {
		select {
		case answer, ok := <-watch:
			if !ok {
				answer.Canceled = true
			}
			if err := s.refused(ctx, answer, after); err != nil {
				return nil, 0, err
			}
			done, err := s.add(ctx, &p, answer)
			if err != nil || done {
				return p.events, p.complete, err
			}
		case <-ticker.C:
			_ = s.client.RequestProgress(ctx)
		case <-s.life.Done():
			return nil, 0, storage.ErrClosed
		}
	}
}

func (s *Store) refused(ctx context.Context, answer clientv3.WatchResponse, after int64) error {
	err := answer.Err()
	switch {
	case errors.Is(err, rpctypes.ErrCompacted):
		s.noteCompacted(answer.CompactRevision)
		return &storage.CompactedError{Requested: after, Compacted: s.CompactedRevision()}
	case err != nil:
		return s.translated(err)
	case answer.Canceled && ctx.Err() != nil:
		return ctx.Err()
	case answer.Canceled:
		return s.translated(errWatchEnded)
	}
	return nil
}

// add takes an answer in and says whether it was the last one needed.
func (s *Store) add(ctx context.Context, p *past, answer clientv3.WatchResponse) (done bool, err error) {
	for _, e := range answer.Events {
		event := s.event(e)
		switch {
		case event.Revision > p.to:
			p.complete = p.to
			return true, nil
		case p.limit > 0 && len(p.events) >= p.limit && event.Revision > p.events[len(p.events)-1].Revision:
			p.complete = p.events[len(p.events)-1].Revision
			return true, nil
		case event.Operation != storage.Create && e.PrevKv == nil: // what it superseded is gone
			return false, s.compactedError(ctx, event.Revision-1)
		}
		p.events = append(p.events, event)
	}
	if n := len(p.events); p.limit > 0 && n >= p.limit {
		p.complete = p.events[n-1].Revision // an answer never ends inside of a revision
		return true, nil
	}
	if n := len(p.events); (n > 0 && p.events[n-1].Revision >= p.to) || (answer.IsProgressNotify() && answer.Header.Revision >= p.to) {
		p.complete = p.to
		return true, nil
	}
	return false, nil
}
