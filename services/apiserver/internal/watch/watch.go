// Package watch keeps, per resource, an in-memory cache of the current objects
// and of recent events, fed by the store's ordered log, and answers gets, lists
// and watches from it without decoding or encoding an object twice.
package watch

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Attributes are what selectors and lookups need of an object without decoding
// it.
type Attributes struct {
	Namespace string
	Name      string
	UID       string
	Labels    labels.Set
	Fields    fields.Set // selectable fields, metadata.name and metadata.namespace included
}

// Config describes one resource's cache.
type Config struct {
	Resource schema.GroupResource
	Prefix   string // of its keys, with a trailing slash: "/registry/pods/"
	// Namespaced says that keys are prefix + namespace + "/" + name, else prefix +
	// name.
	Namespaced bool
	// Decode turns a stored value into an object without its resourceVersion.
	Decode func(stored []byte) (runtime.Object, error)
	// AttributesOf reads an object's attributes.
	AttributesOf func(obj runtime.Object) Attributes
	// Indexed names the selectable fields that watchers and lists are bucketed by,
	// such as spec.nodeName for pods.
	Indexed []string
}

// Encoding is one byte form of an object that readers share, such as JSON or a
// Table row. Two encodings with the same Name must give the same bytes.
type Encoding struct {
	Name string
	// Encode makes the form of an object that carries its resourceVersion,
	// apiVersion and kind. It must not change or keep obj. The context is that of
	// the reader who asks first.
	Encode func(ctx context.Context, obj runtime.Object) ([]byte, error)
}

// Versions says how fresh a read must be (API concepts: resource versions).
type Versions struct {
	Match    Match
	Revision int64
}

// Match is the meaning of Versions.Revision.
type Match uint8

// The matches.
const (
	MostRecent   Match = iota // at least as new as every acknowledged write
	Any                       // whatever is at hand
	NotOlderThan              // at least Revision; waits up to 3 s for it
	Exact                     // exactly Revision
)

// ListOptions selects objects of one list. Objects come in byte order of their
// keys.
type ListOptions struct {
	Namespace string // "" is all
	Name      string // "" is all; set when a field selector pins metadata.name
	Labels    labels.Selector
	Fields    fields.Selector
	Versions  Versions
	Limit     int
	// StartAfter is the key (relative to the prefix, "namespace/name") after which
	// a continued list goes on.
	StartAfter string
}

// List is a consistent list.
type List struct {
	Objects  []*Object
	Revision int64
	// Next is the StartAfter of the next part; "" when this was the last.
	Next string
	// Remaining is the number of objects after this part, or -1 when selectors make
	// it unknown.
	Remaining int64
}

// WatchOptions selects the events of one watch.
type WatchOptions struct { //nolint:revive // exported: beside ListOptions; Options are the cache's
	Namespace string
	Name      string
	Labels    labels.Selector
	Fields    fields.Selector
	// Revision is the one after which events are wanted. 0 with InitialEvents sends
	// the current objects as Added first.
	Revision      int64
	InitialEvents bool
	// Versions says how fresh the initial events must be.
	Versions Versions
	// Bookmarks asks for a Bookmark event at intervals, and (with InitialEvents and
	// InitialBookmark) for the one that ends the initial events.
	Bookmarks       bool
	InitialBookmark bool
}

// EventType is the type of a watch event after selectors were applied.
type EventType uint8

// The event types.
const (
	Added EventType = iota + 1
	Modified
	Deleted
	Bookmark
	// InitialEventsEnd is the bookmark that carries the annotation
	// k8s.io/initial-events-end.
	InitialEventsEnd
)

// Event is what a watcher sees.
type Event struct {
	Type EventType
	// Object is the object after the change. For Deleted it is the last state with
	// the deletion's revision. Nil for bookmarks.
	Object   *Object
	Revision int64
}

// Watcher is a cursor over one resource's events. It is used by one goroutine.
type Watcher interface {
	// Next waits for events and appends at least one to buf, at most cap-len if
	// that is positive. It returns an API status error (410 Expired) when the cursor
	// fell out of the log, and ctx's error when ctx ends.
	Next(ctx context.Context, buf []Event) ([]Event, error)
	// Close releases the cursor.
	Close()
}

// Put is one object to be written.
type Put struct {
	Namespace string
	Name      string
	// Stored is the value for the store: the object without resourceVersion in the
	// resource's media type and version.
	Stored []byte
	// Object is the same, decoded; the cache takes it over and it must not be
	// changed afterwards.
	Object runtime.Object
	// Form names the encoding that gives Stored too, its resourceVersion and final
	// newline aside; "" when there is none.
	Form string
	TTL  time.Duration
}

// Store is one resource's objects as the registry uses them: reads from the
// cache, writes through the store. *Cache implements it. Errors are those of
// package storage, except that Next, List and Watch return API status errors
// for expired and future revisions.
type Store interface {
	Get(ctx context.Context, namespace, name string, versions Versions) (*Object, error)
	List(ctx context.Context, opts ListOptions) (*List, error)
	Watch(ctx context.Context, opts WatchOptions) (Watcher, error)
	// Create, Update and Delete return the object with its new revision; by then
	// every reader of this process sees the write.
	Create(ctx context.Context, put Put) (*Object, error)
	Update(ctx context.Context, put Put, expect int64) (*Object, error)
	Delete(ctx context.Context, namespace, name string, expect int64) (*Object, error)
	// Outdated says that an object is not stored as it would be now, encrypted by
	// another key or not at all, so that writing it unchanged is of use.
	Outdated(ctx context.Context, namespace, name string) bool
	// Revision is the newest revision that the cache has applied.
	Revision() int64
	// Changed is the revision of the newest change of one of the resource's objects
	// that readers see.
	Changed() int64
}
