package handlers

import (
	"net/url"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

func TestConnectOptionsAreReadFromTheQuery(t *testing.T) {
	at := metav1.NewTime(time.Date(2026, 12, 1, 2, 3, 4, 0, time.UTC))
	for query, want := range map[string]runtime.Object{
		"command=sh&command=-c&command=a+b&stdin=true&stdout=1&stderr=false&tty=&container=c":                     &corev1.PodExecOptions{Command: []string{"sh", "-c", "a b"}, Stdin: true, Stdout: true, TTY: true, Container: "c"},
		"follow=true&tailLines=5&sinceTime=2026-12-01T02:03:04Z&limitBytes=10&stream=Stdout&previous=0&unknown=1": &corev1.PodLogOptions{Follow: true, TailLines: ptr.To(int64(5)), SinceTime: &at, LimitBytes: ptr.To(int64(10)), Stream: ptr.To("Stdout")},
		"stdout=true&container=c": &corev1.PodAttachOptions{Stdout: true, Container: "c"},
		"ports=80,81&ports=82":    &corev1.PodPortForwardOptions{Ports: []int32{80, 81, 82}},
		"path=/metrics":           &corev1.NodeProxyOptions{Path: "/metrics"},
	} {
		got := reflect.New(reflect.TypeOf(want).Elem()).Interface().(runtime.Object)
		values, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		if err := decodeConnectOptions(values, got); err != nil {
			t.Errorf("%s: %v", query, err)
			continue
		}
		got.GetObjectKind().SetGroupVersionKind(want.GetObjectKind().GroupVersionKind())
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", query, got, want)
		}
	}
}

func TestBadConnectOptionsAreRefused(t *testing.T) {
	for query, into := range map[string]runtime.Object{
		"tailLines=many":     &corev1.PodLogOptions{},
		"sinceTime=tomorrow": &corev1.PodLogOptions{},
		"ports=http":         &corev1.PodPortForwardOptions{},
	} {
		values, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		if err := decodeConnectOptions(values, into); err == nil {
			t.Errorf("%s was taken as %+v", query, into)
		}
	}
}
