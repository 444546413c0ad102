// Package progress tells how far the proxies have come: the revision of the
// EndpointSlices that are in the kernel's rules. Whoever ends a pod waits with it
// until no proxy sends the pod new connections.
//
//	node agent ──/endpoints/drained──► proxy of its node ──/endpointslices/applied──► every other proxy
//
// Revisions are resourceVersions, of which the API server has one ascending
// sequence for all objects.
package progress

import (
	"context"
	"sync"
)

// Revision is a number that grows, and can be waited for.
type Revision struct {
	mu      sync.Mutex
	now     uint64
	changed chan struct{} // closed and replaced at each step
}

// NewRevision starts at 0.
func NewRevision() *Revision { return &Revision{changed: make(chan struct{})} }

// Advance takes a revision; an older one changes nothing but wakes who waits.
func (r *Revision) Advance(to uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = max(r.now, to)
	close(r.changed)
	r.changed = make(chan struct{})
}

// Now is the revision and a channel that is closed at the next Advance.
func (r *Revision) Now() (now uint64, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now, r.changed
}

// Await waits until the revision is at least that, or ctx ends, and returns it.
func (r *Revision) Await(ctx context.Context, least uint64) uint64 {
	for {
		now, changed := r.Now()
		if now >= least {
			return now
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return now
		}
	}
}
