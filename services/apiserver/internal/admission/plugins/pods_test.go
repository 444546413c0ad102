package plugins_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
)

func quantities(pairs ...string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		list[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return list
}

func TestLimitRangerFillsInDefaults(t *testing.T) {
	state := newState()
	state.Put(corev1.Resource("limitranges"), &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "l"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{
		{Type: corev1.LimitTypeContainer, Default: quantities("cpu", "500m", "memory", "1Gi"), DefaultRequest: quantities("cpu", "100m")},
	}}})
	pod := newPod(func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Limits = quantities("cpu", "2") })
	if err := run(t.Context(), only(t, state, "LimitRanger"), write(admission.Create, "pods", pod, nil)); err != nil {
		t.Fatal(err)
	}
	a := pod.Spec.Containers[0].Resources
	if a.Limits.Cpu().String() != "2" || a.Limits.Memory().String() != "1Gi" || a.Requests.Cpu().String() != "100m" {
		t.Errorf("resources %+v", a)
	}
	const want = "LimitRanger plugin set: cpu request for init container i; cpu, memory limit for init container i; " +
		"cpu request for container a; memory limit for container a; cpu request for container b; cpu, memory limit for container b"
	if got := pod.Annotations["kubernetes.io/limit-ranger"]; got != want {
		t.Errorf("annotation %q", got)
	}
}

func TestLimitRangerKeepsPodsWithinBounds(t *testing.T) {
	for name, c := range map[string]struct {
		item             corev1.LimitRangeItem
		requests, limits corev1.ResourceList
		refusal          string
	}{
		"within": {corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, Min: quantities("cpu", "100m"), Max: quantities("cpu", "1")}, quantities("cpu", "200m"), quantities("cpu", "1"), ""},
		"no request": {corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, Min: quantities("cpu", "100m")}, nil, nil,
			"minimum cpu usage per Container is 100m.  No request is specified"},
		"small request": {corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, Min: quantities("cpu", "100m")}, quantities("cpu", "50m"), nil,
			"minimum cpu usage per Container is 100m, but request is 50m"},
		"no limit": {corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, Max: quantities("memory", "1Gi")}, quantities("memory", "1Gi"), nil,
			"maximum memory usage per Container is 1Gi.  No limit is specified"},
		"large limit": {corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, Max: quantities("memory", "1Gi")}, nil, quantities("memory", "2Gi"),
			"maximum memory usage per Container is 1Gi, but limit is 2Gi"},
		"ratio": {corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, MaxLimitRequestRatio: quantities("cpu", "2")}, quantities("cpu", "100m"), quantities("cpu", "300m"),
			"cpu max limit to request ratio per Container is 2, but provided ratio is 3.000000"},
		"pod as a whole": {corev1.LimitRangeItem{Type: corev1.LimitTypePod, Max: quantities("cpu", "1")}, nil, quantities("cpu", "600m"),
			"maximum cpu usage per Pod is 1, but limit is 1200m"},
	} {
		t.Run(name, func(t *testing.T) {
			state := newState()
			state.Put(corev1.Resource("limitranges"), &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "l"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{c.item}}})
			chain := only(t, state, "LimitRanger")
			pod := newPod(func(p *corev1.Pod) {
				p.Spec.InitContainers = nil
				for i := range p.Spec.Containers {
					p.Spec.Containers[i].Resources = corev1.ResourceRequirements{Requests: c.requests, Limits: c.limits}
				}
			})
			err := run(t.Context(), chain, write(admission.Create, "pods", pod, nil))
			if c.refusal == "" && err != nil {
				t.Error(err)
			}
			if c.refusal != "" {
				assertRefused(t, err, c.refusal)
			}
			if err := run(t.Context(), chain, write(admission.Update, "pods", pod, pod)); err != nil {
				t.Errorf("an existing pod cannot be updated: %v", err)
			}
		})
	}
}

func TestImagesAreAlwaysPulled(t *testing.T) {
	chain := only(t, newState(), "AlwaysPullImages")
	pod := newPod(func(p *corev1.Pod) { p.Spec.Containers[0].ImagePullPolicy = corev1.PullNever })
	if err := run(t.Context(), chain, write(admission.Create, "pods", pod, nil)); err != nil {
		t.Fatal(err)
	}
	if pod.Spec.Containers[0].ImagePullPolicy != corev1.PullAlways || pod.Spec.InitContainers[0].ImagePullPolicy != corev1.PullAlways {
		t.Errorf("spec %+v", pod.Spec)
	}
	assertRefused(t, chain.Validate(t.Context(), write(admission.Create, "pods", newPod(), nil)), "imagePullPolicy must be Always")
}

func TestPodsWithDevicesTolerateDeviceNodes(t *testing.T) {
	chain := only(t, newState(), "ExtendedResourceToleration")
	pod := newPod(func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = quantities("example.com/gpu", "1", "cpu", "1", "hugepages-2Mi", "2Mi", "requests.example.com/x", "1")
		p.Spec.Containers[1].Resources.Requests = quantities("example.com/gpu", "1")
	})
	for range 2 {
		if err := run(t.Context(), chain, write(admission.Create, "pods", pod, nil)); err != nil {
			t.Fatal(err)
		}
	}
	if len(pod.Spec.Tolerations) != 1 || pod.Spec.Tolerations[0].Key != "example.com/gpu" {
		t.Errorf("tolerations %+v", pod.Spec.Tolerations)
	}
}

func TestRuntimeClassSaysWhatAPodCosts(t *testing.T) {
	state := newState()
	state.Put(nodev1.Resource("runtimeclasses"), &nodev1.RuntimeClass{
		ObjectMeta: metav1.ObjectMeta{Name: "vm"}, Overhead: &nodev1.Overhead{PodFixed: quantities("memory", "64Mi")},
		Scheduling: &nodev1.Scheduling{NodeSelector: map[string]string{"vm": "yes"}, Tolerations: []corev1.Toleration{{Key: "vm", Operator: corev1.TolerationOpExists}}},
	})
	chain := only(t, state, "RuntimeClass")
	inVM := func(p *corev1.Pod) { p.Spec.RuntimeClassName = new("vm") }
	pod := newPod(inVM)
	if err := run(t.Context(), chain, write(admission.Create, "pods", pod, nil)); err != nil {
		t.Fatal(err)
	}
	if pod.Spec.Overhead.Memory().String() != "64Mi" || pod.Spec.NodeSelector["vm"] != "yes" || len(pod.Spec.Tolerations) != 1 {
		t.Errorf("spec %+v", pod.Spec)
	}
	for refusal, change := range map[string]func(*corev1.Pod){
		`RuntimeClass "absent" not found`:          func(p *corev1.Pod) { p.Spec.RuntimeClassName = new("absent") },
		"doesn't match RuntimeClass's":             func(p *corev1.Pod) { inVM(p); p.Spec.Overhead = quantities("memory", "1Mi") },
		"without corresponding RuntimeClass":       func(p *corev1.Pod) { p.Spec.Overhead = quantities("memory", "1Mi") },
		"conflict: runtimeClass.scheduling.nodeSe": func(p *corev1.Pod) { inVM(p); p.Spec.NodeSelector = map[string]string{"vm": "no"} },
	} {
		assertRefused(t, run(t.Context(), chain, write(admission.Create, "pods", newPod(change), nil)), refusal)
	}
}
