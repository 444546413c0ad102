package watch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/btree"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
)

// Options of a cache; the zero value of each has a default.
type Options struct {
	// Budget bounds derived forms; several caches share one. Default: 32 MiB of its
	// own.
	Budget *Budget
	// RingBytes bounds the recent events that are kept in memory; older ones are read
	// from the log. Default 4 MiB.
	RingBytes int64
	// BookmarkEvery is the pause between bookmarks of a quiet watch. Default one
	// minute.
	BookmarkEvery time.Duration
	// FreshTimeout is how long a read waits for a revision that does not exist yet.
	// Default 3 seconds.
	FreshTimeout time.Duration
}

const (
	degree        = 32
	snapshotEvery = 64 // events between the views that exact reads start from
)

// Cache is one resource's cache. It implements Store.
//
// Lock order: mu, then nothing. The store's committer calls apply; readers load
// the view without a lock.
type Cache struct {
	config  Config
	options Options
	store   storage.Interface

	view    atomic.Pointer[view]
	cloning sync.Mutex // one clone of a view's tree at a time

	mu      sync.RWMutex
	tree    *btree.BTreeG[*Object]
	index   map[string]map[string]map[string]*Object // field → value → key → object
	ring    ring
	views   []*view // older views, at most snapshotEvery events apart, within the ring
	buckets map[bucket]*signal
	stats   Stats

	watchers, expired, fromLog, rebuilt atomic.Int64
}

// view is a consistent state of all objects; its tree is never changed.
type view struct {
	tree *btree.BTreeG[*Object]
	// revision is that of the newest event in it.
	revision int64
	// next is the ring position after that event.
	next int64
}

// Stats are counts for metrics.
type Stats struct {
	Objects  int
	Bytes    int64 // of wire forms
	Events   int64 // applied since the start
	RingSize int   // events in the ring
	Watchers int   // open now
	Expired  int64 // watchers that fell behind the log
	FromLog  int64 // events that watchers read from the store's log
	Rebuilt  int64 // old states that were read from the store's log
}

// NewCache makes an empty cache; Start fills it.
func NewCache(config Config, store storage.Interface, options Options) *Cache {
	if options.Budget == nil {
		options.Budget = NewBudget(32 << 20)
	}
	if options.RingBytes == 0 {
		options.RingBytes = 4 << 20
	}
	if options.BookmarkEvery == 0 {
		options.BookmarkEvery = time.Minute
	}
	if options.FreshTimeout == 0 {
		options.FreshTimeout = 3 * time.Second
	}
	c := &Cache{config: config, options: options, store: store, buckets: map[bucket]*signal{}, index: map[string]map[string]map[string]*Object{}}
	for _, name := range config.Indexed {
		c.index[name] = map[string]map[string]*Object{}
	}
	c.tree = newTree()
	c.ring.limit = options.RingBytes
	return c
}

// Start fills the cache from the store and follows the store's log until ctx
// ends. When it returns, the cache answers.
func (c *Cache) Start(ctx context.Context) error {
	for {
		list, err := c.store.List(ctx, c.config.Prefix, storage.ListOptions{})
		if err != nil {
			return fmt.Errorf("filling cache of %s: %w", c.config.Resource, err)
		}
		c.mu.Lock()
		for _, item := range list.Items {
			object, err := c.newObject(item.Key, item.Value, item.Revision, item.CreateRevision, nil)
			if err != nil {
				c.mu.Unlock()
				return fmt.Errorf("filling cache of %s: %w", c.config.Resource, err)
			}
			c.insert(object)
		}
		c.ring.reset(list.Revision)
		c.publish(list.Revision)
		c.mu.Unlock()
		err = c.store.Attach(ctx, c.config.Prefix, list.Revision, c.apply)
		var compacted *storage.CompactedError
		if errors.As(err, &compacted) { // compacted between the two calls
			c.mu.Lock()
			c.tree.Clear(false)
			c.mu.Unlock()
			continue
		}
		return err
	}
}

// newObject makes an object from a stored value. hint is the decoded object
// where the writer passed it.
func (c *Cache) newObject(key string, value []byte, revision, create int64, hint any) (*Object, error) {
	obj, ok := hint.(runtime.Object)
	if !ok {
		var err error
		if obj, err = c.config.Decode(value); err != nil {
			return nil, fmt.Errorf("reading %s: %w", key, err)
		}
	}
	attributes := c.config.AttributesOf(obj)
	// The key is the truth about name and namespace: it was checked on the way in.
	attributes.Namespace, attributes.Name = c.split(key)
	attributes.Fields = compact(attributes.Fields)
	wire, err := splice(value, revision)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", key, err)
	}
	return &Object{Attributes: attributes, Revision: revision, CreateRevision: create, wire: wire, cache: c}, nil
}

