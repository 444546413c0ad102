package bolt

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
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
	frees   bool
	expired []byte // entry of the ttl bucket to remove with the key

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
	if w.put.Key == "" || len(w.put.Key) > maxKeyBytes {
		return storage.KeyValue{}, fmt.Errorf("key of %d bytes: it must have 1 to %d", len(w.put.Key), maxKeyBytes)
	}
	if err := s.enqueue(ctx, w); err != nil {
		return storage.KeyValue{}, err
	}
	return s.outcome(w)
}

func (s *Store) enqueue(ctx context.Context, w *write) error {
	w.done = make(chan struct{})
	select {
	case <-s.stop:
		return storage.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	case s.queue <- w:
		return nil
	}
}

func (s *Store) outcome(w *write) (storage.KeyValue, error) {
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

// commitAll is the committer: it carries out every write of keys.
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
		s.commit(s.gather(batch))
	}
}

// gather adds to the batch what else waits.
func (s *Store) gather(batch []*write) []*write {
	bytes := len(batch[0].put.Value)
	for len(batch) < batchWrites && bytes < batchBytes {
		select {
		case w := <-s.queue:
			batch = append(batch, w)
			bytes += len(w.put.Value)
		default:
			return batch
		}
	}
	return batch
}

// commit applies a batch in one transaction and answers its writers. On a full
// disk, the writes that make room are tried again without the others, in the
// room of the reserve.
func (s *Store) commit(batch []*write) {
	var bytes int64
	for _, w := range batch {
		bytes += int64(len(w.put.Value))
	}
	if !s.hasRoom(bytes) {
		batch = s.refuse(batch)
	}
	revision, err := s.transact(batch)
	if errors.Is(err, storage.ErrNoSpace) {
		waiting := len(batch)
		batch = s.refuse(batch)
		if !s.full {
			s.log.Warn("Disk full: writes are refused", "refused", waiting-len(batch))
		}
		s.full = true
		s.release()
		revision, err = s.transact(batch)
	}
	if err != nil {
		for _, w := range batch {
			w.answer(err)
		}
		return
	}
	s.deliver(batch, revision)
	for _, w := range batch {
		close(w.done)
	}
}

// refuse answers the writes that need room and returns the others.
func (s *Store) refuse(batch []*write) (freeing []*write) {
	for _, w := range batch {
		if w.frees {
			freeing = append(freeing, w)
		} else {
			s.counts.refused.Add(1)
			w.answer(storage.ErrNoSpace)
		}
	}
	return freeing
}

func (w *write) answer(err error) {
	w.result, w.err = storage.KeyValue{}, err
	close(w.done)
}

// update runs one write transaction and makes it durable: the only way to the
// file's writer. storage.ErrNoSpace says that nothing of it is stored. After any
// other error of the commit, what is on disk is unknown (fsync may have dropped
// pages): going on could acknowledge a write that is lost, so the process ends.
func (s *Store) update(apply func(tx *bolt.Tx) (changed bool, err error)) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.failed.Load() {
		return storage.ErrClosed
	}
	tx, err := s.db.Begin(true)
	if err != nil {
		return fmt.Errorf("beginning transaction: %w", err)
	}
	changed, err := apply(tx)
	if err != nil || !changed {
		return errors.Join(err, tx.Rollback())
	}
	id := uint64(tx.ID())
	started := time.Now()
	err = s.options.commit(tx)
	s.metrics.duration.Observe(time.Since(started).Seconds())
	if err == nil {
		return nil
	}
	if outOfSpace(err) && metasBefore(s.options.Path, id) {
		return storage.ErrNoSpace
	}
	s.failed.Store(true)
	s.log.Error("Store failed; the process ends", "err", err)
	s.options.Exit(1)
	return storage.ErrClosed
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
		s.counts.commits.Add(1)
		s.counts.writes.Add(int64(len(events)))
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
	revision = s.current.Load()
	if len(batch) == 0 {
		return revision, nil
	}
	err = s.update(func(tx *bolt.Tx) (bool, error) {
		t := transaction{log: tx.Bucket(logBucket), keys: tx.Bucket(keysBucket), ttl: tx.Bucket(ttlBucket), revision: revision, now: s.options.now()}
		t.log.FillPercent = 1 // only appended to
		for _, w := range batch {
			if err := t.apply(w); err != nil {
				return false, err
			}
		}
		if t.revision == revision {
			return t.changed, nil
		}
		revision = t.revision
		return true, tx.Bucket(metaBucket).Put(revisionKey, revisionBytes(revision))
	})
	return revision, err
}

// transaction applies writes one after the other; each sees those before it.
type transaction struct {
	log, keys, ttl *bolt.Bucket
	revision       int64
	now            time.Time
	changed        bool // beyond what revision shows
}

// apply carries out one write. A condition that does not hold is w.err; the
// returned error ends the transaction.
func (t *transaction) apply(w *write) error {
	w.result, w.event = storage.KeyValue{}, storage.Event{}
	if w.expired != nil {
		t.changed = true
		if err := t.ttl.Delete(w.expired); err != nil {
			return fmt.Errorf("forgetting expiry: %w", err)
		}
	}
	current, err := t.current(w.put.Key)
	if err != nil {
		w.err = err
		return nil
	}
	if w.err = condition(w, current); w.err != nil {
		return nil
	}
	t.revision++
	e := entry{operation: w.operation, create: current.CreateRevision, previous: current.Revision, key: w.put.Key, value: w.put.Value}
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
	w.result = storage.KeyValue{Key: w.put.Key, Value: w.put.Value, Revision: t.revision, CreateRevision: e.create}
	if w.operation == storage.Delete {
		w.event.Value, w.result.Value = nil, current.Value
		return t.keys.Delete([]byte(w.put.Key))
	}
	return t.keys.Put([]byte(w.put.Key), record{t.revision, e.create}.encode())
}

// current is a key's state; its Revision is 0 when it does not exist.
func (t *transaction) current(key string) (storage.KeyValue, error) {
	data := t.keys.Get([]byte(key))
	if data == nil {
		return storage.KeyValue{}, nil
	}
	have, err := decodeRecord(data)
	if err != nil {
		return storage.KeyValue{}, err
	}
	stored, err := decodeEntry(t.log.Get(revisionBytes(have.revision)))
	if err != nil {
		return storage.KeyValue{}, err
	}
	return storage.KeyValue{Key: key, Value: bytes.Clone(stored.value), Revision: have.revision, CreateRevision: have.create}, nil
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
