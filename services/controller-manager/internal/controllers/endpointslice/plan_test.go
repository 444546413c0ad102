package endpointslice

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"
)

func newService(change func(*corev1.Service)) *corev1.Service {
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "svc", Labels: map[string]string{"team": "a"}},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "web"}, ClusterIP: "10.96.0.5", IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(8080)}},
		},
	}
	if change != nil {
		change(service)
	}
	return service
}

func newPod(i int, change func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("p", i), UID: types.UID(fmt.Sprint("u", i))},
		Spec:       corev1.PodSpec{NodeName: "n"},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: fmt.Sprintf("10.244.%d.%d", i/250, i%250), PodIPs: []corev1.PodIP{{IP: fmt.Sprintf("10.244.%d.%d", i/250, i%250)}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
	if change != nil {
		change(pod)
	}
	return pod
}

func zoned(string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{corev1.LabelTopologyZone: "z"}}}
}

func unready(pod *corev1.Pod) { pod.Status.Conditions = nil }

func terminating(pod *corev1.Pod) {
	now := metav1.Now()
	pod.DeletionTimestamp = &now
}

func TestEndpointConditions(t *testing.T) {
	for name, c := range map[string]struct {
		pod                         func(*corev1.Pod)
		service                     func(*corev1.Service)
		ready, serving, terminating bool
	}{
		"ready":                     {ready: true, serving: true},
		"unready":                   {pod: unready},
		"unready, but published":    {pod: unready, service: func(s *corev1.Service) { s.Spec.PublishNotReadyAddresses = true }, ready: true},
		"terminating, still serves": {pod: terminating, serving: true, terminating: true},
	} {
		t.Run(name, func(t *testing.T) {
			got := decide(state{service: newService(c.service), pods: []*corev1.Pod{newPod(1, c.pod)}, node: zoned, limit: 100})
			if len(got.create) != 1 || len(got.create[0].Endpoints) != 1 {
				t.Fatalf("plan is %+v", got)
			}
			e := got.create[0].Endpoints[0]
			if *e.Conditions.Ready != c.ready || *e.Conditions.Serving != c.serving || *e.Conditions.Terminating != c.terminating {
				t.Errorf("ready %t, serving %t, terminating %t", *e.Conditions.Ready, *e.Conditions.Serving, *e.Conditions.Terminating)
			}
			if *e.NodeName != "n" || *e.Zone != "z" || e.TargetRef.UID != "u1" || e.Addresses[0] != "10.244.0.1" {
				t.Errorf("endpoint is %+v", e)
			}
		})
	}
}

func TestEndpointSliceLabelsPortsAndOwner(t *testing.T) {
	headless := newService(func(s *corev1.Service) {
		s.Spec.ClusterIP = corev1.ClusterIPNone
		s.Spec.Ports[0].TargetPort = intstr.FromString("web")
	})
	pod := newPod(1, func(pod *corev1.Pod) {
		pod.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 9090}}}}
		pod.Spec.Hostname, pod.Spec.Subdomain = "one", "web"
	})
	trigger := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	slice := decide(state{service: headless, pods: []*corev1.Pod{pod}, node: zoned, limit: 100, trigger: trigger}).create[0]
	want := map[string]string{"team": "a", "kubernetes.io/service-name": "web", "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io", "service.kubernetes.io/headless": ""}
	if fmt.Sprint(slice.Labels) != fmt.Sprint(want) || slice.GenerateName != "web-" || !metav1.IsControlledBy(slice, headless) {
		t.Errorf("slice is %+v", slice.ObjectMeta)
	}
	if *slice.Ports[0].Port != 9090 || *slice.Ports[0].Name != "http" || *slice.Endpoints[0].Hostname != "one" {
		t.Errorf("ports %+v, endpoints %+v", slice.Ports, slice.Endpoints)
	}
	if got := slice.Annotations[corev1.EndpointsLastChangeTriggerTime]; got != "2026-01-02T03:04:05Z" {
		t.Errorf("trigger time is %q", got)
	}
}

