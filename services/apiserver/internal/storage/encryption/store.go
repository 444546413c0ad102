// Package encryption keeps the values of chosen resources encrypted in a store, by
// the providers of an EncryptionConfiguration. What it writes is what upstream writes:
// a prefix that names provider and key, and a value that is bound to its key in the
// store.
package encryption

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
)

// Options of a Store.
type Options struct {
	File string // an EncryptionConfiguration
	// Reload reads the file again when it has changed.
	Reload bool
	// Root is what keys start with here, Prefix what they start with in the store that
	// values are bound to.
	Root, Prefix string
	// Resources are those whose keys start with something else than /group/resource.
	Resources map[string]schema.GroupResource
	Log       *slog.Logger

	// Every is the pause between looks at the file; default ten seconds.
	Every time.Duration
}

// reloadGrace is how long what an old configuration started goes on, for requests
// that use it.
const reloadGrace = time.Minute

// Store encrypts what it hands to another store, and decrypts what comes back. It
// implements storage.Interface.
type Store struct {
	storage.Interface
	options  Options
	measures *measures
	table    atomic.Pointer[table]
}

var _ storage.Interface = (*Store)(nil)

// New reads the configuration; it is followed until ctx ends.
func New(ctx context.Context, store storage.Interface, options Options) (*Store, error) {
	if options.Every == 0 {
		options.Every = 10 * time.Second
	}
	s := &Store{Interface: store, options: options, measures: newMeasures()}
	first, err := load(ctx, options.File, options.Reload, s.measures)
	if err != nil {
		return nil, err
	}
	s.table.Store(first)
	if options.Reload {
		go s.follow(ctx)
	}
	return s, nil
}

// follow takes changes of the file over until ctx ends. One that cannot be read
// changes nothing.
func (s *Store) follow(ctx context.Context) {
	ticker := time.NewTicker(s.options.Every)
	defer ticker.Stop()
	failed := s.table.Load().hash
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		old := s.table.Load()
		_, hash, err := hashOf(s.options.File)
		if err == nil && (hash == old.hash || hash == failed) {
			continue
		}
		if err == nil {
			var next *table
			if next, err = load(ctx, s.options.File, true, s.measures); err == nil {
				s.table.Store(next)
				time.AfterFunc(reloadGrace, old.close)
				s.options.Log.Info("The encryption configuration was read again", "file", s.options.File)
			}
		}
		if s.measures.tellReload(err); err != nil {
			failed = hash
			s.options.Log.Error("The encryption configuration cannot be read; the one before stays", "err", err)
		}
	}
}

// Healthy is the health of the key services.
func (s *Store) Healthy(context.Context) error {
	var errs []error
	for _, k := range s.table.Load().kms {
		errs = append(errs, k.healthy())
	}
	return errors.Join(errs...)
}

// Metrics are the store's and the transformations'.
func (s *Store) Metrics() prometheus.Collector {
	inner, ok := s.Interface.(interface{ Metrics() prometheus.Collector })
	if !ok {
		return s.measures
	}
	return both{inner.Metrics(), s.measures}
}

type both [2]prometheus.Collector

// Describe implements prometheus.Collector.
func (b both) Describe(out chan<- *prometheus.Desc) {
	for _, c := range b {
		c.Describe(out)
	}
}

// Collect implements prometheus.Collector.
func (b both) Collect(out chan<- prometheus.Metric) {
	for _, c := range b {
		c.Collect(out)
	}
}

// Outdated says that a key's value would be encrypted otherwise now: by another key,
// or at all.
func (s *Store) Outdated(ctx context.Context, key string) (bool, error) {
	c := s.chain(key)
	if c == nil {
		return false, nil
	}
	kv, err := s.Interface.Get(ctx, key, 0)
	if err != nil {
		return false, err
	}
	_, stale, err := c.decrypt(ctx, kv.Value, s.bound(key))
	return stale, err
}

// chain is that of the key's resource; nil for what is stored as it is.
func (s *Store) chain(key string) *chain {
	resource, ok := s.resource(key)
	if !ok {
		return nil
	}
	return s.table.Load().of(resource)
}

// resource is what is stored at a key, or below a prefix that ends in a slash:
// ROOT/PLURAL/…, ROOT/GROUP/PLURAL/…, or one of those that are listed.
func (s *Store) resource(key string) (schema.GroupResource, bool) {
	path, ok := strings.CutPrefix(key, s.options.Root+"/")
	if !ok {
		return schema.GroupResource{}, false
	}
	first, rest, deeper := strings.Cut(path, "/")
	if second, _, ok := strings.Cut(rest, "/"); ok {
		if r, listed := s.options.Resources[s.options.Root+"/"+first+"/"+second]; listed {
			return r, true
		}
		if strings.Contains(first, ".") {
			return schema.GroupResource{Group: first, Resource: second}, true
		}
	}
	r, listed := s.options.Resources[s.options.Root+"/"+first]
	return r, listed && deeper
}

// bound is what a key's value is bound to.
func (s *Store) bound(key string) string {
	return s.options.Prefix + strings.TrimPrefix(key, s.options.Root)
}

