// Package memory is a backend of the store for tests: it keeps everything in
// memory and the whole log until it is compacted.
package memory

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
)

// Store implements storage.Interface.
type Store struct {
	mu        sync.Mutex
	closed    bool
	live      map[string]storage.KeyValue
	log       []storage.Event
	revision  int64
	compacted int64
	sinks     map[int]sink
	nextSink  int
	expiries  map[string]*time.Timer
}

type sink struct {
	prefix  string
	deliver storage.Sink
}

var _ storage.Interface = (*Store)(nil)

// New is an empty store.
func New() *Store {
	return &Store{revision: storage.EmptyRevision, live: map[string]storage.KeyValue{}, sinks: map[int]sink{}, expiries: map[string]*time.Timer{}}
}

// Create writes a key that must not exist.
func (s *Store) Create(_ context.Context, put storage.Put) (storage.KeyValue, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if have, ok := s.live[put.Key]; ok {
		return storage.KeyValue{}, &storage.ExistsError{Current: have}
	}
	return s.write(storage.Create, put, storage.KeyValue{})
}

// Update writes a key that must be at revision expect.
func (s *Store) Update(_ context.Context, put storage.Put, expect int64) (storage.KeyValue, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	have, err := s.at(put.Key, expect)
	if err != nil {
		return storage.KeyValue{}, err
	}
	return s.write(storage.Update, put, have)
}

// Delete removes a key that must be at revision expect.
func (s *Store) Delete(_ context.Context, key string, expect int64) (storage.KeyValue, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	have, err := s.at(key, expect)
	if err != nil {
		return storage.KeyValue{}, err
	}
	return s.write(storage.Delete, storage.Put{Key: key}, have)
}

func (s *Store) at(key string, expect int64) (storage.KeyValue, error) {
	have, ok := s.live[key]
	switch {
	case s.closed:
		return have, storage.ErrClosed
	case !ok:
		return have, storage.ErrNotFound
	case have.Revision != expect:
		return have, &storage.ConflictError{Expected: expect, Current: have}
	}
	return have, nil
}

// write appends to the log. Caller must hold mu.
func (s *Store) write(operation storage.Operation, put storage.Put, have storage.KeyValue) (storage.KeyValue, error) {
	if s.closed {
		return storage.KeyValue{}, storage.ErrClosed
	}
	if len(put.Value) > storage.MaxValueBytes {
		return storage.KeyValue{}, storage.ErrTooLarge
	}
	s.revision++
	kv := storage.KeyValue{Key: put.Key, Value: put.Value, Revision: s.revision, CreateRevision: have.CreateRevision}
	event := storage.Event{Operation: operation, Key: put.Key, Value: put.Value, Revision: s.revision, PrevRevision: have.Revision, PrevValue: have.Value, Hint: put.Hint}
	switch operation {
	case storage.Create:
		kv.CreateRevision = s.revision
		s.live[put.Key] = kv
	case storage.Update:
		s.live[put.Key] = kv
	case storage.Delete:
		kv.Value = have.Value
		delete(s.live, put.Key)
	}
	event.CreateRevision = kv.CreateRevision
	s.expire(put, kv.Revision)
	for _, sink := range s.sinks {
		if strings.HasPrefix(put.Key, sink.prefix) {
			sink.deliver([]storage.Event{event})
		}
	}
	event.Hint = nil
	s.log = append(s.log, event)
	return kv, nil
}

// expire deletes a key at the end of its time if it has not changed by then.
// Caller must hold mu.
func (s *Store) expire(put storage.Put, revision int64) {
	if timer := s.expiries[put.Key]; timer != nil {
		timer.Stop()
		delete(s.expiries, put.Key)
	}
	if put.TTL > 0 {
		s.expiries[put.Key] = time.AfterFunc(put.TTL, func() { _, _ = s.Delete(context.Background(), put.Key, revision) })
	}
}

// Get reads a key at a revision.
func (s *Store) Get(ctx context.Context, key string, revision int64) (storage.KeyValue, error) {
	list, err := s.List(ctx, key, storage.ListOptions{Revision: revision, Limit: 1})
	if err != nil {
		return storage.KeyValue{}, err
	}
	if len(list.Items) == 0 || list.Items[0].Key != key {
		return storage.KeyValue{}, storage.ErrNotFound
	}
	return list.Items[0], nil
}