func TestEndpointSliceStandsWithoutPods(t *testing.T) {
	got := decide(state{service: newService(nil), node: zoned, limit: 100})
	if len(got.create) != 1 || len(got.create[0].Endpoints) != 0 || got.create[0].AddressType != discoveryv1.AddressTypeIPv4 {
		t.Errorf("plan is %+v", got)
	}
}

func TestEndpointSliceLeavesOutPodsOfUnknownNodesAndEndedOnes(t *testing.T) {
	ended := newPod(2, func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed })
	got := decide(state{service: newService(nil), pods: []*corev1.Pod{newPod(1, nil), ended}, node: func(string) *corev1.Node { return nil }, limit: 100})
	if !slices.Equal(got.homeless, []string{"p1"}) || len(got.create[0].Endpoints) != 0 {
		t.Errorf("plan is %+v", got)
	}
}

func TestEndpointSlicesOfOneStepKeepOthersUntouched(t *testing.T) {
	var pods []*corev1.Pod
	for i := range 250 {
		pods = append(pods, newPod(i, nil))
	}
	w := &world{service: newService(nil), limit: 100}
	w.apply(decide(w.state(pods)))
	if len(w.slices) != 3 {
		t.Fatalf("250 endpoints in %d slices", len(w.slices))
	}
	unready(pods[7])
	got := decide(w.state(pods))
	if len(got.update) != 1 || len(got.create)+len(got.remove) != 0 {
		t.Errorf("one pod turned unready: %d updates, %d creates, %d removals", len(got.update), len(got.create), len(got.remove))
	}
}

// world carries out plans as the API would.
type world struct {
	service *corev1.Service
	slices  []*discoveryv1.EndpointSlice
	limit   int
	serial  int
}

func (w *world) state(pods []*corev1.Pod) state {
	return state{service: w.service, pods: pods, node: zoned, slices: w.slices, limit: w.limit}
}

func (w *world) apply(p plan) {
	for _, slice := range p.create {
		w.serial++
		made := slice.DeepCopy()
		made.Name, made.UID = fmt.Sprint(made.GenerateName, w.serial), types.UID(fmt.Sprint(w.serial))
		w.slices = append(w.slices, made)
	}
	for _, slice := range p.update {
		at := slices.IndexFunc(w.slices, func(s *discoveryv1.EndpointSlice) bool { return s.Name == slice.Name })
		w.slices[at] = slice
	}
	for _, gone := range p.remove {
		w.slices = slices.DeleteFunc(w.slices, func(s *discoveryv1.EndpointSlice) bool { return s.Name == gone.Name })
	}
}

// TestEndpointSlicesConverge changes pods at random: after each plan, the slices
// must hold exactly the pods, none too full, and a second plan must be empty.
func TestEndpointSlicesConverge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{service: newService(nil), limit: 5}
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			var pods []*corev1.Pod
			for i := range 30 {
				switch rapid.IntRange(0, 3).Draw(t, "pod") {
				case 0, 1:
					pods = append(pods, newPod(i, nil))
				case 2:
					pods = append(pods, newPod(i, unready))
				}
			}
			w.apply(decide(w.state(pods)))
			found := map[string]bool{}
			for _, slice := range w.slices {
				if len(slice.Endpoints) > w.limit {
					t.Fatalf("slice %s has %d endpoints", slice.Name, len(slice.Endpoints))
				}
				for _, e := range slice.Endpoints {
					if found[e.TargetRef.Name] {
						t.Fatalf("pod %s is there twice", e.TargetRef.Name)
					}
					found[e.TargetRef.Name] = true
				}
			}
			if len(found) != len(pods) {
				t.Fatalf("%d endpoints for %d pods", len(found), len(pods))
			}
			if again := decide(w.state(pods)); len(again.create)+len(again.update)+len(again.remove) != 0 {
				t.Fatalf("a second look still wants %d creates, %d updates, %d removals", len(again.create), len(again.update), len(again.remove))
			}
		}
	})
}
