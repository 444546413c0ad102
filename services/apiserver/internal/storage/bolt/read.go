package bolt

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	bolt "go.etcd.io/bbolt"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
)

// snapshot is a read transaction at a revision.
type snapshot struct {
	log, keys *bolt.Bucket
	newest    int64 // of the transaction
	compacted int64 // likewise
	at        int64
}

// read runs f on a snapshot at revision, 0 being the newest that sinks have
// seen: what is committed but not yet delivered is not shown.
func (s *Store) read(revision int64, f func(snapshot) error) error {
	if s.ended() {
		return storage.ErrClosed
	}
	return s.db.View(func(tx *bolt.Tx) error {
		newest, err := decodeRevision(tx.Bucket(metaBucket).Get(revisionKey))
		if err != nil {
			return err
		}
		compacted, err := decodeRevision(tx.Bucket(metaBucket).Get(compactedKey))
		if err != nil {
			return err
		}
		current := min(s.current.Load(), newest)
		switch {
		case revision == 0:
			revision = current
		case revision > current:
			return &storage.FutureRevisionError{Requested: revision, Current: current}
		}
		if revision < compacted {
			return &storage.CompactedError{Requested: revision, Compacted: compacted}
		}
		return f(snapshot{log: tx.Bucket(logBucket), keys: tx.Bucket(keysBucket), newest: newest, compacted: compacted, at: revision})
	})
}

// Get reads a key at a revision.
func (s *Store) Get(_ context.Context, key string, revision int64) (out storage.KeyValue, err error) {
	err = s.read(revision, func(v snapshot) error {
		found, err := v.get(key)
		out = found
		return err
	})
	return out, err
}

func (v snapshot) get(key string) (storage.KeyValue, error) {
	if v.at < v.newest {
		all, err := v.undone(key, key+"\x00")
		if err != nil {
			return storage.KeyValue{}, err
		}
		if revision, touched := all[key]; touched {
			if revision == 0 {
				return storage.KeyValue{}, storage.ErrNotFound
			}
			return v.value(revision)
		}
	}
	data := v.keys.Get([]byte(key))
	if data == nil {
		return storage.KeyValue{}, storage.ErrNotFound
	}
	r, err := decodeRecord(data)
	if err != nil {
		return storage.KeyValue{}, err
	}
	return v.value(r.revision)
}

// value is the key and value that the write at revision made.
func (v snapshot) value(revision int64) (storage.KeyValue, error) {
	e, err := decodeEntry(v.log.Get(revisionBytes(revision)))
	if err != nil {
		return storage.KeyValue{}, fmt.Errorf("reading revision %d: %w", revision, err)
	}
	return storage.KeyValue{Key: e.key, Value: bytes.Clone(e.value), Revision: revision, CreateRevision: e.create}, nil
}

// undone maps the keys in [from, to) that were written after the snapshot's
// revision to the revision that they were at then, 0 when they did not exist.
func (v snapshot) undone(from, to string) (map[string]int64, error) {
	out := map[string]int64{}
	cursor := v.log.Cursor()
	for k, data := cursor.Seek(revisionBytes(v.at + 1)); k != nil; k, data = cursor.Next() {
		e, err := decodeHeader(data)
		if err != nil {
			return nil, err
		}
		if e.key < from || e.key >= to {
			continue
		}
		if _, earlier := out[e.key]; !earlier {
			out[e.key] = e.previous
		}
	}
	return out, nil
}

// List reads the keys under prefix at a revision.
func (s *Store) List(_ context.Context, prefix string, opts storage.ListOptions) (out storage.ListResult, err error) {
	err = s.read(opts.Revision, func(v snapshot) error {
		out.Revision = v.at
		revisions, err := v.list(prefix, max(opts.Start, prefix))
		if err != nil {
			return err
		}
		if opts.Limit > 0 && len(revisions) > opts.Limit {
			out.More, out.Remaining = true, int64(len(revisions)-opts.Limit)
			revisions = revisions[:opts.Limit]
		}
		out.Items = make([]storage.KeyValue, 0, len(revisions))
		for _, r := range revisions {
			item, err := v.value(r.revision)
			if err != nil {
				return err
			}
			out.Items = append(out.Items, item)
		}
		return nil
	})
	return out, err
}

