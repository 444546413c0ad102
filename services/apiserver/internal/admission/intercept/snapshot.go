package intercept

import (
	"context"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// Configuration reads stored configuration, and tells cheaply whether it has
// changed.
type Configuration interface {
	registry.Reader
	// Changed is the revision of the newest change of any object of the resource; by
	// the time that a write is answered, it tells of it.
	Changed(resource schema.GroupResource) int64
}

// Snapshot is configuration in a prepared form, which is made again by the first
// request after a change: a write has taken effect when it is answered.
type Snapshot[T any] struct {
	config    Configuration
	resources []schema.GroupResource
	prepare   func(objects [][]runtime.Object, last T) T

	current atomic.Pointer[prepared[T]]
	mu      sync.Mutex
}

// prepared is the form of one state.
type prepared[T any] struct {
	revision int64
	value    T
}

// NewSnapshot prepares the objects of some resources. Prepare gets a list for
// each of them and the last form, and must not change it.
func NewSnapshot[T any](config Configuration, prepare func(objects [][]runtime.Object, last T) T, resources ...schema.GroupResource) *Snapshot[T] {
	return &Snapshot[T]{config: config, resources: resources, prepare: prepare}
}

// revision is that of the newest change.
func (s *Snapshot[T]) revision() int64 {
	var newest int64
	for _, resource := range s.resources {
		newest = max(newest, s.config.Changed(resource))
	}
	return newest
}

// Get is the form of the current configuration; it is shared.
func (s *Snapshot[T]) Get(ctx context.Context) (T, error) {
	revision := s.revision()
	if have := s.current.Load(); have != nil && have.revision == revision {
		return have.value, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	revision = s.revision()
	var last T
	if have := s.current.Load(); have != nil {
		if have.revision == revision {
			return have.value, nil
		}
		last = have.value
	}
	objects := make([][]runtime.Object, len(s.resources))
	for i, resource := range s.resources {
		list, err := s.config.List(ctx, resource, "")
		if err != nil {
			return last, err
		}
		objects[i] = list
	}
	now := &prepared[T]{revision: revision, value: s.prepare(objects, last)}
	s.current.Store(now)
	return now.value, nil
}