// List reads keys at a revision: the newest state with what came later undone.
func (s *Store) List(_ context.Context, prefix string, o storage.ListOptions) (storage.ListResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.Revision == 0 {
		o.Revision = s.revision
	}
	switch {
	case s.closed:
		return storage.ListResult{}, storage.ErrClosed
	case o.Revision > s.revision:
		return storage.ListResult{}, &storage.FutureRevisionError{Requested: o.Revision, Current: s.revision}
	case o.Revision < s.compacted:
		return storage.ListResult{}, &storage.CompactedError{Requested: o.Revision, Compacted: s.compacted}
	}
	out := storage.ListResult{Revision: o.Revision}
	for key, kv := range s.past(o.Revision) {
		if strings.HasPrefix(key, prefix) && key >= o.Start {
			out.Items = append(out.Items, kv)
		}
	}
	slices.SortFunc(out.Items, func(a, b storage.KeyValue) int { return strings.Compare(a.Key, b.Key) })
	if o.Limit > 0 && len(out.Items) > o.Limit {
		out.More, out.Remaining = true, int64(len(out.Items)-o.Limit)
		out.Items = out.Items[:o.Limit]
	}
	return out, nil
}

func (s *Store) past(revision int64) map[string]storage.KeyValue {
	if revision == s.revision {
		return s.live
	}
	state := map[string]storage.KeyValue{}
	for key, kv := range s.live {
		state[key] = kv
	}
	created := map[string]int64{}
	for i := len(s.log) - 1; i >= 0 && s.log[i].Revision > revision; i-- {
		e := s.log[i]
		if e.Operation == storage.Create {
			delete(state, e.Key)
			continue
		}
		created[e.Key] = e.CreateRevision
		state[e.Key] = storage.KeyValue{Key: e.Key, Value: e.PrevValue, Revision: e.PrevRevision, CreateRevision: created[e.Key]}
	}
	return state
}

// Count is the number of keys under prefix.
func (s *Store) Count(ctx context.Context, prefix string) (int64, error) {
	list, err := s.List(ctx, prefix, storage.ListOptions{})
	return int64(len(list.Items)), err
}

// Log reads the log after a revision.
func (s *Store) Log(_ context.Context, prefix string, after int64, limit int) ([]storage.Event, int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.read(prefix, after, limit)
}

// read is Log. Caller must hold mu.
func (s *Store) read(prefix string, after int64, limit int) (events []storage.Event, complete int64, err error) {
	if s.closed {
		return nil, 0, storage.ErrClosed
	}
	if after < s.compacted {
		return nil, 0, &storage.CompactedError{Requested: after, Compacted: s.compacted}
	}
	if after > s.revision {
		return nil, 0, &storage.FutureRevisionError{Requested: after, Current: s.revision}
	}
	for _, e := range s.log {
		if e.Revision <= after || !strings.HasPrefix(e.Key, prefix) {
			continue
		}
		if limit > 0 && len(events) == limit {
			return events, events[len(events)-1].Revision, nil
		}
		events = append(events, e)
	}
	return events, s.revision, nil
}

// Attach delivers the log after a revision and then what is written.
func (s *Store) Attach(ctx context.Context, prefix string, after int64, deliver storage.Sink) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	events, _, err := s.read(prefix, after, 0)
	if err != nil {
		return err
	}
	if len(events) > 0 {
		deliver(events)
	}
	s.nextSink++
	id := s.nextSink
	s.sinks[id] = sink{prefix, deliver}
	context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.sinks, id)
	})
	return nil
}

// Current is the newest revision.
func (s *Store) Current(context.Context) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, storage.ErrClosed
	}
	return s.revision, nil
}

// Applied is the newest revision: sinks see a write before anybody else does.
func (s *Store) Applied() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.revision
}

// CompactedRevision is the revision from which on reads are exact.
func (s *Store) CompactedRevision() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.compacted
}

// Compact drops the log up to revision.
func (s *Store) Compact(_ context.Context, revision int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if revision > s.revision {
		return &storage.FutureRevisionError{Requested: revision, Current: s.revision}
	}
	s.compacted = max(s.compacted, revision)
	s.log = slices.DeleteFunc(s.log, func(e storage.Event) bool { return e.Revision <= s.compacted })
	return nil
}

// Close refuses everything from now on.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, timer := range s.expiries {
		timer.Stop()
	}
	return nil
}
