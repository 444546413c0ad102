package conformance

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

var watchers = map[string]func(*testing.T){
	"should observe add, update, and delete watch notifications on configmaps":                         watchBySelector,
	"should be able to start watching from a specific resource version":                                watchFromVersion,
	"should be able to restart watching from the last resource version observed by the previous watch": watchAgain,
	"should observe an object deletion if it stops meeting the requirements of the selector":           watchLosesObject,
	"should receive events on concurrent watches in same order":                                        watchInOrder,
}

func configMap(name, test string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: testLabels(test)}}
}

func watchConfigMaps(t *testing.T, namespace string, options metav1.ListOptions) watch.Interface {
	t.Helper()
	w := got(client.CoreV1().ConfigMaps(namespace).Watch(t.Context(), options))(t)
	t.Cleanup(w.Stop)
	return w
}

func setData(t *testing.T, namespace, name, value string) *corev1.ConfigMap {
	t.Helper()
	api := client.CoreV1().ConfigMaps(namespace)
	read := got(api.Get(t.Context(), name, metav1.GetOptions{}))(t)
	read.Data = map[string]string{"mutation": value}
	return got(api.Update(t.Context(), read, metav1.UpdateOptions{}))(t)
}

func mutation(value string) func(watch.Event) bool {
	return func(event watch.Event) bool { return event.Object.(*corev1.ConfigMap).Data["mutation"] == value }
}

// assertQuiet fails if the watch has anything to say soon.
func assertQuiet(t *testing.T, w watch.Interface) {
	t.Helper()
	select {
	case event := <-w.ResultChan():
		t.Errorf("an event that was not expected: %s %v", event.Type, event.Object)
	case <-time.After(200 * time.Millisecond):
	}
}

func watchBySelector(t *testing.T) {
	namespace, a, b := newNamespace(t), unique("a"), unique("b")
	api := client.CoreV1().ConfigMaps(namespace)
	watchA, watchB := watchConfigMaps(t, namespace, labelled(a)), watchConfigMaps(t, namespace, labelled(b))
	both := watchConfigMaps(t, namespace, metav1.ListOptions{LabelSelector: fmt.Sprintf("test in (%s,%s)", a, b)})
	seen := func(own watch.Interface, kind watch.EventType, accept func(watch.Event) bool) {
		t.Helper()
		awaitEvent(t, own, kind, accept)
		awaitEvent(t, both, kind, accept)
	}
	got(api.Create(t.Context(), configMap("first", a), metav1.CreateOptions{}))(t)
	seen(watchA, watch.Added, nil)
	for _, value := range []string{"1", "2"} {
		setData(t, namespace, "first", value)
		seen(watchA, watch.Modified, mutation(value))
	}
	must(t, api.Delete(t.Context(), "first", metav1.DeleteOptions{}))
	seen(watchA, watch.Deleted, nil)
	assertQuiet(t, watchB)
	got(api.Create(t.Context(), configMap("second", b), metav1.CreateOptions{}))(t)
	seen(watchB, watch.Added, nil)
	must(t, api.Delete(t.Context(), "second", metav1.DeleteOptions{}))
	seen(watchB, watch.Deleted, nil)
	assertQuiet(t, watchA)
}

func watchFromVersion(t *testing.T) {
	namespace, test := newNamespace(t), unique("version")
	api := client.CoreV1().ConfigMaps(namespace)
	got(api.Create(t.Context(), configMap("one", test), metav1.CreateOptions{}))(t)
	first := setData(t, namespace, "one", "1")
	setData(t, namespace, "one", "2")
	must(t, api.Delete(t.Context(), "one", metav1.DeleteOptions{}))
	w := watchConfigMaps(t, namespace, metav1.ListOptions{LabelSelector: "test=" + test, ResourceVersion: first.ResourceVersion})
	event := <-w.ResultChan()
	if event.Type != watch.Modified || !mutation("2")(event) {
		t.Errorf("the first event is %s %v", event.Type, event.Object)
	}
	awaitEvent(t, w, watch.Deleted, mutation("2"))
}

