// Package storage is the contract between the API server and its store: a flat
// map of /registry keys with one global revision and an ordered log of every
// change. Backends live in packages below it and pass the same suite
// (storagetest).
//
// Invariants that every backend keeps:
//   - each write has a revision of its own, greater than all before it; the
//     first is at least 1;
//   - a write is durable before it is acknowledged, delivered to a sink or
//     visible to a read;
//   - sinks see every write exactly once, in the order of revisions, and before
//     the writer gets its answer.
package storage

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// KeyValue is one key's state at some revision. Value is shared and must not be
// changed.
type KeyValue struct {
	Key            string
	Value          []byte
	Revision       int64 // of the write that made this value
	CreateRevision int64 // of the write that made the key
}

// Operation is what a log entry did to its key.
type Operation uint8

// The operations of the log.
const (
	Create Operation = iota + 1
	Update
	Delete
)

// Event is one entry of the log.
type Event struct {
	Operation      Operation
	Key            string
	Value          []byte // what is stored now; nil for Delete
	Revision       int64
	CreateRevision int64
	PrevRevision   int64  // of the superseded value; 0 for Create
	PrevValue      []byte // the superseded value; nil for Create
	// Hint is what the writer passed with the write, for sinks in the same process
	// that would otherwise decode Value; nil when the event was read from the log.
	Hint any
}

// Sink receives committed events: batches in order, none empty, called from one
// goroutine. It must not block on a reader and must not call the store's
// writing methods.
type Sink func(batch []Event)

// Put is a write of one value.
type Put struct {
	Key   string
	Value []byte
	TTL   time.Duration // 0 keeps the key until it is deleted
	Hint  any           // handed to sinks in Event.Hint
}

// ListOptions bounds a List.
type ListOptions struct {
	Revision int64  // 0 is the newest
	Start    string // first key to return (inclusive); "" starts at the prefix
	Limit    int    // 0 is no limit
}

// ListResult is a part of the keys under a prefix in byte order of keys.
type ListResult struct {
	Items     []KeyValue
	Revision  int64 // at which the list is exact
	More      bool  // keys after the last item exist
	Remaining int64 // how many, when More
}

// Interface is a store.
type Interface interface {
	// Get reads a key at a revision (0 is the newest). ErrNotFound when it does
	// not exist there; *CompactedError below the compacted revision;
	// *FutureRevisionError above the current one.
	Get(ctx context.Context, key string, revision int64) (KeyValue, error)
	// List reads keys under prefix, which should end in a slash.
	List(ctx context.Context, prefix string, opts ListOptions) (ListResult, error)
	// Count is the number of keys under prefix now.
	Count(ctx context.Context, prefix string) (int64, error)

	// Create writes a key that must not exist (*ExistsError otherwise).
	Create(ctx context.Context, put Put) (KeyValue, error)
	// Update writes a key that must be at revision expect (*ConflictError with the
	// current state otherwise, ErrNotFound when it is gone).
	Update(ctx context.Context, put Put, expect int64) (KeyValue, error)
	// Delete removes a key that must be at revision expect, errors as Update's. The
	// answer's Revision is that of the deletion and its Value the removed one.
	Delete(ctx context.Context, key string, expect int64) (KeyValue, error)

	// Attach delivers all events under prefix with a revision greater than after,
	// first those from the log, then new ones as they are committed, until ctx
	// ends. Attach returns when sink has seen everything that was committed when it
	// was called. *CompactedError when after is below the compacted revision.
	Attach(ctx context.Context, prefix string, after int64, sink Sink) error
	// Log reads the log after a revision, at most limit entries under prefix, and
	// returns the revision up to which it is complete.
	Log(ctx context.Context, prefix string, after int64, limit int) ([]Event, int64, error)

	// Current is a revision that is not older than any write acknowledged before
	// the call.
	Current(ctx context.Context) (int64, error)
	// Applied is the revision up to which the sinks have seen everything. It may lag
	// behind Current where others write to the same store; it never blocks.
	Applied() int64
	// CompactedRevision is the revision below which the log is gone; reads at and
	// after it are exact.
	CompactedRevision() int64
	// Compact drops superseded values and log entries below revision, in small
	// steps.
	Compact(ctx context.Context, revision int64) error
	// Close stops the store after the writes in flight.
	Close() error
}

// EmptyRevision is the revision of a store that nothing was ever written to:
// etcd's. Zero would mean something else to clients.
const EmptyRevision = 1

// ErrNotFound says that the key does not exist (at the revision asked for).
var ErrNotFound = errors.New("key not found")

// ErrClosed says that the store was closed or has failed; it acknowledges
// nothing any more.
var ErrClosed = errors.New("store is closed")

// ErrNoSpace says that the disk is full: the write was refused and nothing of
// it was stored.
var ErrNoSpace = errors.New("no space left on the store's device")

// ErrTooLarge says that a value is above MaxValueBytes.
var ErrTooLarge = errors.New("value too large")

// MaxValueBytes is the largest value that is stored: etcd's request limit
// without what a request has besides the value, so that a later move to etcd
// cannot fail.
const MaxValueBytes = 3<<19 - 4096

// ExistsError says that a key to be created exists.
type ExistsError struct{ Current KeyValue }

func (e *ExistsError) Error() string { return "key exists: " + e.Current.Key }

// ConflictError says that a key is not at the expected revision.
type ConflictError struct {
	Expected int64
	Current  KeyValue
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("key %s is at revision %d, not %d", e.Current.Key, e.Current.Revision, e.Expected)
}

// CompactedError says that a revision is older than the log.
type CompactedError struct{ Requested, Compacted int64 }

func (e *CompactedError) Error() string {
	return fmt.Sprintf("revision %d has been compacted; the oldest kept is %d", e.Requested, e.Compacted)
}

// FutureRevisionError says that a revision does not exist yet.
type FutureRevisionError struct{ Requested, Current int64 }

func (e *FutureRevisionError) Error() string {
	return fmt.Sprintf("revision %d is in the future; the current one is %d", e.Requested, e.Current)
}
