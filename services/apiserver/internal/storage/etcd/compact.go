package etcd

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
)

// compactKey is where all API servers of an etcd, upstream's too, agree on who
// compacts: its value is the revision that was compacted last, its version
// counts the compactions. It stands outside of every prefix.
const compactKey = "compact_rev_key"

// CompactedRevision is the highest revision that is known to be compacted.
func (s *Store) CompactedRevision() int64 { return s.compacted.Load() }

// Compact drops what is older than revision.
func (s *Store) Compact(ctx context.Context, revision int64) error {
	if err := s.open(); err != nil {
		return err
	}
	if _, err := s.client.Compact(ctx, revision); err != nil {
		if errors.Is(err, rpctypes.ErrFutureRev) {
			return &storage.FutureRevisionError{Requested: revision, Current: s.Applied()}
		}
		if !errors.Is(err, rpctypes.ErrCompacted) { // by another one, further: as good
			return s.translated(err)
		}
	}
	s.noteCompacted(revision)
	return nil
}

// readCompacted is the compacted revision that is agreed on, and etcd's current
// one.
func (s *Store) readCompacted(ctx context.Context) (compacted, current int64, err error) {
	answer, err := s.client.Get(ctx, compactKey)
	if err != nil {
		return 0, 0, err
	}
	if len(answer.Kvs) > 0 {
		if compacted, err = parseCompacted(answer.Kvs[0].Value); err != nil {
			return 0, 0, err
		}
	}
	return compacted, answer.Header.Revision, nil
}

func parseCompacted(value []byte) (int64, error) {
	revision, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("reading %s: %w", compactKey, err)
	}
	return revision, nil
}

// compactAtIntervals compacts, each time, what was current the time before. Of
// several servers the one that writes compactKey first does it.
func (s *Store) compactAtIntervals() {
	var turn, before int64 // the version of compactKey that this server knows, and the revision then
	ticker := time.NewTicker(s.options.CompactEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-s.life.Done():
			return
		}
		nextTurn, now, err := s.takeTurn(s.life, turn, before)
		if err != nil {
			if s.life.Err() == nil {
				s.options.Log.Warn("etcd is not compacted; this is tried again", "err", err)
			}
			continue
		}
		turn, before = nextTurn, now
	}
}

// takeTurn compacts up to before if nobody has compacted since turn, and returns
// the turn and the revision to go on with.
func (s *Store) takeTurn(ctx context.Context, turn, before int64) (nextTurn, now int64, err error) {
	answer, err := s.client.Txn(ctx).If(clientv3.Compare(clientv3.Version(compactKey), "=", turn)).
		Then(clientv3.OpPut(compactKey, strconv.FormatInt(before, 10))).Else(clientv3.OpGet(compactKey)).Commit()
	if err != nil {
		return 0, 0, err
	}
	now = answer.Header.Revision
	if !answer.Succeeded {
		kv := answer.Responses[0].GetResponseRange().Kvs[0]
		compacted, err := parseCompacted(kv.Value)
		if err == nil {
			s.noteCompacted(compacted)
		}
		return kv.Version, now, err
	}
	if before == 0 { // the first turn only sets the mark
		return turn + 1, now, nil
	}
	return turn + 1, now, s.Compact(ctx, before)
}
