package watch

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/btree"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
)

// awaitEvery is the pause between looks for a revision of the future.
const awaitEvery = 5 * time.Millisecond

// Get reads one object: storage.ErrNotFound when it does not exist.
func (c *Cache) Get(ctx context.Context, namespace, name string, versions Versions) (*Object, error) {
	v, _, err := c.fresh(ctx, versions)
	if err != nil {
		return nil, err
	}
	object, ok := v.tree.Get(place(namespace, name))
	if !ok {
		return nil, storage.ErrNotFound
	}
	return object, nil
}

// fresh is a view that satisfies versions, and the revision that it is complete
// up to.
func (c *Cache) fresh(ctx context.Context, versions Versions) (*view, int64, error) {
	if versions.Match == NotOlderThan || versions.Match == Exact {
		if err := c.await(ctx, versions.Revision); err != nil {
			return nil, 0, err
		}
	}
	// Read before the view: what is current by now, the view has.
	current, err := c.current(ctx, versions.Match)
	if err != nil {
		return nil, 0, err
	}
	v := c.view.Load()
	if v == nil {
		return nil, 0, apierrors.NewServiceUnavailable("the cache of " + c.config.Resource.String() + " is being filled")
	}
	if versions.Match == Exact {
		v, err = c.exact(ctx, versions.Revision)
		return v, versions.Revision, err
	}
	return v, max(current, v.revision), nil
}

// current is the revision that the view has by now; for the most recent state
// one that is not older than any acknowledged write, whoever made it.
func (c *Cache) current(ctx context.Context, match Match) (int64, error) {
	if match == MostRecent {
		return c.store.Current(ctx)
	}
	return c.store.Applied(), nil
}

// await waits until a revision exists, for a bounded time.
func (c *Cache) await(ctx context.Context, revision int64) error {
	if c.Revision() >= revision {
		return nil
	}
	if _, err := c.store.Current(ctx); err != nil { // another server may have made it
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.options.FreshTimeout)
	defer cancel()
	// A client that asks for the future came from another server or a lost
	// history; it is rare, and nothing waits for it to be quick.
	ticker := time.NewTicker(awaitEvery)
	defer ticker.Stop()
	for c.Revision() < revision {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return tooLarge(revision, c.Revision())
		}
	}
	return nil
}

// tooLarge is upstream's answer to a revision that does not exist yet.
func tooLarge(requested, current int64) error {
	err := apierrors.NewTimeoutError("Too large resource version: "+itoa(requested)+", current: "+itoa(current), 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}}
	return err
}

// tooOld is upstream's answer to a list at a revision that has been compacted.
func tooOld() error {
	return apierrors.NewResourceExpired("The resourceVersion for the provided list is too old.")
}

// expired is upstream's answer to a watch from a revision that has been
// compacted.
func expired(revision, oldest int64) error {
	return apierrors.NewResourceExpired("too old resource version: " + itoa(revision) + " (" + itoa(oldest) + ")")
}

// exact is the state at a revision: from the views of the ring's window, or from
// the store.
func (c *Cache) exact(ctx context.Context, revision int64) (*view, error) {
	if revision < c.store.CompactedRevision() { // also what is still at hand: all servers over a store answer alike
		return nil, tooOld()
	}
	if v := c.view.Load(); v.revision <= revision {
		return v, nil
	}
	if revision <= 0 { // before the first write; to the store it would mean the newest
		return &view{tree: newTree()}, nil
	}
	c.mu.RLock()
	if revision >= c.ring.floor {
		for i := len(c.views) - 1; i >= 0; i-- {
			if v := c.views[i]; v.revision <= revision && v.next >= c.ring.start() {
				tree := v.tree
				if events := c.ring.from(v.next); len(events) > 0 && events[0].revision <= revision {
					tree = c.clone(tree)
					replay(tree, events, revision)
				}
				c.mu.RUnlock()
				return &view{tree: tree, revision: revision}, nil
			}
		}
	}
	c.mu.RUnlock()
	return c.rebuild(ctx, revision)
}

// clone is a tree of its own that starts as a view's. Making it writes to the
// view's handle, but to nothing that readers look at.
func (c *Cache) clone(tree *btree.BTreeG[*Object]) *btree.BTreeG[*Object] {
	c.cloning.Lock()
	defer c.cloning.Unlock()
	return tree.Clone()
}

func replay(tree *btree.BTreeG[*Object], events []*ringEvent, upTo int64) {
	for _, e := range events {
		switch {
		case e.revision > upTo:
			return
		case e.after != nil:
			tree.ReplaceOrInsert(e.after)
		case e.before != nil:
			tree.Delete(e.before)
		}
	}
}

