package bolt

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
)

// write is one waiting write and, once it is answered, its outcome.
type write struct {
	operation storage.Operation
	put       storage.Put
	expect    int64
	// frees says that the write makes room and may use the reserve.
	frees bool

	event  storage.Event
	result storage.KeyValue
	err    error
	done   chan struct{}
}

// Create writes a key that must not exist.
func (s *Store) Create(ctx context.Context, put storage.Put) (storage.KeyValue, error) {
	return s.submit(ctx, &write{operation: storage.Create, put: put})
}

// Update writes a key that must be at revision expect.
func (s *Store) Update(ctx context.Context, put storage.Put, expect int64) (storage.KeyValue, error) {
	return s.submit(ctx, &write{operation: storage.Update, put: put, expect: expect})
}

// Delete removes a key that must be at revision expect.
func (s *Store) Delete(ctx context.Context, key string, expect int64) (storage.KeyValue, error) {
	return s.submit(ctx, &write{operation: storage.Delete, put: storage.Put{Key: key}, expect: expect, frees: true})
}

// submit queues a write and waits for its outcome. Once it is queued it is
// carried out whatever becomes of ctx, so the answer is waited for: a caller
// that gave up would not know what was stored.
func (s *Store) submit(ctx context.Context, w *write) (storage.KeyValue, error) {
	if len(w.put.Value) > storage.MaxValueBytes {
		return storage.KeyValue{}, storage.ErrTooLarge
	}
	w.done = make(chan struct{})
	select {
	case <-s.stop:
		return storage.KeyValue{}, storage.ErrClosed
	case <-ctx.Done():
		return storage.KeyValue{}, ctx.Err()
	case s.queue <- w:
	}
	select {
	case <-w.done:
	case <-s.closed:
		select {
		case <-w.done:
		default: // queued as the committer ended
			return storage.KeyValue{}, storage.ErrClosed
		}
	}
	return w.result, w.err
}

// commitAll is the committer: the only one that writes to the file, but for
// compaction, which takes its turn through bbolt's writer lock.
func (s *Store) commitAll() {
	defer close(s.closed)
	batch := make([]*write, 0, batchWrites)
	for {
		batch = batch[:0]
		select {
		case w := <-s.queue:
			batch = append(batch, w)
		case <-s.stop:
			select {
			case w := <-s.queue:
				batch = append(batch, w)
			default:
				return
			}
		}
		bytes := len(batch[0].put.Value)
	gather:
		for len(batch) < batchWrites && bytes < batchBytes {
			select {
			case w := <-s.queue:
				batch = append(batch, w)
				bytes += len(w.put.Value)
			default:
				break gather
			}
		}
		s.commit(batch)
	}
}

// commit applies a batch in one transaction and answers its writers.
func (s *Store) commit(batch []*write) {
	revision, err := s.transact(batch)
	if outOfSpace(err) {
		// The writes that make room are tried again without the others, in the room of
		// the reserve.
		var freeing []*write
		for _, w := range batch {
			if w.frees {
				freeing = append(freeing, w)
			} else {
				w.err = storage.ErrNoSpace
				close(w.done)
			}
		}
		s.log.Warn("Disk full: writes refused", "refused", len(batch)-len(freeing))
		if batch = freeing; len(batch) == 0 {
			return
		}
		s.release()
		if revision, err = s.transact(batch); outOfSpace(err) {
			for _, w := range batch {
				w.err = storage.ErrNoSpace
				close(w.done)
			}
			return
		}
	}
	if err != nil {
		// What is on disk is unknown from here on (fsync may have dropped pages). To
		// go on could acknowledge a write that is lost, so the process ends.
		s.log.Error("Store failed; the process ends", "err", err)
		s.options.Exit(1)
		for _, w := range batch {
			w.err = storage.ErrClosed
			close(w.done)
		}
		return
	}
	s.deliver(batch, revision)
	for _, w := range batch {
		close(w.done)
	}
}

// deliver hands the batch's events to the sinks and then makes its revision
// current.
func (s *Store) deliver(batch []*write, revision int64) {
	events := make([]storage.Event, 0, len(batch))
	expiring := false
	for _, w := range batch {
		if w.err == nil {
			events = append(events, w.event)
			expiring = expiring || w.put.TTL > 0
		}
	}
	if len(events) > 0 {
		s.mu.Lock()
		for _, sink := range s.sinks {
			sink.send(events)
		}
		s.history.add(events, s.options.now())
		s.current.Store(revision)
		s.mu.Unlock()
	}
	if expiring {
		select {
		case s.expiry <- struct{}{}:
		default:
		}
	}
}

