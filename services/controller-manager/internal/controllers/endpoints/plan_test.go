package endpoints

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func newPod(i int, ready bool) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("p", i)}}
	pod.Status.PodIP = fmt.Sprintf("10.%d.%d.%d", i/65536, i/256%256, i%256)
	if ready {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	return pod
}

func newService() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, ClusterIP: "10.96.0.9",
			Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}}},
	}
}

func TestEndpointsSplitReadyAndNotReady(t *testing.T) {
	terminating := newPod(3, true)
	now := metav1.Now()
	terminating.DeletionTimestamp = &now
	got, change := decide(newService(), []*corev1.Pod{newPod(1, true), newPod(2, false), terminating}, nil, time.Time{})
	if !change || len(got.Subsets) != 1 {
		t.Fatalf("endpoints are %+v", got)
	}
	s := got.Subsets[0]
	if len(s.Addresses) != 1 || s.Addresses[0].IP != "10.0.0.1" || len(s.NotReadyAddresses) != 1 || s.NotReadyAddresses[0].IP != "10.0.0.2" || s.Ports[0].Port != 8080 {
		t.Errorf("subset is %+v", s)
	}
	if again, change := decide(newService(), []*corev1.Pod{newPod(1, true), newPod(2, false)}, got, time.Now()); change {
		t.Errorf("nothing changed, yet they are written: %+v", again)
	}
}

func TestEndpointsOverCapacityAreCutAndSaySo(t *testing.T) {
	var pods []*corev1.Pod
	for i := range 1500 {
		pods = append(pods, newPod(i+1, i%2 == 0))
	}
	got, _ := decide(newService(), pods, nil, time.Time{})
	ready, rest := len(got.Subsets[0].Addresses), len(got.Subsets[0].NotReadyAddresses)
	if ready != 750 || rest != 250 || got.Annotations[corev1.EndpointsOverCapacity] != "truncated" {
		t.Errorf("%d ready and %d others are kept, annotations %v", ready, rest, got.Annotations)
	}
	got, _ = decide(newService(), pods[:10], got, time.Time{})
	if _, over := got.Annotations[corev1.EndpointsOverCapacity]; over {
		t.Error("ten endpoints are still called over capacity")
	}
}
