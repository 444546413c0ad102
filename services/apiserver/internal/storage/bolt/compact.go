package bolt

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
)

const (
	compactEvery = 10 * time.Second
	compactStep  = 1000 // revisions in one transaction
	expireStep   = 200  // keys that expire together
)

// history remembers when revisions were made and how many bytes they take, in
// coarse marks, to find the revision to compact at. The store's mutex guards it.
type history struct {
	marks []mark
	bytes int64 // after the last mark
}

type mark struct {
	revision int64
	at       time.Time
	bytes    int64 // of the revisions up to this one since the mark before
}

func (h *history) start(revision int64, now time.Time) {
	h.marks = []mark{{revision: revision, at: now}}
}

func (h *history) add(events []storage.Event, now time.Time) {
	for _, event := range events {
		h.bytes += int64(len(event.Value) + len(event.Key))
	}
	if len(h.marks) == 0 || now.Sub(h.marks[len(h.marks)-1].at) >= time.Second {
		h.marks = append(h.marks, mark{events[len(events)-1].Revision, now, h.bytes})
		h.bytes = 0
	}
}

// cut is the revision to compact at, so that what is kept is young and small
// enough. It forgets what lies before.
func (h *history) cut(oldest time.Time, most int64) (revision int64) {
	total := h.bytes
	keep := len(h.marks)
	for keep > 0 && h.marks[keep-1].at.After(oldest) && total+h.marks[keep-1].bytes <= most {
		keep--
		total += h.marks[keep].bytes
	}
	if keep == 0 {
		return 0
	}
	revision = h.marks[keep-1].revision
	h.marks = append([]mark(nil), h.marks[keep-1:]...)
	return revision
}

// compactAll compacts from time to time until the store closes.
func (s *Store) compactAll() {
	ticker := time.NewTicker(compactEvery)
	defer ticker.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-ticker.C:
		}
		s.mu.Lock()
		revision := s.history.cut(s.options.now().Add(-s.options.KeepAge), s.options.KeepBytes)
		s.mu.Unlock()
		if revision <= s.compacted.Load() {
			continue
		}
		if err := s.Compact(context.Background(), revision); err != nil && !errors.Is(err, storage.ErrClosed) {
			s.log.Warn("History not compacted", "err", err)
		}
	}
}

// Compact drops what lies before revision, in steps that let writers in between.
func (s *Store) Compact(ctx context.Context, revision int64) error {
	if current := s.current.Load(); revision > current {
		return &storage.FutureRevisionError{Requested: revision, Current: current}
	}
	s.compacting.Lock()
	defer s.compacting.Unlock()
	for from := s.compacted.Load(); from < revision; from = s.compacted.Load() {
		select {
		case <-s.stop:
			return storage.ErrClosed
		case <-ctx.Done():
			return ctx.Err()
		default:
		}
		to := min(revision, from+compactStep)
		step := func(tx *bolt.Tx) (bool, error) { return true, compactTo(tx, from, to) }
		err := s.update(step)
		if errors.Is(err, storage.ErrNoSpace) {
			s.release()
			err = s.update(step)
		}
		if err != nil {
			return err
		}
		s.compacted.Store(to)
	}
	return nil
}

// compactTo removes, for each write in (from, to], the value that it
// superseded, and the write itself when it was a deletion.
func compactTo(tx *bolt.Tx, from, to int64) error {
	log := tx.Bucket(logBucket)
	var gone [][]byte
	cursor := log.Cursor()
	for k, data := cursor.Seek(revisionBytes(from + 1)); k != nil && int64(binary.BigEndian.Uint64(k)) <= to; k, data = cursor.Next() {
		e, err := decodeHeader(data)
		if err != nil {
			return err
		}
		if e.previous != 0 {
			gone = append(gone, revisionBytes(e.previous))
		}
		if e.operation == storage.Delete {
			gone = append(gone, append([]byte(nil), k...))
		}
	}
	for _, k := range gone {
		if err := log.Delete(k); err != nil {
			return fmt.Errorf("removing from log: %w", err)
		}
	}
	return tx.Bucket(metaBucket).Put(compactedKey, revisionBytes(to))
}

// expireAll deletes keys whose time is over, until the store closes.
func (s *Store) expireAll() {
	for {
		next := s.expire()
		var timer <-chan time.Time
		if !next.IsZero() {
			timer = time.After(max(0, next.Sub(s.options.now())))
		}
		select {
		case <-s.stop:
			return
		case <-s.expiry:
		case <-timer:
		}
	}
}

// expire deletes a step of what is due and says when to come again.
func (s *Store) expire() (next time.Time) {
	due, next, err := s.due()
	if err != nil {
		s.log.Warn("Expired keys not found", "err", err)
		return s.options.now().Add(time.Second)
	}
	for _, w := range due {
		if err := s.enqueue(context.Background(), w); err != nil {
			return time.Time{}
		}
	}
	for _, w := range due {
		_, err := s.outcome(w)
		var conflict *storage.ConflictError
		if err != nil && !errors.Is(err, storage.ErrNotFound) && !errors.As(err, &conflict) {
			return s.options.now().Add(time.Second)
		}
	}
	if len(due) > 0 {
		return s.options.now()
	}
	return next
}

// due are the deletions of keys whose time is over, at most a step of them, or
// else the moment of the next.
func (s *Store) due() (due []*write, next time.Time, err error) {
	now := s.options.now().UnixNano()
	err = s.db.View(func(tx *bolt.Tx) error {
		cursor := tx.Bucket(ttlBucket).Cursor()
		for k, v := cursor.First(); k != nil && len(due) < expireStep; k, v = cursor.Next() {
			at := int64(binary.BigEndian.Uint64(k))
			if at > now {
				next = time.Unix(0, at)
				break
			}
			revision, err := decodeRevision(v)
			if err != nil {
				return err
			}
			due = append(due, &write{
				operation: storage.Delete, put: storage.Put{Key: string(k[8:])}, expect: revision, frees: true, expired: bytes.Clone(k),
			})
		}
		return nil
	})
	return due, next, err
}
