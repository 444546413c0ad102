package watch_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"

	"github.com/sampan-io/sampan/services/apiserver/internal/scheme"
	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
	"github.com/sampan-io/sampan/services/apiserver/internal/storage/bolt"
	"github.com/sampan-io/sampan/services/apiserver/internal/watch"
)

var codec = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)

func encode(t testing.TB, pod *corev1.Pod) []byte {
	t.Helper()
	pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	var out bytes.Buffer
	if err := codec.Encode(pod, &out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func newPod(namespace, name, node, app string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "u-1", Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{NodeName: node},
	}
}

func config() watch.Config {
	return watch.Config{
		Resource: schema.GroupResource{Resource: "pods"}, Prefix: "/registry/pods/", Namespaced: true, Indexed: []string{"spec.nodeName"},
		Decode: func(value []byte) (runtime.Object, error) {
			obj, _, err := codec.Decode(value, nil, nil)
			return obj, err
		},
		AttributesOf: func(obj runtime.Object) watch.Attributes {
			pod := obj.(*corev1.Pod)
			return watch.Attributes{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID), Labels: pod.Labels,
				Fields: fields.Set{"metadata.name": pod.Name, "metadata.namespace": pod.Namespace, "spec.nodeName": pod.Spec.NodeName,
					"spec.restartPolicy": string(pod.Spec.RestartPolicy), "spec.schedulerName": pod.Spec.SchedulerName, "spec.serviceAccountName": pod.Spec.ServiceAccountName,
					"spec.hostNetwork": "false", "status.phase": string(pod.Status.Phase), "status.podIP": pod.Status.PodIP, "status.nominatedNodeName": pod.Status.NominatedNodeName}}
		},
	}
}

