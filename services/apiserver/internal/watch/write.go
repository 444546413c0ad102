package watch

import (
	"context"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
)

var _ Store = (*Cache)(nil)

// pendingWrite travels with a write through the store to apply, which leaves
// the cached object in it for the writer.
type pendingWrite struct {
	object runtime.Object
	form   string // of Put
	result *Object
}

// Create stores a new object: *storage.ExistsError when there is one.
func (c *Cache) Create(ctx context.Context, put Put) (*Object, error) {
	write, pending := c.put(put)
	kv, err := c.store.Create(ctx, write)
	if err != nil {
		return nil, err
	}
	return c.written(pending, write, kv)
}

// Update replaces the object that must be at revision expect.
func (c *Cache) Update(ctx context.Context, put Put, expect int64) (*Object, error) {
	write, pending := c.put(put)
	kv, err := c.store.Update(ctx, write, expect)
	if err != nil {
		return nil, err
	}
	return c.written(pending, write, kv)
}

// Delete removes the object that must be at revision expect and returns its last
// state at the deletion's revision.
func (c *Cache) Delete(ctx context.Context, namespace, name string, expect int64) (*Object, error) {
	key := c.storeKey(namespace, name)
	kv, err := c.store.Delete(ctx, key, expect)
	if err != nil {
		return nil, err
	}
	return loose(c.newObject(key, kv.Value, kv.Revision, kv.CreateRevision, nil))
}

// Outdated implements Store. What cannot be told is not outdated.
func (c *Cache) Outdated(ctx context.Context, namespace, name string) bool {
	store, ok := c.store.(interface {
		Outdated(ctx context.Context, key string) (bool, error)
	})
	if !ok {
		return false
	}
	outdated, err := store.Outdated(ctx, c.storeKey(namespace, name))
	return err == nil && outdated
}

func loose(o *Object, err error) (*Object, error) {
	if err == nil {
		o.loose = true
	}
	return o, err
}

func (c *Cache) put(put Put) (storage.Put, *pendingWrite) {
	pending := &pendingWrite{object: put.Object, form: put.Form}
	return storage.Put{Key: c.storeKey(put.Namespace, put.Name), Value: put.Stored, TTL: put.TTL, Hint: pending}, pending
}

func (c *Cache) written(pending *pendingWrite, write storage.Put, kv storage.KeyValue) (*Object, error) {
	if pending.result != nil && pending.result.Revision == kv.Revision {
		return pending.result, nil
	}
	// A store whose events come from elsewhere has not passed the hint on.
	object, err := c.newObject(write.Key, write.Value, kv.Revision, kv.CreateRevision, pending.object)
	if err == nil {
		object.wireForm = pending.form
	}
	return loose(object, err)
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
