// Package statetest has a registry.State in memory for tests: it keeps what is
// written, tells subscribers, and counts writes. It neither defaults nor
// validates.
package statetest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// State is the fake. Use New.
type State struct {
	mu          sync.Mutex
	revision    int
	writes      int
	objects     map[key]registry.Object
	subscribers map[schema.GroupResource][]subscriber
}

type key struct {
	resource        schema.GroupResource
	namespace, name string
}

type subscriber struct {
	ctx    context.Context
	handle func(old, new runtime.Object)
}

var _ registry.State = (*State)(nil)

// New is an empty state.
func New() *State {
	return &State{objects: map[key]registry.Object{}, subscribers: map[schema.GroupResource][]subscriber{}}
}

// Put writes an object as it is, over what may be there. Objects without a uid get
// one.
func (s *State) Put(resource schema.GroupResource, obj registry.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(resource, obj)
}

func (s *State) put(resource schema.GroupResource, obj registry.Object) {
	k := key{resource, obj.GetNamespace(), obj.GetName()}
	stored := obj.DeepCopyObject().(registry.Object)
	s.revision++
	stored.SetResourceVersion(strconv.Itoa(s.revision))
	if stored.GetUID() == "" {
		stored.SetUID(types.UID(fmt.Sprintf("uid-%d", s.revision)))
	}
	var old runtime.Object
	if have, ok := s.objects[k]; ok {
		old = have
	}
	s.objects[k] = stored
	s.tell(resource, old, stored)
}

func (s *State) tell(resource schema.GroupResource, old, new runtime.Object) {
	for _, sub := range s.subscribers[resource] {
		if sub.ctx.Err() == nil {
			sub.handle(old, new)
		}
	}
}

// Get implements registry.Reader.
func (s *State) Get(_ context.Context, resource schema.GroupResource, namespace, name string) (runtime.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if obj, ok := s.objects[key{resource, namespace, name}]; ok {
		return obj, nil
	}
	return nil, apierrors.NewNotFound(resource, name)
}

// List implements registry.Reader, in the order of names.
func (s *State) List(_ context.Context, resource schema.GroupResource, namespace string) ([]runtime.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []runtime.Object
	for _, k := range s.keys() {
		if k.resource == resource && (namespace == "" || k.namespace == namespace) {
			list = append(list, s.objects[k])
		}
	}
	return list, nil
}

func (s *State) keys() []key {
	return slices.SortedFunc(maps.Keys(s.objects), func(a, b key) int {
		return strings.Compare(a.resource.String()+" "+a.namespace+"/"+a.name, b.resource.String()+" "+b.namespace+"/"+b.name)
	})
}

// Subscribe implements registry.Subscriber. Handlers run while the write that they
// hear of is held up, and must not call the state.
func (s *State) Subscribe(ctx context.Context, resource schema.GroupResource, handle func(old, new runtime.Object)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.keys() {
		if k.resource == resource {
			handle(nil, s.objects[k])
		}
	}
	s.subscribers[resource] = append(s.subscribers[resource], subscriber{ctx, handle})
	return nil
}

// Create implements registry.Writer.
func (s *State) Create(_ context.Context, resource schema.GroupResource, obj runtime.Object) (runtime.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := obj.(registry.Object)
	k := key{resource, o.GetNamespace(), o.GetName()}
	if _, ok := s.objects[k]; ok {
		return nil, apierrors.NewAlreadyExists(resource, o.GetName())
	}
	s.writes++
	s.put(resource, o)
	return s.objects[k], nil
}

// Update implements registry.Writer.
func (s *State) Update(_ context.Context, resource schema.GroupResource, _, namespace, name string, dryRun bool, change func(obj runtime.Object) error) (runtime.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	have, ok := s.objects[key{resource, namespace, name}]
	if !ok {
		return nil, apierrors.NewNotFound(resource, name)
	}
	fresh := have.DeepCopyObject()
	if err := change(fresh); err != nil || dryRun {
		return fresh, err
	}
	s.writes++
	s.put(resource, fresh.(registry.Object))
	return s.objects[key{resource, namespace, name}], nil
}

// Delete implements registry.Writer.
func (s *State) Delete(_ context.Context, resource schema.GroupResource, namespace, name string, _ *metav1.DeleteOptions, dryRun bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := key{resource, namespace, name}
	have, ok := s.objects[k]
	if !ok {
		return apierrors.NewNotFound(resource, name)
	}
	if dryRun {
		return nil
	}
	s.writes++
	s.revision++
	delete(s.objects, k)
	s.tell(resource, have, nil)
	return nil
}

// Writes is how many creates, updates and deletes there were.
func (s *State) Writes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writes
}

// Dump is one line an object: its resource and key, in order.
func (s *State) Dump() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out strings.Builder
	for _, k := range s.keys() {
		fmt.Fprintf(&out, "%s %s\n", k.resource, strings.TrimPrefix(k.namespace+"/"+k.name, "/"))
	}
	return out.String()
}
