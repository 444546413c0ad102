package storagetest

import (
	"bytes"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
)

func testModel(t *testing.T, s storage.Interface) {
	rapid.Check(t, func(r *rapid.T) {
		prefix := fmt.Sprintf("/model-%d/", rapid.Uint64().Draw(r, "prefix"))
		if n, err := s.Count(t.Context(), prefix); err != nil || n > 0 {
			r.Skip("prefix was used before")
		}
		live := map[string]storage.KeyValue{}
		past := map[int64]map[string]string{}
		for range rapid.IntRange(1, 30).Draw(r, "operations") {
			key := prefix + rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(r, "key")
			revision := modelStep(t, r, s, key, live)
			state := map[string]string{}
			for k, kv := range live {
				state[k] = string(kv.Value)
			}
			past[revision] = state
		}
		for revision, want := range past {
			list, err := s.List(t.Context(), prefix, storage.ListOptions{Revision: revision})
			if err != nil {
				r.Fatalf("list at %d: %v", revision, err)
			}
			got := map[string]string{}
			for _, item := range list.Items {
				got[item.Key] = string(item.Value)
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				r.Fatalf("at %d: %v, want %v", revision, got, want)
			}
		}
	})
}

func modelStep(t *testing.T, r *rapid.T, s storage.Interface, key string, live map[string]storage.KeyValue) int64 {
	have, exists := live[key]
	value := rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(r, "value")
	switch {
	case !exists:
		kv, err := s.Create(t.Context(), storage.Put{Key: key, Value: value})
		if err != nil {
			r.Fatal(err)
		}
		live[key] = kv
		return kv.Revision
	case rapid.Bool().Draw(r, "delete"):
		kv, err := s.Delete(t.Context(), key, have.Revision)
		if err != nil || !bytes.Equal(kv.Value, have.Value) {
			r.Fatalf("deletion: %+v, %v", kv, err)
		}
		delete(live, key)
		return kv.Revision
	default:
		kv, err := s.Update(t.Context(), storage.Put{Key: key, Value: value}, have.Revision)
		if err != nil {
			r.Fatal(err)
		}
		live[key] = kv
		return kv.Revision
	}
}
