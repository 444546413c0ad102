package conformance

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// image has a shell, tar and a web server.
	image = "localhost/sampan/demo:1"
	// patience bounds every wait for an effect.
	patience = time.Minute
)

// newNamespace makes a namespace of the test's own and deletes it at its end.
func newNamespace(t *testing.T) string {
	t.Helper()
	namespace, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "conformance-", Labels: map[string]string{"conformance": "true"}},
	}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := cluster.Kubectl("-n", namespace.Name, "get", "all,events", "-o", "wide")
			t.Log(out)
		}
		if err := client.CoreV1().Namespaces().Delete(context.WithoutCancel(t.Context()), namespace.Name, metav1.DeleteOptions{}); err != nil && !gone(err) {
			t.Error(err)
		}
	})
	eventually(t, "the namespace's default service account", func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().ServiceAccounts(namespace.Name).Get(ctx, "default", metav1.GetOptions{})
		return err == nil, nil
	})
	return namespace.Name
}

// unique is a name that no other test has.
func unique(prefix string) string { return prefix + "-" + rand.String(6) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// got is a value whose making must succeed: got(t)(f()).
func got[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		must(t, err)
		return value
	}
}

// eventually waits until the condition holds; an error ends the wait.
func eventually(t *testing.T, what string, condition func(context.Context) (bool, error)) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, patience, true, condition)
	if err != nil {
		t.Fatalf("waiting for %s: %v", what, err)
	}
}

// awaitEvent reads the watch until an event of the type arrives that is accepted.
func awaitEvent(t *testing.T, w watch.Interface, kind watch.EventType, accept func(watch.Event) bool) watch.Event {
	t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case event, open := <-w.ResultChan():
			if !open {
				t.Fatalf("the watch ended before %s", kind)
			}
			if event.Type == watch.Error {
				t.Fatalf("the watch failed: %v", event.Object)
			}
			if event.Type == kind && (accept == nil || accept(event)) {
				return event
			}
		case <-deadline:
			t.Fatalf("no event %s", kind)
		}
	}
}

// contains fails the test if the text lacks one of the parts.
func contains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q does not contain %q", text, part)
		}
	}
}

// labelled selects what one test made.
func labelled(value string) metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: "test=" + value}
}

func testLabels(value string) map[string]string { return map[string]string{"test": value} }

// mergePatch is a JSON merge patch that sets one label.
func labelPatch(key, value string) []byte {
	return fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, key, value)
}

func deleteAfter(t *testing.T, what string, remove func(context.Context) error) {
	t.Helper()
	t.Cleanup(func() {
		if err := remove(context.WithoutCancel(t.Context())); err != nil && !gone(err) {
			t.Errorf("deleting %s: %v", what, err)
		}
	})
}

// eventuallyCreates makes the pod as soon as it is admitted.
func eventuallyCreates(t *testing.T, namespace string, pod *corev1.Pod) {
	t.Helper()
	var last error
	eventually(t, "pod "+pod.Name+" to be admitted", func(ctx context.Context) (bool, error) {
		_, last = client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
		return last == nil, nil
	})
}
