package tainteviction

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// sightings are when pods were first seen under a taint that tells no time of
// its own: what was tainted by hand, as kubectl taint does it, has none, and
// tolerationSeconds must still run out.
type sightings struct {
	mu   sync.Mutex
	seen map[types.UID]time.Time
}

// since is when the pod was first seen under its taints; now, if it was not yet.
func (s *sightings) since(pod types.UID, now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if first, known := s.seen[pod]; known {
		return first
	}
	if s.seen == nil {
		s.seen = map[types.UID]time.Time{}
	}
	s.seen[pod] = now
	return now
}

// forget lets the next taint count from its own beginning.
func (s *sightings) forget(pod types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.seen, pod)
}