type keyRevision struct {
	key      string
	revision int64
}

// list are the keys from start on under prefix, in order.
func (v snapshot) list(prefix, start string) ([]keyRevision, error) {
	var undone map[string]int64
	if v.at < v.newest {
		var err error
		if undone, err = v.undone(start, prefixEnd(prefix)); err != nil {
			return nil, err
		}
	}
	var out []keyRevision
	cursor := v.keys.Cursor()
	for k, data := cursor.Seek([]byte(start)); k != nil && bytes.HasPrefix(k, []byte(prefix)); k, data = cursor.Next() {
		if _, touched := undone[string(k)]; touched {
			continue
		}
		r, err := decodeRecord(data)
		if err != nil {
			return nil, err
		}
		out = append(out, keyRevision{string(k), r.revision})
	}
	for key, revision := range undone {
		if revision != 0 {
			out = append(out, keyRevision{key, revision})
		}
	}
	if len(undone) > 0 {
		slices.SortFunc(out, func(a, b keyRevision) int { return strings.Compare(a.key, b.key) })
	}
	return out, nil
}

// prefixEnd is the first key after all that start with prefix.
func prefixEnd(prefix string) string {
	end := []byte(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i] < 0xff {
			end[i]++
			return string(end[:i+1])
		}
	}
	return "\xff\xff\xff\xff"
}

// Count is the number of keys under prefix.
func (s *Store) Count(_ context.Context, prefix string) (count int64, err error) {
	err = s.read(0, func(v snapshot) error {
		keys, err := v.list(prefix, prefix)
		count = int64(len(keys))
		return err
	})
	return count, err
}

// Log reads the log after a revision.
func (s *Store) Log(_ context.Context, prefix string, after int64, limit int) (events []storage.Event, complete int64, err error) {
	err = s.read(0, func(v snapshot) error {
		if after < v.compacted {
			return &storage.CompactedError{Requested: after, Compacted: v.compacted}
		}
		if after > v.at {
			return &storage.FutureRevisionError{Requested: after, Current: v.at}
		}
		complete = v.at
		cursor := v.log.Cursor()
		for k, data := cursor.Seek(revisionBytes(after + 1)); k != nil; k, data = cursor.Next() {
			revision := int64(binary.BigEndian.Uint64(k))
			if revision > v.at {
				break
			}
			e, err := decodeHeader(data)
			if err != nil {
				return fmt.Errorf("reading revision %d: %w", revision, err)
			}
			if !strings.HasPrefix(e.key, prefix) {
				continue
			}
			if limit > 0 && len(events) == limit {
				complete = events[len(events)-1].Revision
				return nil
			}
			event, err := v.event(data, revision)
			if err != nil {
				return err
			}
			events = append(events, event)
		}
		return nil
	})
	return events, complete, err
}

func (v snapshot) event(data []byte, revision int64) (storage.Event, error) {
	e, err := decodeEntry(data)
	if err != nil {
		return storage.Event{}, fmt.Errorf("reading revision %d: %w", revision, err)
	}
	event := storage.Event{Operation: e.operation, Key: e.key, Revision: revision, CreateRevision: e.create, PrevRevision: e.previous}
	if e.operation != storage.Delete {
		event.Value = bytes.Clone(e.value)
	}
	if e.previous != 0 {
		previous, err := v.value(e.previous)
		if err != nil {
			return storage.Event{}, err
		}
		event.PrevValue = previous.Value
	}
	return event, nil
}

// Attach delivers the log after a revision and then what is committed.
func (s *Store) Attach(ctx context.Context, prefix string, after int64, deliver storage.Sink) error {
	const part = 512
	for {
		events, complete, err := s.Log(ctx, prefix, after, part)
		if err != nil {
			return err
		}
		if len(events) > 0 {
			deliver(events)
		}
		after = complete
		if len(events) == part {
			continue
		}
		// Registered under the lock that the committer delivers under: no event is
		// between the last read and the first delivery.
		s.mu.Lock()
		if s.current.Load() == complete {
			s.nextID++
			id := s.nextID
			s.sinks[id] = &sink{prefix: prefix, deliver: deliver, after: after}
			s.mu.Unlock()
			context.AfterFunc(ctx, func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				delete(s.sinks, id)
			})
			return nil
		}
		s.mu.Unlock()
	}
}
