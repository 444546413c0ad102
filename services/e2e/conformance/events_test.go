package conformance

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var eventsAPI = map[string]func(*testing.T){
	"should ensure that an event can be fetched, patched, deleted, and listed": newEventLifecycle,
	"should delete a collection of events":                                     newEventCollection,
}

var coreEvents = map[string]func(*testing.T){
	"should manage the lifecycle of an event": coreEventLifecycle,
	"should delete a collection of events":    coreEventCollection,
}

func newEvent(namespace, name, test string) *eventsv1.Event {
	return &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: testLabels(test)}, Regarding: corev1.ObjectReference{Namespace: namespace},
		EventTime: metav1.MicroTime{Time: time.Unix(1505828956, 0)}, Note: "This is " + name, Action: "Do", Reason: "Test", Type: "Normal",
		ReportingController: "test-controller", ReportingInstance: "test-node",
	}
}

func newEventLifecycle(t *testing.T) {
	namespace, test := newNamespace(t), unique("event")
	api := client.EventsV1().Events(namespace)
	made := got(api.Create(t.Context(), newEvent(namespace, "event-test", test), metav1.CreateOptions{}))(t)
	for _, scope := range []string{namespace, ""} {
		list := got(client.EventsV1().Events(scope).List(t.Context(), labelled(test)))(t)
		if len(list.Items) != 1 || list.Items[0].UID != made.UID {
			t.Errorf("listing %q gives %d events", scope, len(list.Items))
		}
	}
	for _, selector := range []string{"reportingController=test-controller", "reason=Test,type=Normal"} {
		list := got(api.List(t.Context(), metav1.ListOptions{FieldSelector: selector}))(t)
		if len(list.Items) != 1 {
			t.Errorf("%s selects %d events", selector, len(list.Items))
		}
	}
	read := got(api.Get(t.Context(), "event-test", metav1.GetOptions{}))(t)
	read.Series = &eventsv1.EventSeries{Count: 2, LastObservedTime: metav1.MicroTime{Time: time.Unix(1505828951, 0)}}
	updated := got(api.Update(t.Context(), read, metav1.UpdateOptions{}))(t)
	if updated.Series == nil || updated.Series.Count != 2 {
		t.Errorf("series after the update is %+v", updated.Series)
	}
	patched := got(api.Patch(t.Context(), "event-test", types.StrategicMergePatchType, []byte(`{"series":{"count":100,"lastObservedTime":"2014-09-19T13:49:16.000000Z"}}`), metav1.PatchOptions{}))(t)
	if patched.Series.Count != 100 {
		t.Errorf("series after the patch is %+v", patched.Series)
	}
	must(t, api.Delete(t.Context(), "event-test", metav1.DeleteOptions{}))
	if list := got(api.List(t.Context(), labelled(test)))(t); len(list.Items) != 0 {
		t.Errorf("%d events are left", len(list.Items))
	}
}

func newEventCollection(t *testing.T) {
	namespace, test := newNamespace(t), unique("event")
	api := client.EventsV1().Events(namespace)
	for i := range 3 {
		got(api.Create(t.Context(), newEvent(namespace, fmt.Sprint("test-event-", i), test), metav1.CreateOptions{}))(t)
	}
	must(t, api.DeleteCollection(t.Context(), metav1.DeleteOptions{}, labelled(test)))
	if list := got(api.List(t.Context(), labelled(test)))(t); len(list.Items) != 0 {
		t.Errorf("%d events are left", len(list.Items))
	}
}

func coreEvent(namespace, name, test string) *corev1.Event {
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: testLabels(test)}, Message: "This is a test event", Reason: "Test", Type: "Normal", Count: 1,
		InvolvedObject: corev1.ObjectReference{Namespace: namespace}, Source: corev1.EventSource{Component: "test"},
	}
}

func coreEventLifecycle(t *testing.T) {
	namespace, test := newNamespace(t), unique("event")
	api := client.CoreV1().Events(namespace)
	made := got(api.Create(t.Context(), coreEvent(namespace, "event-test", test), metav1.CreateOptions{}))(t)
	if list := got(client.CoreV1().Events("").List(t.Context(), labelled(test)))(t); len(list.Items) != 1 {
		t.Errorf("listing all namespaces gives %d", len(list.Items))
	}
	patched := got(api.Patch(t.Context(), made.Name, types.StrategicMergePatchType, []byte(`{"message":"This is a test event - patched"}`), metav1.PatchOptions{}))(t)
	if read := got(api.Get(t.Context(), made.Name, metav1.GetOptions{}))(t); read.Message != patched.Message || read.Message != "This is a test event - patched" {
		t.Errorf("the message is %q", read.Message)
	}
	patched.Message = "updated"
	updated := got(api.Update(t.Context(), patched, metav1.UpdateOptions{}))(t)
	if updated.Message != "updated" {
		t.Errorf("the message after the update is %q", updated.Message)
	}
	must(t, api.Delete(t.Context(), made.Name, metav1.DeleteOptions{}))
	if list := got(api.List(t.Context(), labelled(test)))(t); len(list.Items) != 0 {
		t.Errorf("%d events are left", len(list.Items))
	}
}

func coreEventCollection(t *testing.T) {
	namespace, test := newNamespace(t), unique("event")
	api := client.CoreV1().Events(namespace)
	for i := range 3 {
		got(api.Create(t.Context(), coreEvent(namespace, fmt.Sprint("test-event-", i), test), metav1.CreateOptions{}))(t)
	}
	must(t, api.DeleteCollection(t.Context(), metav1.DeleteOptions{}, labelled(test)))
	if list := got(api.List(t.Context(), labelled(test)))(t); len(list.Items) != 0 {
		t.Errorf("%d events are left", len(list.Items))
	}
}