func (s *Store) open(ctx context.Context, kv storage.KeyValue) (storage.KeyValue, error) {
	c := s.chain(kv.Key)
	if c == nil || kv.Value == nil {
		return kv, nil
	}
	var err error
	kv.Value, _, err = c.decrypt(ctx, kv.Value, s.bound(kv.Key))
	return kv, err
}

// opened decrypts the state that an error carries.
func (s *Store) opened(ctx context.Context, err error) error {
	var exists *storage.ExistsError
	var conflict *storage.ConflictError
	switch {
	case errors.As(err, &exists):
		current, failed := s.open(ctx, exists.Current)
		if failed != nil {
			return failed
		}
		return &storage.ExistsError{Current: current}
	case errors.As(err, &conflict):
		current, failed := s.open(ctx, conflict.Current)
		if failed != nil {
			return failed
		}
		return &storage.ConflictError{Expected: conflict.Expected, Current: current}
	}
	return err
}

// Get implements storage.Interface.
func (s *Store) Get(ctx context.Context, key string, revision int64) (storage.KeyValue, error) {
	kv, err := s.Interface.Get(ctx, key, revision)
	if err != nil {
		return kv, err
	}
	return s.open(ctx, kv)
}

// List implements storage.Interface.
func (s *Store) List(ctx context.Context, prefix string, options storage.ListOptions) (storage.ListResult, error) {
	list, err := s.Interface.List(ctx, prefix, options)
	if err != nil {
		return list, err
	}
	for i := range list.Items {
		if list.Items[i], err = s.open(ctx, list.Items[i]); err != nil {
			return storage.ListResult{}, err
		}
	}
	return list, nil
}

// put encrypts what a write brings.
func (s *Store) put(ctx context.Context, put storage.Put) (storage.Put, error) {
	c := s.chain(put.Key)
	if c == nil {
		return put, nil
	}
	if len(put.Value) > storage.MaxValueBytes {
		return put, storage.ErrTooLarge
	}
	var err error
	put.Value, err = c.encrypt(ctx, put.Value, s.bound(put.Key))
	return put, err
}

// written is the answer to a write, with the value that was given.
func (s *Store) written(ctx context.Context, plain []byte, kv storage.KeyValue, err error) (storage.KeyValue, error) {
	if err != nil {
		return kv, s.opened(ctx, err)
	}
	kv.Value = plain
	return kv, nil
}

// Create implements storage.Interface.
func (s *Store) Create(ctx context.Context, put storage.Put) (storage.KeyValue, error) {
	encrypted, err := s.put(ctx, put)
	if err != nil {
		return storage.KeyValue{}, err
	}
	kv, err := s.Interface.Create(ctx, encrypted)
	return s.written(ctx, put.Value, kv, err)
}

// Update implements storage.Interface.
func (s *Store) Update(ctx context.Context, put storage.Put, expect int64) (storage.KeyValue, error) {
	encrypted, err := s.put(ctx, put)
	if err != nil {
		return storage.KeyValue{}, err
	}
	kv, err := s.Interface.Update(ctx, encrypted, expect)
	return s.written(ctx, put.Value, kv, err)
}

// Delete implements storage.Interface.
func (s *Store) Delete(ctx context.Context, key string, expect int64) (storage.KeyValue, error) {
	kv, err := s.Interface.Delete(ctx, key, expect)
	if err != nil {
		return kv, s.opened(ctx, err)
	}
	return s.open(ctx, kv)
}

// Attach implements storage.Interface. A value that cannot be decrypted must not be
// served as if it were not there, so the process ends.
func (s *Store) Attach(ctx context.Context, prefix string, after int64, sink storage.Sink) error {
	return s.Interface.Attach(ctx, prefix, after, func(batch []storage.Event) {
		opened, err := s.events(ctx, batch)
		if err != nil && ctx.Err() == nil {
			panic(fmt.Sprintf("what was stored cannot be read: %v", err))
		}
		if err == nil {
			sink(opened)
		}
	})
}

// Log implements storage.Interface.
func (s *Store) Log(ctx context.Context, prefix string, after int64, limit int) ([]storage.Event, int64, error) {
	events, to, err := s.Interface.Log(ctx, prefix, after, limit)
	if err != nil {
		return nil, to, err
	}
	opened, err := s.events(ctx, events)
	return opened, to, err
}

// events are decrypted copies; the store's own are shared between sinks.
func (s *Store) events(ctx context.Context, events []storage.Event) ([]storage.Event, error) {
	copied := false
	for i, event := range events {
		c := s.chain(event.Key)
		if c == nil {
			continue
		}
		if !copied {
			events, copied = append([]storage.Event(nil), events...), true
		}
		for _, value := range []*[]byte{&events[i].Value, &events[i].PrevValue} {
			if *value == nil {
				continue
			}
			var err error
			if *value, _, err = c.decrypt(ctx, *value, s.bound(event.Key)); err != nil {
				return nil, err
			}
		}
	}
	return events, nil
}
