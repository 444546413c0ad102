package etcd

import (
	"context"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
)

// page is how many keys are read at once; a larger answer would make etcd hold
// all of it in memory.
const page = 10_000

func (s *Store) keyValue(kv *mvccpb.KeyValue) storage.KeyValue {
	return storage.KeyValue{Key: s.logical(kv.Key), Value: kv.Value, Revision: kv.ModRevision, CreateRevision: kv.CreateRevision}
}

// Get reads a key at a revision.
func (s *Store) Get(ctx context.Context, key string, revision int64) (storage.KeyValue, error) {
	if err := s.open(); err != nil {
		return storage.KeyValue{}, err
	}
	defer s.metrics.measure("get")()
	answer, err := s.client.Get(ctx, s.physical(key), clientv3.WithRev(revision))
	if err != nil {
		return storage.KeyValue{}, s.atRevision(ctx, err, revision)
	}
	if len(answer.Kvs) == 0 {
		return storage.KeyValue{}, storage.ErrNotFound
	}
	return s.keyValue(answer.Kvs[0]), nil
}

// List reads keys under prefix, in pages of one revision.
func (s *Store) List(ctx context.Context, prefix string, o storage.ListOptions) (storage.ListResult, error) {
	if err := s.open(); err != nil {
		return storage.ListResult{}, err
	}
	start, end := s.physical(prefix), clientv3.GetPrefixRangeEnd(s.physical(prefix))
	if o.Start > prefix {
		start = s.physical(o.Start)
	}
	out := storage.ListResult{Revision: o.Revision}
	for {
		size := page
		if o.Limit > 0 {
			size = min(page, o.Limit-len(out.Items))
		}
		answer, err := s.part(ctx, start, end, size, out.Revision)
		if err != nil {
			return storage.ListResult{}, err
		}
		if out.Revision == 0 {
			out.Revision = answer.Header.Revision
		}
		for _, kv := range answer.Kvs {
			out.Items = append(out.Items, s.keyValue(kv))
		}
		if !answer.More || (o.Limit > 0 && len(out.Items) >= o.Limit) {
			if answer.More {
				out.More, out.Remaining = true, answer.Count-int64(len(answer.Kvs))
			}
			return out, nil
		}
		start = string(answer.Kvs[len(answer.Kvs)-1].Key) + "\x00"
	}
}

func (s *Store) part(ctx context.Context, start, end string, size int, revision int64) (*clientv3.GetResponse, error) {
	defer s.metrics.measure("list")()
	answer, err := s.client.Get(ctx, start, clientv3.WithRange(end), clientv3.WithLimit(int64(size)), clientv3.WithRev(revision))
	if err != nil {
		return nil, s.atRevision(ctx, err, revision)
	}
	return answer, nil
}

// Count is the number of keys under prefix.
func (s *Store) Count(ctx context.Context, prefix string) (int64, error) {
	if err := s.open(); err != nil {
		return 0, err
	}
	defer s.metrics.measure("count")()
	answer, err := s.client.Get(ctx, s.physical(prefix), clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return 0, s.translated(err)
	}
	return answer.Count, nil
}
