package app

import (
	"context"
	"fmt"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/rest"
	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
	"github.com/sampan-io/sampan/services/apiserver/internal/storage/bolt"
	"github.com/sampan-io/sampan/services/apiserver/internal/watch"
	"github.com/sampan-io/sampan/services/internal/component"
)

// storeFile is the store's file in --data-dir.
const storeFile = "store.db"

// formsBudget bounds the derived forms of objects that all caches hold, in
// bytes.
const formsBudget = 64 << 20

func (c *config) openStore(ctx context.Context) (storage.Interface, error) {
	if c.Etcd.used() {
		return c.openEtcd(ctx)
	}
	store, err := bolt.Open(bolt.Options{
		Path: filepath.Join(c.Store.DataDir, storeFile), KeepAge: c.Store.HistoryAge, KeepBytes: c.Store.HistoryBytes.Value(), NoSync: c.Store.NoSync, Log: c.log,
	})
	if err != nil {
		// Used by another process, damaged, or not ours to read.
		return nil, &component.UsageError{Err: fmt.Errorf("opening the store in %s: %w", c.Store.DataDir, err)}
	}
	return store, nil
}

// startCaches fills one cache per key prefix, all at the same time.
func startCaches(ctx context.Context, store storage.Interface, list []*registry.Resource) (map[string]watch.Store, []*watch.Cache, error) {
	budget := watch.NewBudget(formsBudget)
	byPrefix := map[string]*watch.Cache{}
	var caches []*watch.Cache
	group, starting := errgroup.WithContext(ctx)
	_ = starting // a cache's context is its life's, not its start's
	for _, config := range rest.CacheConfigs(list) {
		cache := watch.NewCache(config, store, watch.Options{Budget: budget})
		caches = append(caches, cache)
		byPrefix[config.Prefix] = cache
		group.Go(func() error { return cache.Start(ctx) })
	}
	if err := group.Wait(); err != nil {
		return nil, nil, err
	}
	stores := map[string]watch.Store{}
	for _, resource := range list {
		if resource.KeyPrefix != "" {
			stores[resource.KeyPrefix] = byPrefix[resource.KeyPrefix+"/"]
		}
	}
	return stores, caches, nil
}
