package etcd

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
)

// open is ErrClosed after Close.
func (s *Store) open() error {
	if s.life.Err() != nil {
		return storage.ErrClosed
	}
	return nil
}

// translated is etcd's error as the contract words it.
func (s *Store) translated(err error) error {
	switch {
	case err == nil:
		return nil
	case s.life.Err() != nil:
		return storage.ErrClosed
	case errors.Is(err, rpctypes.ErrNoSpace):
		return storage.ErrNoSpace
	case errors.Is(err, rpctypes.ErrRequestTooLarge):
		return storage.ErrTooLarge
	}
	return fmt.Errorf("asking etcd: %w", err)
}

// atRevision is translated for a read at a revision.
func (s *Store) atRevision(ctx context.Context, err error, revision int64) error {
	switch {
	case errors.Is(err, rpctypes.ErrCompacted):
		return s.compactedError(ctx, revision)
	case errors.Is(err, rpctypes.ErrFutureRev):
		return &storage.FutureRevisionError{Requested: revision, Current: s.Applied()}
	}
	return s.translated(err)
}

// compactedError says that revision has been compacted, by whomever, and learns
// how far: a watch from the first revision is answered with that.
func (s *Store) compactedError(ctx context.Context, revision int64) error {
	ctx, cancel := context.WithCancel(s.privateStream(ctx))
	defer cancel()
	if answer := <-s.client.Watch(ctx, s.top(), clientv3.WithRev(1)); answer.CompactRevision > 0 {
		s.noteCompacted(answer.CompactRevision)
	}
	s.noteCompacted(revision + 1)
	return &storage.CompactedError{Requested: revision, Compacted: s.CompactedRevision()}
}

func (s *Store) noteCompacted(revision int64) {
	for {
		known := s.compacted.Load()
		if revision <= known || s.compacted.CompareAndSwap(known, revision) {
			return
		}
	}
}
