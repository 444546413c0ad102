package rest_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/core"
	"github.com/sampan-io/sampan/services/apiserver/internal/rest"
	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
	"github.com/sampan-io/sampan/services/apiserver/internal/storage/bolt"
	"github.com/sampan-io/sampan/services/apiserver/internal/watch"
)

var configMaps = schema.GroupResource{Resource: "configmaps"}

// observer is an admission chain that a test looks through.
type observer struct {
	see func(a *admission.Attributes) error
}

func (o *observer) Admit(_ context.Context, a *admission.Attributes) error {
	if o.see == nil {
		return nil
	}
	return o.see(a)
}

func (o *observer) Validate(context.Context, *admission.Attributes) error { return nil }

// newEngine serves config maps from a real store.
func newEngine(t *testing.T, admission registry.Admission, change func(*registry.Resource)) *rest.Engine {
	t.Helper()
	store, err := bolt.Open(bolt.Options{Path: filepath.Join(t.TempDir(), "store.db"), NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	resource := core.ConfigMaps()
	if change != nil {
		change(resource)
	}
	list := []*registry.Resource{resource}
	cache := watch.NewCache(rest.CacheConfigs(list)[0], store, watch.Options{})
	if err := cache.Start(ctx); err != nil {
		t.Fatal(err)
	}
	engine := rest.New(rest.Config{Resources: list, Caches: map[string]watch.Store{resource.KeyPrefix: cache}, Admission: admission})
	t.Cleanup(func() {
		cancel()
		engine.Wait()
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return engine
}

func configMap(name, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Data: map[string]string{"key": value}}
}

func mustCreate(t *testing.T, e *rest.Engine, obj *corev1.ConfigMap) *corev1.ConfigMap {
	t.Helper()
	got, err := e.Create(t.Context(), configMaps, obj)
	if err != nil {
		t.Fatal(err)
	}
	return got.(*corev1.ConfigMap)
}

func set(value string) func(runtime.Object) error {
	return func(obj runtime.Object) error {
		obj.(*corev1.ConfigMap).Data["key"] = value
		return nil
	}
}

func TestUpdateRunsAgainOnTheFreshObject(t *testing.T) {
	e := newEngine(t, &observer{}, nil)
	mustCreate(t, e, configMap("a", "1"))
	var seen []string
	got, err := e.Update(t.Context(), configMaps, "", "default", "a", false, func(obj runtime.Object) error {
		cm := obj.(*corev1.ConfigMap)
		seen = append(seen, cm.Data["key"])
		if len(seen) == 1 { // another writer is faster
			if _, err := e.Update(t.Context(), configMaps, "", "default", "a", false, set("2")); err != nil {
				t.Fatal(err)
			}
		}
		cm.Data["key"] += "x"
		return nil
	})
	if err != nil || got.(*corev1.ConfigMap).Data["key"] != "2x" || !slices.Equal(seen, []string{"1", "2"}) {
		t.Errorf("got %v after %v: %v", got, seen, err)
	}
	refused := errors.New("not now")
	if _, err := e.Update(t.Context(), configMaps, "", "default", "a", false, func(runtime.Object) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("a change's own error: %v", err)
	}
}

func TestAdmissionSeesWhatIsStored(t *testing.T) {
	o := &observer{}
	e := newEngine(t, o, nil)
	created := mustCreate(t, e, configMap("a", "1"))
	var old string
	o.see = func(a *admission.Attributes) error {
		if a.OldObject != nil {
			old = fmt.Sprintf("%s %s %s", a.Operation, a.OldObject.(*corev1.ConfigMap).Data["key"], a.OldObject.(*corev1.ConfigMap).ResourceVersion)
		}
		if cm, ok := a.Object.(*corev1.ConfigMap); ok {
			cm.Labels = map[string]string{"admitted": "yes"}
		}
		return nil
	}
	got, err := e.Update(t.Context(), configMaps, "", "default", "a", false, set("2"))
	if err != nil || got.(*corev1.ConfigMap).Labels["admitted"] != "yes" || old != "UPDATE 1 "+created.ResourceVersion {
		t.Errorf("got %v, old %q: %v", got, old, err)
	}
	if err := e.Delete(t.Context(), configMaps, "default", "a", nil, true); err != nil || !strings.HasPrefix(old, "DELETE 2 ") {
		t.Errorf("delete: old %q: %v", old, err)
	}
	o.see = func(*admission.Attributes) error { return apierrors.NewForbidden(configMaps, "a", errors.New("no")) }
	if err := e.Delete(t.Context(), configMaps, "default", "a", nil, false); !apierrors.IsForbidden(err) {
		t.Errorf("refused delete: %v", err)
	}
	if _, err := e.Get(t.Context(), configMaps, "default", "a"); err != nil {
		t.Errorf("after a refused delete: %v", err)
	}
}

// TestAllocationsAreUndoneUnlessStored counts what Begin gave out.
func TestAllocationsAreUndoneUnlessStored(t *testing.T) {
	held := map[string]int{}
	e := newEngine(t, &observer{}, func(r *registry.Resource) {
		r.Strategy.Begin = func(_ context.Context, obj, old runtime.Object, dryRun bool) (func(bool), error) {
			if old != nil {
				return nil, nil
			}
			name := obj.(*corev1.ConfigMap).Name
			held[name]++
			return func(stored bool) {
				if !stored {
					held[name]--
				}
			}, nil
		}
		r.Strategy.AfterDelete = func(_ context.Context, obj runtime.Object) { held[obj.(*corev1.ConfigMap).Name]-- }
		r.Strategy.Validate = func(_ context.Context, obj runtime.Object) field.ErrorList {
			if obj.(*corev1.ConfigMap).Data["key"] == "bad" {
				return field.ErrorList{field.Required(field.NewPath("data"), "")}
			}
			return nil
		}
	})
	mustCreate(t, e, configMap("a", "1"))
	if _, err := e.Create(t.Context(), configMaps, configMap("a", "1")); !apierrors.IsAlreadyExists(err) {
		t.Errorf("second create: %v", err)
	}
	if _, err := e.Create(t.Context(), configMaps, configMap("b", "bad")); !apierrors.IsInvalid(err) {
		t.Errorf("invalid create: %v", err)
	}
	store := e.Store(configMaps)
	if _, err := store.Create(t.Context(), "default", configMap("c", "1"), rest.Write{DryRun: true, Manager: "m"}); err != nil {
		t.Error(err)
	}
	if held["a"] != 1 || held["b"] != 0 || held["c"] != 0 {
		t.Errorf("held after creates: %v", held)
	}
	if err := e.Delete(t.Context(), configMaps, "default", "a", nil, false); err != nil || held["a"] != 0 {
		t.Errorf("held after the delete: %v, %v", held, err)
	}
}

func TestGeneratedNamesAvoidTakenOnes(t *testing.T) {
	e := newEngine(t, &observer{}, nil)
	for range 50 {
		if _, err := e.Create(t.Context(), configMaps, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "x-"}}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestGenerationFollowsTheSpec(t *testing.T) {
	e := newEngine(t, &observer{}, func(r *registry.Resource) {
		r.Strategy.SpecOf = func(obj runtime.Object) any { return obj.(*corev1.ConfigMap).Data }
	})
	if got := mustCreate(t, e, configMap("a", "1")); got.Generation != 1 {
		t.Errorf("generation of a new object is %d", got.Generation)
	}
	for want, change := range map[int64]func(*corev1.ConfigMap){
		1: func(cm *corev1.ConfigMap) { cm.Labels = map[string]string{"a": "b"} },
		2: func(cm *corev1.ConfigMap) { cm.Data["key"], cm.Generation = "2", 77 },
	} {
		got, err := e.Update(t.Context(), configMaps, "", "default", "a", false, func(obj runtime.Object) error {
			obj.(*corev1.ConfigMap).Generation = 0
			change(obj.(*corev1.ConfigMap))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if generation := got.(*corev1.ConfigMap).Generation; generation < want {
			t.Errorf("generation is %d, want at least %d", generation, want)
		}
	}
	got, err := e.Get(t.Context(), configMaps, "default", "a")
	if err != nil || got.(*corev1.ConfigMap).Generation != 2 {
		t.Errorf("generation is %d, want 2: %v", got.(*corev1.ConfigMap).Generation, err)
	}
}

func TestSubscribersSeeWhatIsThereAndEachChangeInOrder(t *testing.T) {
	e := newEngine(t, &observer{}, nil)
	mustCreate(t, e, configMap("a", "1"))
	changes := make(chan string, 64)
	value := func(obj runtime.Object) string {
		if obj == nil {
			return "-"
		}
		return obj.(*corev1.ConfigMap).Name + obj.(*corev1.ConfigMap).Data["key"]
	}
	if err := e.Subscribe(t.Context(), configMaps, func(old, new runtime.Object) { changes <- value(old) + ">" + value(new) }); err != nil {
		t.Fatal(err)
	}
	if len(changes) != 1 || <-changes != "->a1" {
		t.Error("the current object was not delivered before Subscribe returned")
	}
	mustCreate(t, e, configMap("b", "1"))
	if _, err := e.Update(t.Context(), configMaps, "", "default", "a", false, set("2")); err != nil {
		t.Fatal(err)
	}
	if err := e.Delete(t.Context(), configMaps, "default", "a", nil, false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"->b1", "a1>a2", "a2>-"} {
		select {
		case got := <-changes:
			if got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("no %s after 10 s", want)
		}
	}
}

func TestObjectsBeyondTheStoresLimitAreRefused(t *testing.T) {
	e := newEngine(t, &observer{}, func(r *registry.Resource) { r.Strategy.Validate = nil })
	_, err := e.Create(t.Context(), configMaps, configMap("a", strings.Repeat("x", 2<<20)))
	if !apierrors.IsRequestEntityTooLargeError(err) {
		t.Errorf("a 2 MiB object: %v", err)
	}
	// Managed fields go before the object does not fit.
	big := configMap("b", strings.Repeat("x", storage.MaxValueBytes-2000))
	for i := range 40 {
		big.Data[fmt.Sprintf("%s%d", strings.Repeat("k", 20), i)] = ""
	}
	got, err := e.Create(t.Context(), configMaps, big)
	if err != nil {
		t.Fatal(err)
	}
	if managed := got.(*corev1.ConfigMap).ManagedFields; len(managed) > 0 {
		t.Errorf("managed fields were kept: %v", managed)
	}
}

func TestOwnerReferencesAreUnique(t *testing.T) {
	e := newEngine(t, &observer{}, nil)
	obj := configMap("a", "1")
	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "u"}
	obj.OwnerReferences = []metav1.OwnerReference{owner, owner}
	if got := mustCreate(t, e, obj); len(got.OwnerReferences) != 1 {
		t.Errorf("owners: %v", got.OwnerReferences)
	}
}
