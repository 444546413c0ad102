package upstreamtest

import (
	"testing"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
	"github.com/sampan-io/sampan/services/apiserver/internal/storage/etcd"
	"github.com/sampan-io/sampan/services/apiserver/internal/storage/storagetest"
)

func mustOpen(t testing.TB, endpoint string) *etcd.Store {
	t.Helper()
	store, err := etcd.Open(t.Context(), etcd.Options{Endpoints: []string{endpoint}, Prefix: "/registry"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}

func TestEtcdPassesTheSuiteOfStores(t *testing.T) {
	storagetest.Run(t, func(t testing.TB) storage.Interface { return mustOpen(t, startEtcd(t)) })
}