func watchAgain(t *testing.T) {
	namespace, test := newNamespace(t), unique("again")
	api := client.CoreV1().ConfigMaps(namespace)
	w := watchConfigMaps(t, namespace, labelled(test))
	got(api.Create(t.Context(), configMap("one", test), metav1.CreateOptions{}))(t)
	setData(t, namespace, "one", "1")
	awaitEvent(t, w, watch.Added, nil)
	last := awaitEvent(t, w, watch.Modified, mutation("1")).Object.(*corev1.ConfigMap)
	w.Stop()
	setData(t, namespace, "one", "2")
	w = watchConfigMaps(t, namespace, metav1.ListOptions{LabelSelector: "test=" + test, ResourceVersion: last.ResourceVersion})
	must(t, api.Delete(t.Context(), "one", metav1.DeleteOptions{}))
	event := <-w.ResultChan()
	if event.Type != watch.Modified || !mutation("2")(event) {
		t.Errorf("the first event of the new watch is %s %v", event.Type, event.Object)
	}
	awaitEvent(t, w, watch.Deleted, nil)
}

func watchLosesObject(t *testing.T) {
	namespace, test := newNamespace(t), unique("loses")
	api := client.CoreV1().ConfigMaps(namespace)
	w := watchConfigMaps(t, namespace, labelled(test))
	relabel := func(value string) {
		t.Helper()
		read := got(api.Get(t.Context(), "one", metav1.GetOptions{}))(t)
		read.Labels = testLabels(value)
		got(api.Update(t.Context(), read, metav1.UpdateOptions{}))(t)
	}
	got(api.Create(t.Context(), configMap("one", test), metav1.CreateOptions{}))(t)
	awaitEvent(t, w, watch.Added, nil)
	setData(t, namespace, "one", "1")
	awaitEvent(t, w, watch.Modified, mutation("1"))
	relabel("other")
	awaitEvent(t, w, watch.Deleted, mutation("1"))
	setData(t, namespace, "one", "2")
	assertQuiet(t, w)
	relabel(test)
	awaitEvent(t, w, watch.Added, mutation("2"))
	setData(t, namespace, "one", "3")
	awaitEvent(t, w, watch.Modified, mutation("3"))
	must(t, api.Delete(t.Context(), "one", metav1.DeleteOptions{}))
	awaitEvent(t, w, watch.Deleted, mutation("3"))
}

// watchInOrder starts a watch at every event of a stream of changes, and
// compares what all of them see.
func watchInOrder(t *testing.T) {
	const changes = 100
	namespace, test := newNamespace(t), unique("order")
	api := client.CoreV1().ConfigMaps(namespace)
	start := got(api.List(t.Context(), metav1.ListOptions{}))(t).ResourceVersion
	failed := make(chan error, 1)
	go func() {
		for i := range changes {
			name := fmt.Sprint("order-", i%5)
			err := api.Delete(t.Context(), name, metav1.DeleteOptions{})
			if err == nil || gone(err) {
				_, err = api.Create(t.Context(), configMap(name, test), metav1.CreateOptions{})
			}
			if err != nil {
				failed <- err
				return
			}
		}
		failed <- nil
	}()
	first := watchConfigMaps(t, namespace, metav1.ListOptions{LabelSelector: "test=" + test, ResourceVersion: start})
	var seen []string
	var others []watch.Interface
	for added := 0; added < changes; {
		event := <-first.ResultChan()
		object := event.Object.(*corev1.ConfigMap)
		seen = append(seen, object.ResourceVersion)
		if event.Type == watch.Added {
			added++
		}
		if len(seen) <= 20 {
			others = append(others, watchConfigMaps(t, namespace, metav1.ListOptions{LabelSelector: "test=" + test, ResourceVersion: object.ResourceVersion}))
		}
	}
	must(t, <-failed)
	for i, other := range others {
		for j := i + 1; j < len(seen); j++ {
			event := <-other.ResultChan()
			if version := event.Object.(*corev1.ConfigMap).ResourceVersion; version != seen[j] {
				t.Fatalf("watch %d sees version %s at place %d where the first saw %s", i, version, j, seen[j])
			}
		}
	}
}