// rebuild reads an old state from the store's log.
func (c *Cache) rebuild(ctx context.Context, revision int64) (*view, error) {
	c.rebuilt.Add(1)
	list, err := c.store.List(ctx, c.config.Prefix, storage.ListOptions{Revision: revision})
	var compacted *storage.CompactedError
	if errors.As(err, &compacted) {
		return nil, tooOld()
	}
	if err != nil {
		return nil, err
	}
	tree := newTree()
	for _, item := range list.Items {
		object, err := loose(c.newObject(item.Key, item.Value, item.Revision, item.CreateRevision, nil))
		if err != nil {
			return nil, err
		}
		tree.ReplaceOrInsert(object)
	}
	return &view{tree: tree, revision: revision}, nil
}

// List selects objects of a consistent state.
func (c *Cache) List(ctx context.Context, o ListOptions) (*List, error) {
	v, revision, err := c.fresh(ctx, o.Versions)
	if err != nil {
		return nil, err
	}
	out := &List{Revision: revision}
	selecting := o.Name != "" || !everything(o.Labels, o.Fields)
	if o.Versions.Match != Exact && o.StartAfter == "" && o.Limit == 0 {
		if indexed, ok := c.fromIndex(o, out); ok {
			return indexed, nil
		}
	}
	total := int64(0)
	c.ascend(v, o, func(object *Object) bool {
		if o.Limit > 0 && len(out.Objects) == o.Limit {
			total++
			return !selecting // upstream tells of a further part whether or not anything in it is selected
		}
		if o.selects(object) {
			out.Objects = append(out.Objects, object)
		}
		return true
	})
	if total > 0 {
		out.Next = out.Objects[o.Limit-1].key()
	}
	out.Remaining = total
	if selecting {
		out.Remaining = -1
	}
	return out, nil
}

// selects says whether an object in its namespace is one of the list.
func (o *ListOptions) selects(object *Object) bool {
	return (o.Name == "" || object.Name == o.Name) && matches(object, o.Labels, o.Fields)
}

// ascend visits the objects of the namespace in order, or the one object that
// namespace and name leave.
func (c *Cache) ascend(v *view, o ListOptions, visit func(*Object) bool) {
	after := c.place(o.StartAfter)
	if o.Name != "" && (o.Namespace != "" || !c.config.Namespaced) {
		if object, ok := v.tree.Get(place(o.Namespace, o.Name)); ok && compareKeys(object, after) > 0 {
			visit(object)
		}
		return
	}
	from := place(o.Namespace, "")
	if compareKeys(after, from) > 0 {
		from = after
	}
	v.tree.AscendGreaterOrEqual(from, func(object *Object) bool {
		if o.Namespace != "" && object.Namespace != o.Namespace {
			return false
		}
		return compareKeys(object, after) == 0 || visit(object)
	})
}

// fromIndex answers a list by an indexed field from the newest state.
func (c *Cache) fromIndex(o ListOptions, out *List) (*List, bool) {
	if o.Fields == nil {
		return nil, false
	}
	for _, name := range c.config.Indexed {
		value, exact := o.Fields.RequiresExactMatch(name)
		if !exact {
			continue
		}
		c.mu.RLock()
		for _, object := range c.index[name][value] {
			if (o.Namespace == "" || object.Namespace == o.Namespace) && (o.Name == "" || object.Name == o.Name) && matches(object, o.Labels, o.Fields) {
				out.Objects = append(out.Objects, object)
			}
		}
		out.Revision = max(out.Revision, c.view.Load().revision)
		c.mu.RUnlock()
		slices.SortFunc(out.Objects, compareKeys)
		out.Remaining = -1
		return out, true
	}
	return nil, false
}

func everything(l labels.Selector, f fields.Selector) bool {
	return (l == nil || l.Empty()) && (f == nil || f.Empty())
}

// matches says whether the selectors choose an object.
func matches(object *Object, l labels.Selector, f fields.Selector) bool {
	return (l == nil || l.Empty() || l.Matches(object.Labels)) && (f == nil || f.Empty() || f.Matches(objectFields{object}))
}

// objectFields are an object's selectable fields.
type objectFields struct{ object *Object }

func (f objectFields) Has(name string) bool {
	if name == "metadata.name" || name == "metadata.namespace" {
		return true
	}
	return f.object.Fields.Has(name)
}

func (f objectFields) Get(name string) string {
	switch name {
	case "metadata.name":
		return f.object.Name
	case "metadata.namespace":
		return f.object.Namespace
	}
	return f.object.Fields.Get(name)
}
