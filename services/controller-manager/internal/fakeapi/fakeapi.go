// Package fakeapi is an API in memory for tests of controllers: client-go's fake
// clientset with what controllers rely on and it lacks: generated names, UIDs,
// resource versions that conflict, and observed generations.
package fakeapi

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"github.com/sampan-io/sampan/services/controller-manager/internal/controller"
)

// API is the fake. Its clientset is safe for concurrent use.
type API struct {
	*fake.Clientset

	mu      sync.Mutex
	serial  int64
	deletes map[string]int // requests by resource
	creates map[string]int
}

// New holds objects.
func New(objects ...runtime.Object) *API {
	a := &API{Clientset: fake.NewClientset(), deletes: map[string]int{}, creates: map[string]int{}}
	a.PrependReactor("create", "*", a.created)
	a.PrependReactor("update", "*", a.updated)
	a.PrependReactor("delete", "*", a.deleted)
	for _, object := range objects {
		accessor, err := meta.Accessor(object)
		if err != nil {
			panic(err)
		}
		a.stamp(accessor)
		if err := a.Tracker().Add(object); err != nil {
			panic(err)
		}
	}
	return a
}

func (a *API) stamp(object metav1.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.serial++
	if object.GetName() == "" {
		object.SetName(object.GetGenerateName() + strconv.FormatInt(a.serial, 36))
	}
	if object.GetUID() == "" {
		object.SetUID(types.UID("uid-" + strconv.FormatInt(a.serial, 10)))
	}
	if object.GetGeneration() == 0 {
		object.SetGeneration(1)
	}
	object.SetResourceVersion(strconv.FormatInt(a.serial, 10))
}

func (a *API) created(action clienttesting.Action) (bool, runtime.Object, error) {
	create, ok := action.(clienttesting.CreateAction)
	if !ok || action.GetSubresource() != "" {
		return false, nil, nil
	}
	object, err := meta.Accessor(create.GetObject())
	if err != nil {
		return true, nil, err
	}
	a.stamp(object)
	a.mu.Lock()
	a.creates[action.GetResource().Resource]++
	a.mu.Unlock()
	return false, nil, nil // the tracker stores it
}

// updated refuses a stale resource version, and keeps spec and status apart for the
// status subresource as far as resource versions go.
func (a *API) updated(action clienttesting.Action) (bool, runtime.Object, error) {
	update, ok := action.(clienttesting.UpdateAction)
	if !ok {
		return false, nil, nil
	}
	object, err := meta.Accessor(update.GetObject())
	if err != nil {
		return true, nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	current, err := a.Tracker().Get(action.GetResource(), action.GetNamespace(), object.GetName())
	if err != nil {
		return true, nil, err
	}
	stored, err := meta.Accessor(current)
	if err != nil {
		return true, nil, err
	}
	if version := object.GetResourceVersion(); version != "" && version != stored.GetResourceVersion() {
		return true, nil, apierrors.NewConflict(action.GetResource().GroupResource(), object.GetName(), fmt.Errorf("version %s is not %s", version, stored.GetResourceVersion()))
	}
	a.serial++
	object.SetResourceVersion(strconv.FormatInt(a.serial, 10))
	return false, nil, nil
}

func (a *API) deleted(action clienttesting.Action) (bool, runtime.Object, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.deletes[action.GetResource().Resource]++
	return false, nil, nil
}

// Creates is how many objects of resource were asked to be made.
func (a *API) Creates(resource string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.creates[resource]
}

// Deletes is how many objects of resource were asked to be deleted.
func (a *API) Deletes(resource string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.deletes[resource]
}

// Write stores object as it is, as another client would.
func (a *API) Write(t *testing.T, resource schema.GroupVersionResource, object runtime.Object) {
	t.Helper()
	accessor, err := meta.Accessor(object)
	if err != nil {
		t.Fatal(err)
	}
	a.mu.Lock()
	a.serial++
	accessor.SetResourceVersion(strconv.FormatInt(a.serial, 10))
	a.mu.Unlock()
	if err := a.Tracker().Update(resource, object, accessor.GetNamespace()); err != nil {
		t.Fatal(err)
	}
}

// Env is an environment for one controller that uses a. Run starts it.
func (a *API) Env(t *testing.T) controller.Env {
	t.Helper()
	return controller.Env{
		Client: a.Clientset, Discovery: a.Discovery(), Informers: informers.NewSharedInformerFactory(a.Clientset, 0),
		Events: noEvents{}, Config: controller.Config{MaxEndpointsPerSlice: 100, ConcurrentSyncs: map[string]int{}},
		Log: slog.New(slog.DiscardHandler),
	}
}

// Run runs runner until the returned function is called or the test ends.
func Run(t *testing.T, env controller.Env, runner controller.Runner) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	env.Informers.Start(ctx.Done())
	done := make(chan error, 1)
	go func() { done <- runner.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("controller ended with %v", err)
		}
		env.Informers.Shutdown()
	})
	t.Cleanup(stop)
	return stop
}

type noEvents struct{}

func (noEvents) Recorder(string) record.EventRecorder { return &record.FakeRecorder{} }
