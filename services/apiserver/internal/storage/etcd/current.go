package etcd

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	roundTimeout = 10 * time.Second
	// nudgeAfter is how long an event may take before etcd is asked whether there is
	// one: revisions that others have made outside of this store's keys bring none.
	nudgeAfter = 5 * time.Millisecond
	nudgeEvery = 50 * time.Millisecond
	// paceEvery is how often the applied revision catches up with etcd's when
	// nothing is written here.
	paceEvery = 2 * time.Second
)

// round is one linearizable read that all who came before it began share.
type round struct {
	done     chan struct{}
	revision int64
	err      error
}

// Current is etcd's revision, linearizably read, after the sinks have seen all
// of it.
func (s *Store) Current(ctx context.Context) (int64, error) {
	r, err := s.join()
	if err != nil {
		return 0, err
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	if r.err != nil {
		return 0, s.translated(r.err)
	}
	return r.revision, s.await(ctx, r.revision)
}

// join is the next round, which is started if none is being answered.
func (s *Store) join() (*round, error) {
	s.roundMu.Lock()
	defer s.roundMu.Unlock()
	if err := s.open(); err != nil {
		return nil, err
	}
	if s.round == nil {
		s.round = &round{done: make(chan struct{})}
	}
	if !s.asking {
		s.asking = true
		s.running.Go(s.answerRounds)
	}
	return s.round, nil
}

// answerRounds answers until nobody waits.
func (s *Store) answerRounds() {
	for {
		s.roundMu.Lock()
		r := s.round
		s.round, s.asking = nil, r != nil
		s.roundMu.Unlock()
		if r == nil {
			return
		}
		ctx, cancel := context.WithTimeout(s.life, roundTimeout)
		answer, err := s.client.Get(ctx, s.top(), clientv3.WithKeysOnly())
		cancel()
		if r.err = err; err == nil {
			r.revision = answer.Header.Revision
		}
		close(r.done)
	}
}

// Applied is the revision up to which the sinks have seen everything.
func (s *Store) Applied() int64 { return s.applied.Load() }

// await waits until the sinks have seen everything up to a revision.
func (s *Store) await(ctx context.Context, revision int64) error {
	pause := nudgeAfter
	for {
		s.mu.Lock()
		moved := s.moved
		s.mu.Unlock()
		if s.Applied() >= revision {
			return nil
		}
		timer := time.NewTimer(pause)
		select {
		case <-moved:
		case <-timer.C:
			s.nudge(ctx)
			pause = nudgeEvery
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-s.life.Done():
			timer.Stop()
			return s.open()
		}
		timer.Stop()
	}
}

// nudge asks etcd to say on the watch how far it is. It does not answer while
// the watch is behind; whoever waits asks again.
func (s *Store) nudge(ctx context.Context) {
	ctx, cancel := context.WithTimeout(s.watchStream(ctx), nudgeEvery)
	defer cancel()
	_ = s.client.RequestProgress(ctx) // the watch itself tells what is wrong with it
}

// pace keeps the applied revision near etcd's, so that bookmarks move on.
func (s *Store) pace() {
	ticker := time.NewTicker(paceEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			s.nudge(s.life)
		case <-s.life.Done():
			return
		}
	}
}