func newStore(t testing.TB) storage.Interface {
	t.Helper()
	store, err := bolt.Open(bolt.Options{Path: filepath.Join(t.TempDir(), "store"), NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}

func newCache(t testing.TB, store storage.Interface, options watch.Options) *watch.Cache {
	t.Helper()
	cache := watch.NewCache(config(), store, options)
	if err := cache.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return cache
}

func mustCreate(t testing.TB, c *watch.Cache, pod *corev1.Pod) *watch.Object {
	t.Helper()
	object, err := c.Create(t.Context(), watch.Put{Namespace: pod.Namespace, Name: pod.Name, Stored: encode(t, pod), Object: pod})
	if err != nil {
		t.Fatal(err)
	}
	return object
}

func mustUpdate(t testing.TB, c *watch.Cache, pod *corev1.Pod, expect int64) *watch.Object {
	t.Helper()
	object, err := c.Update(t.Context(), watch.Put{Namespace: pod.Namespace, Name: pod.Name, Stored: encode(t, pod), Object: pod}, expect)
	if err != nil {
		t.Fatal(err)
	}
	return object
}

func mustDelete(t testing.TB, c *watch.Cache, object *watch.Object) *watch.Object {
	t.Helper()
	deleted, err := c.Delete(t.Context(), object.Namespace, object.Name, object.Revision)
	if err != nil {
		t.Fatal(err)
	}
	return deleted
}

func mustWatch(t testing.TB, c *watch.Cache, o watch.WatchOptions) watch.Watcher {
	t.Helper()
	w, err := c.Watch(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

// read takes that many events and renders them.
func read(t testing.TB, w watch.Watcher, count int) []string {
	t.Helper()
	names := map[watch.EventType]string{watch.Added: "added", watch.Modified: "modified", watch.Deleted: "deleted", watch.Bookmark: "bookmark", watch.InitialEventsEnd: "end"}
	var out []string
	for len(out) < count {
		events, err := w.Next(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			text := names[e.Type]
			if e.Object != nil {
				text += " " + e.Object.Name
				if e.Object.Revision != e.Revision {
					t.Errorf("%s: object at %d in an event at %d", text, e.Object.Revision, e.Revision)
				}
			}
			out = append(out, text)
		}
	}
	return out
}

func assertEvents(t testing.TB, w watch.Watcher, want ...string) {
	t.Helper()
	if got := read(t, w, len(want)); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("events are %v, want %v", got, want)
	}
}

func TestWireEqualsTheEncodedObject(t *testing.T) {
	c := newCache(t, newStore(t), watch.Options{})
	object := mustCreate(t, c, newPod("default", "a", "n1", "web"))
	want := newPod("default", "a", "n1", "web")
	want.ResourceVersion = strconv.FormatInt(object.Revision, 10)
	if !bytes.Equal(object.Wire(), encode(t, want)) {
		t.Errorf("wire is\n%q, want\n%q", object.Wire(), encode(t, want))
	}
	decoded, err := object.Decode()
	if err != nil {
		t.Fatal(err)
	}
	if pod := decoded.(*corev1.Pod); pod.ResourceVersion != want.ResourceVersion || pod.Kind != "Pod" || pod.Spec.NodeName != "n1" {
		t.Errorf("decoded is %+v", pod)
	}
}

func TestWritersReadTheirWrites(t *testing.T) {
	c := newCache(t, newStore(t), watch.Options{})
	object := mustCreate(t, c, newPod("default", "a", "", "web"))
	for range 100 {
		object = mustUpdate(t, c, newPod("default", "a", "n1", "web"), object.Revision)
		got, err := c.Get(t.Context(), "default", "a", watch.Versions{})
		if err != nil || got.Revision != object.Revision {
			t.Fatalf("read %v, %v after writing %d", got, err, object.Revision)
		}
	}
	mustDelete(t, c, object)
	if _, err := c.Get(t.Context(), "default", "a", watch.Versions{}); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("error is %v", err)
	}
}

func TestSelectorsTurnChangesIntoArrivalsAndDepartures(t *testing.T) {
	c := newCache(t, newStore(t), watch.Options{})
	byNode := mustWatch(t, c, watch.WatchOptions{Fields: fields.OneTermEqualSelector("spec.nodeName", "n1")})
	byLabel := mustWatch(t, c, watch.WatchOptions{Namespace: "default", Labels: labels.SelectorFromSet(labels.Set{"app": "web"})})
	a := mustCreate(t, c, newPod("default", "a", "", "web"))
	a = mustUpdate(t, c, newPod("default", "a", "n1", "web"), a.Revision)
	a = mustUpdate(t, c, newPod("default", "a", "n1", "db"), a.Revision)
	a = mustUpdate(t, c, newPod("default", "a", "n2", "db"), a.Revision)
	a = mustUpdate(t, c, newPod("default", "a", "n1", "web"), a.Revision)
	mustDelete(t, c, a)
	assertEvents(t, byNode, "added a", "modified a", "deleted a", "added a", "deleted a")
	assertEvents(t, byLabel, "added a", "modified a", "deleted a", "added a", "deleted a")
}

func TestWatchFromTheLogJoinsTheRing(t *testing.T) {
	c := newCache(t, newStore(t), watch.Options{RingBytes: 1000})
	first := mustCreate(t, c, newPod("default", "p0", "", "web"))
	for i := 1; i < 50; i++ {
		mustCreate(t, c, newPod("default", fmt.Sprintf("p%d", i), "", "web"))
	}
	w := mustWatch(t, c, watch.WatchOptions{Revision: first.Revision})
	var want []string
	for i := 1; i < 50; i++ {
		want = append(want, fmt.Sprintf("added p%d", i))
	}
	assertEvents(t, w, want...)
	mustCreate(t, c, newPod("default", "last", "", "web"))
	assertEvents(t, w, "added last")
}

func TestStalledWatcherMissesNothing(t *testing.T) {
	c := newCache(t, newStore(t), watch.Options{RingBytes: 1000})
	w := mustWatch(t, c, watch.WatchOptions{})
	var want []string
	for i := range 200 {
		object := mustCreate(t, c, newPod("default", fmt.Sprintf("p%d", i), "", "web"))
		mustDelete(t, c, object)
		want = append(want, fmt.Sprintf("added p%d", i), fmt.Sprintf("deleted p%d", i))
	}
	assertEvents(t, w, want...)
}

func TestCompactedWatchIsExpired(t *testing.T) {
	store := newStore(t)
	c := newCache(t, store, watch.Options{RingBytes: 1000})
	var object *watch.Object
	for i := range 20 {
		object = mustCreate(t, c, newPod("default", fmt.Sprintf("p%d", i), "", "web"))
	}
	if err := store.Compact(t.Context(), object.Revision-2); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Watch(t.Context(), watch.WatchOptions{Revision: 1}); !apierrors.IsResourceExpired(err) {
		t.Errorf("error is %v", err)
	}
	if _, err := c.List(t.Context(), watch.ListOptions{Versions: watch.Versions{Match: watch.Exact, Revision: 1}}); !apierrors.IsResourceExpired(err) {
		t.Errorf("error is %v", err)
	}
}

func TestInitialEventsEndWithTheirBookmark(t *testing.T) {
	c := newCache(t, newStore(t), watch.Options{})
	mustCreate(t, c, newPod("default", "a", "", "web"))
	b := mustCreate(t, c, newPod("default", "b", "", "web"))
	w := mustWatch(t, c, watch.WatchOptions{InitialEvents: true, InitialBookmark: true, Bookmarks: true})
	assertEvents(t, w, "added a", "added b", "end")
	mustDelete(t, c, b)
	assertEvents(t, w, "deleted b")
}

func TestFutureRevisionIsRefusedAsUpstreamDoes(t *testing.T) {
	c := newCache(t, newStore(t), watch.Options{FreshTimeout: 1})
	_, err := c.Get(t.Context(), "default", "a", watch.Versions{Match: watch.NotOlderThan, Revision: 1000})
	if !apierrors.IsTimeout(err) || !apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
		t.Errorf("error is %v", err)
	}
}

func TestExactListsShowThePast(t *testing.T) {
	for name, ring := range map[string]int64{"from the ring": 1 << 20, "from the log": 1000} {
		t.Run(name, func(t *testing.T) {
			c := newCache(t, newStore(t), watch.Options{RingBytes: ring})
			want := map[int64]string{}
			objects := map[string]*watch.Object{}
			for i := range 300 {
				key := fmt.Sprintf("p%d", i%17)
				var revision int64
				if object := objects[key]; object != nil {
					revision = mustDelete(t, c, object).Revision
					delete(objects, key)
				} else {
					objects[key] = mustCreate(t, c, newPod("default", key, "", "web"))
					revision = objects[key].Revision
				}
				want[revision] = names(t, c, watch.Versions{})
			}
			for revision, state := range want {
				if got := names(t, c, watch.Versions{Match: watch.Exact, Revision: revision}); got != state {
					t.Fatalf("at %d: %s, want %s", revision, got, state)
				}
			}
		})
	}
}

func names(t testing.TB, c *watch.Cache, versions watch.Versions) string {
	t.Helper()
	list, err := c.List(t.Context(), watch.ListOptions{Versions: versions})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, object := range list.Objects {
		out = append(out, object.Name)
	}
	return fmt.Sprint(out)
}

func TestPagedListIsConsistent(t *testing.T) {
	c := newCache(t, newStore(t), watch.Options{})
	for i := range 25 {
		mustCreate(t, c, newPod("default", fmt.Sprintf("p%02d", i), "", "web"))
	}
	o := watch.ListOptions{Namespace: "default", Limit: 10}
	total := 0
	for {
		page, err := c.List(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		total += len(page.Objects)
		if page.Next == "" {
			break
		}
		if want := int64(25 - total); page.Remaining != want {
			t.Errorf("%d remain, want %d", page.Remaining, want)
		}
		mustCreate(t, c, newPod("default", fmt.Sprintf("p%02d-new", total), "", "web"))
		o.StartAfter, o.Versions = page.Next, watch.Versions{Match: watch.Exact, Revision: page.Revision}
	}
	if total != 25 {
		t.Errorf("pages have %d objects", total)
	}
}

func TestFormsAreMadeOnceAndWithinTheBudget(t *testing.T) {
	c := newCache(t, newStore(t), watch.Options{Budget: watch.NewBudget(600)})
	made := 0
	form := watch.Encoding{Name: "test", Encode: func(context.Context, runtime.Object) ([]byte, error) {
		made++
		return make([]byte, 40), nil
	}}
	var objects []*watch.Object
	for i := range 4 {
		objects = append(objects, mustCreate(t, c, newPod("default", fmt.Sprintf("p%d", i), "", "web")))
	}
	for range 3 {
		if _, err := objects[0].Encoded(t.Context(), form); err != nil {
			t.Fatal(err)
		}
	}
	if made != 1 {
		t.Errorf("form was made %d times", made)
	}
	for _, object := range objects {
		if _, err := object.Encoded(t.Context(), form); err != nil {
			t.Fatal(err)
		}
	}
	before := made
	for _, object := range objects {
		if _, err := object.Encoded(t.Context(), form); err != nil {
			t.Fatal(err)
		}
	}
	if made == before {
		t.Error("four forms stayed in a budget for two")
	}
}

func TestCacheOfAStoreThatWasReopened(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	store, err := bolt.Open(bolt.Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	c := newCache(t, store, watch.Options{})
	object := mustCreate(t, c, newPod("default", "a", "n1", "web"))
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	if store, err = bolt.Open(bolt.Options{Path: path}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	again, err := newCache(t, store, watch.Options{}).Get(t.Context(), "default", "a", watch.Versions{})
	if err != nil || again.Revision != object.Revision || !bytes.Equal(again.Wire(), object.Wire()) {
		t.Errorf("got %+v, %v", again, err)
	}
}
