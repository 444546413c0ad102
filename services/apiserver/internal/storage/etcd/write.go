package etcd

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
)

// hint is what a writer passed with a value, for this process's sinks.
type hint struct {
	value []byte
	hint  any
}

// Create writes a key that must not exist.
func (s *Store) Create(ctx context.Context, put storage.Put) (storage.KeyValue, error) {
	key := s.physical(put.Key)
	answer, err := s.put(ctx, put, clientv3.Compare(clientv3.ModRevision(key), "=", 0))
	if err != nil {
		return storage.KeyValue{}, err
	}
	if !answer.Succeeded {
		return storage.KeyValue{}, &storage.ExistsError{Current: s.rangeOf(answer)}
	}
	revision := answer.Header.Revision
	return storage.KeyValue{Key: put.Key, Value: put.Value, Revision: revision, CreateRevision: revision}, nil
}

// Update writes a key that must be at revision expect.
func (s *Store) Update(ctx context.Context, put storage.Put, expect int64) (storage.KeyValue, error) {
	answer, err := s.put(ctx, put, clientv3.Compare(clientv3.ModRevision(s.physical(put.Key)), "=", expect))
	if err != nil {
		return storage.KeyValue{}, err
	}
	if !answer.Succeeded {
		return storage.KeyValue{}, s.conflict(answer, expect)
	}
	return storage.KeyValue{Key: put.Key, Value: put.Value, Revision: answer.Header.Revision, CreateRevision: s.rangeOf(answer).CreateRevision}, nil
}

// Delete removes a key that must be at revision expect.
func (s *Store) Delete(ctx context.Context, key string, expect int64) (storage.KeyValue, error) {
	if err := s.open(); err != nil {
		return storage.KeyValue{}, err
	}
	at := s.physical(key)
	defer s.metrics.measure("delete")()
	answer, err := s.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(at), "=", expect)).
		Then(clientv3.OpDelete(at, clientv3.WithPrevKV())).Else(clientv3.OpGet(at)).Commit()
	if err != nil {
		return storage.KeyValue{}, s.translated(err)
	}
	if !answer.Succeeded {
		return storage.KeyValue{}, s.conflict(answer, expect)
	}
	kv := storage.KeyValue{Key: key, Revision: answer.Header.Revision}
	if removed := answer.Responses[0].GetResponseDeleteRange().PrevKvs; len(removed) > 0 {
		kv.Value, kv.CreateRevision = removed[0].Value, removed[0].CreateRevision
	}
	return kv, s.awaitWrite(ctx, key, kv.Revision)
}

// put writes when the condition holds, and reads the key in any case: after the
// write without its value.
func (s *Store) put(ctx context.Context, put storage.Put, condition clientv3.Cmp) (*clientv3.TxnResponse, error) {
	if err := s.open(); err != nil {
		return nil, err
	}
	if len(put.Value) > storage.MaxValueBytes {
		return nil, storage.ErrTooLarge
	}
	lease, err := s.leases.get(ctx, put.TTL)
	if err != nil {
		return nil, s.translated(err)
	}
	forget := s.expect(put)
	defer forget()
	key := s.physical(put.Key)
	defer s.metrics.measure("write")()
	answer, err := s.client.Txn(ctx).If(condition).
		Then(clientv3.OpPut(key, string(put.Value), clientv3.WithLease(lease)), clientv3.OpGet(key, clientv3.WithKeysOnly())).
		Else(clientv3.OpGet(key)).Commit()
	if err != nil {
		return nil, s.translated(err)
	}
	if !answer.Succeeded {
		return answer, nil
	}
	return answer, s.awaitWrite(ctx, put.Key, answer.Header.Revision) // before the hint is forgotten
}

// awaitWrite waits until the sinks have seen a write that etcd has acknowledged.
func (s *Store) awaitWrite(ctx context.Context, key string, revision int64) error {
	if err := s.await(ctx, revision); err != nil {
		return fmt.Errorf("waiting until the write of %s is seen: %w", key, err)
	}
	return nil
}

// rangeOf is the key that a transaction has read last.
func (s *Store) rangeOf(answer *clientv3.TxnResponse) storage.KeyValue {
	last := answer.Responses[len(answer.Responses)-1]
	if kvs := last.GetResponseRange().Kvs; len(kvs) > 0 {
		return s.keyValue(kvs[0])
	}
	return storage.KeyValue{}
}

func (s *Store) conflict(answer *clientv3.TxnResponse, expect int64) error {
	have := s.rangeOf(answer)
	if have.Revision == 0 {
		return storage.ErrNotFound
	}
	return &storage.ConflictError{Expected: expect, Current: have}
}

// expect keeps a write's hint for the moment when its event comes back.
func (s *Store) expect(put storage.Put) (forget func()) {
	if put.Hint == nil {
		return func() {}
	}
	h := &hint{put.Value, put.Hint}
	s.mu.Lock()
	s.hints[put.Key] = append(s.hints[put.Key], h)
	s.mu.Unlock()
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.dropHint(put.Key, h)
	}
}

// dropHint forgets a hint. Caller must hold mu.
func (s *Store) dropHint(key string, gone *hint) {
	rest := slices.DeleteFunc(s.hints[key], func(h *hint) bool { return h == gone })
	if s.hints[key] = rest; len(rest) == 0 {
		delete(s.hints, key)
	}
}

// hintOf is what the writer of an event passed with it, if that was in this
// process: whoever wrote the same bytes meant the same. Caller must hold mu.
func (s *Store) hintOf(event storage.Event) any {
	for _, h := range s.hints[event.Key] {
		if bytes.Equal(h.value, event.Value) {
			s.dropHint(event.Key, h)
			return h.hint
		}
	}
	return nil
}