func (k *sink) send(events []storage.Event) {
	var mine []storage.Event
	for _, event := range events {
		if event.Revision > k.after && strings.HasPrefix(event.Key, k.prefix) {
			mine = append(mine, event)
		}
	}
	if len(mine) > 0 {
		k.deliver(mine)
	}
}

// transact applies the batch; the error is the transaction's, each write's own
// is in it.
func (s *Store) transact(batch []*write) (revision int64, err error) {
	tx, err := s.db.Begin(true)
	if err != nil {
		return 0, fmt.Errorf("beginning transaction: %w", err)
	}
	t := transaction{log: tx.Bucket(logBucket), keys: tx.Bucket(keysBucket), ttl: tx.Bucket(ttlBucket), revision: s.current.Load(), now: s.options.now()}
	t.log.FillPercent = 1 // only appended to
	changed := false
	for _, w := range batch {
		w.err = nil
		if err := t.apply(w); err != nil {
			return 0, errors.Join(err, tx.Rollback())
		}
		changed = changed || w.err == nil
	}
	if !changed {
		return t.revision, tx.Rollback()
	}
	if err := tx.Bucket(metaBucket).Put(revisionKey, revisionBytes(t.revision)); err != nil {
		return 0, errors.Join(err, tx.Rollback())
	}
	if err := tx.Commit(); err != nil {
		return 0, fmt.Errorf("committing: %w", err)
	}
	return t.revision, nil
}

// outOfSpace says that a transaction failed while its pages were written or the
// file grown, before the meta page: nothing of it is stored and the file is as
// it was. The same error from a sync is not this.
func outOfSpace(err error) bool {
	var path *fs.PathError
	return errors.As(err, &path) && (path.Op == "write" || path.Op == "truncate") && errors.Is(err, syscall.ENOSPC)
}

// transaction applies writes one after the other; each sees those before it.
type transaction struct {
	log, keys, ttl *bolt.Bucket
	revision       int64
	now            time.Time
}

// apply carries out one write. A condition that does not hold is w.err; the
// returned error ends the transaction.
func (t *transaction) apply(w *write) error {
	key := []byte(w.put.Key)
	var have record
	var current storage.KeyValue
	if data := t.keys.Get(key); data != nil {
		var err error
		if have, err = decodeRecord(data); err != nil {
			return err
		}
		stored, err := decodeEntry(t.log.Get(revisionBytes(have.revision)))
		if err != nil {
			return err
		}
		current = storage.KeyValue{Key: w.put.Key, Value: append([]byte(nil), stored.value...), Revision: have.revision, CreateRevision: have.create}
	}
	if w.err = condition(w, current); w.err != nil {
		return nil
	}
	t.revision++
	e := entry{operation: w.operation, create: have.create, previous: have.revision, key: w.put.Key, value: w.put.Value}
	if w.operation == storage.Create {
		e.create = t.revision
	}
	if w.put.TTL > 0 {
		e.expiry = t.now.Add(w.put.TTL).UnixNano()
		if err := t.ttl.Put(expiryKey(e.expiry, w.put.Key), revisionBytes(t.revision)); err != nil {
			return fmt.Errorf("writing expiry: %w", err)
		}
	}
	if err := t.log.Put(revisionBytes(t.revision), e.encode()); err != nil {
		return fmt.Errorf("writing log: %w", err)
	}
	w.event = storage.Event{
		Operation: w.operation, Key: w.put.Key, Value: w.put.Value, Revision: t.revision, CreateRevision: e.create,
		PrevRevision: current.Revision, PrevValue: current.Value, Hint: w.put.Hint,
	}
	if w.operation == storage.Delete {
		w.event.Value = nil
		w.result = storage.KeyValue{Key: w.put.Key, Value: current.Value, Revision: t.revision, CreateRevision: have.create}
		return t.keys.Delete(key)
	}
	w.result = storage.KeyValue{Key: w.put.Key, Value: w.put.Value, Revision: t.revision, CreateRevision: e.create}
	return t.keys.Put(key, record{t.revision, e.create}.encode())
}

func condition(w *write, current storage.KeyValue) error {
	switch {
	case w.operation == storage.Create && current.Revision != 0:
		return &storage.ExistsError{Current: current}
	case w.operation != storage.Create && current.Revision == 0:
		return storage.ErrNotFound
	case w.operation != storage.Create && current.Revision != w.expect:
		return &storage.ConflictError{Expected: w.expect, Current: current}
	}
	return nil
}

func expiryKey(at int64, key string) []byte {
	return append(binary.BigEndian.AppendUint64(make([]byte, 0, 8+len(key)), uint64(at)), key...)
}