// compact drops the fields that every object has, which are its name and
// namespace, and those that are empty, which selectors do not tell from absent
// ones: a map for each object would cost more than many an object.
func compact(set fields.Set) fields.Set {
	var out fields.Set
	for name, value := range set {
		if value == "" || name == "metadata.name" || name == "metadata.namespace" {
			continue
		}
		if out == nil {
			out = make(fields.Set, len(set))
		}
		out[name] = value
	}
	return out
}

// withRevision is the object as a deletion or a selector's transition shows it:
// unchanged, at a later revision.
func (o *Object) withRevision(revision int64) (*Object, error) {
	wire, err := splice(o.wire, revision)
	if err != nil {
		return nil, err
	}
	return &Object{Attributes: o.Attributes, Revision: revision, CreateRevision: o.CreateRevision, wire: wire, wireForm: o.wireForm, cache: o.cache}, nil
}

// apply is the cache's sink: it takes committed events in. A value that cannot
// be read must not be served as if it were not there, so the process ends.
func (c *Cache) apply(batch []storage.Event) {
	var wake []*signal
	var dropped []*ringEvent
	c.mu.Lock()
	for _, event := range batch {
		e := c.take(event)
		dropped = append(dropped, c.ring.push(e)...)
		c.stats.Events++
		wake = c.fire(e, c.ring.end()-1, wake)
	}
	c.publish(batch[len(batch)-1].Revision)
	c.mu.Unlock()
	for _, s := range wake {
		close(s.channel)
	}
	for _, e := range dropped {
		e.retire()
	}
}

// take changes the tree by one event. Caller must hold mu.
func (c *Cache) take(event storage.Event) *ringEvent {
	e := &ringEvent{revision: event.Revision}
	if event.Operation != storage.Delete {
		hint := event.Hint
		pending, ok := hint.(*pendingWrite)
		if ok {
			hint = pending.object
		}
		object, err := c.newObject(event.Key, event.Value, event.Revision, event.CreateRevision, hint)
		if err != nil {
			panic(fmt.Sprintf("cache of %s cannot take what was stored: %v", c.config.Resource, err))
		}
		e.after = object
		if ok {
			pending.result, object.wireForm = object, pending.form
		}
		e.before = c.insert(object)
		return e
	}
	namespace, name := c.split(event.Key)
	e.before = c.remove(place(namespace, name))
	return e
}

// insert puts an object into the tree and returns the one that it replaces.
// Caller must hold mu.
func (c *Cache) insert(object *Object) (replaced *Object) {
	replaced, _ = c.tree.ReplaceOrInsert(object)
	c.stats.Bytes += int64(len(object.wire))
	if replaced != nil {
		c.stats.Bytes -= int64(len(replaced.wire))
		c.unindex(replaced)
	}
	for name, values := range c.index {
		value := object.Fields[name]
		if values[value] == nil {
			values[value] = map[string]*Object{}
		}
		values[value][object.key()] = object
	}
	return replaced
}

func (c *Cache) remove(object *Object) (removed *Object) {
	removed, _ = c.tree.Delete(object)
	if removed != nil {
		c.stats.Bytes -= int64(len(removed.wire))
		c.unindex(removed)
	}
	return removed
}

func (c *Cache) unindex(object *Object) {
	for name, values := range c.index {
		value := object.Fields[name]
		delete(values[value], object.key())
		if len(values[value]) == 0 {
			delete(values, value)
		}
	}
}

// publish makes the tree's state the view of readers. Caller must hold mu.
func (c *Cache) publish(revision int64) {
	v := &view{tree: c.tree.Clone(), revision: revision, next: c.ring.end()}
	c.view.Store(v)
	if len(c.views) == 0 || v.next-c.views[len(c.views)-1].next >= snapshotEvery {
		c.views = append(c.views, v)
	}
	for len(c.views) > 1 && c.views[1].next <= c.ring.start() {
		c.views = c.views[1:]
	}
}

// Revision is the newest revision that the cache has applied.
func (c *Cache) Revision() int64 {
	applied := c.store.Applied()
	v := c.view.Load()
	if v == nil {
		return 0
	}
	return max(applied, v.revision)
}

// Changed implements Store.
func (c *Cache) Changed() int64 {
	if v := c.view.Load(); v != nil {
		return v.revision
	}
	return 0
}

// Stats are the cache's counts.
func (c *Cache) Stats() Stats {
	c.mu.RLock()
	defer c.mu.RUnlock()
	s := c.stats
	s.Objects = c.tree.Len()
	s.RingSize = int(c.ring.end() - c.ring.start())
	s.Watchers, s.Expired, s.FromLog, s.Rebuilt = int(c.watchers.Load()), c.expired.Load(), c.fromLog.Load(), c.rebuilt.Load()
	return s
}

// Resource is the name of the cached resource.
func (c *Cache) Resource() string { return c.config.Resource.String() }
