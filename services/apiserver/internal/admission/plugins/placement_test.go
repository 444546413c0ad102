package plugins_test

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	imagepolicyv1alpha1 "k8s.io/api/imagepolicy/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/admission/plugins"
	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/statetest"
)

func annotated(state *statetest.State, name string, annotations map[string]string) {
	state.Put(corev1.Resource("namespaces"), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}})
}

func TestNamespaceExists(t *testing.T) {
	chain := only(t, newState(), "NamespaceExists")
	pod := newPod(func(p *corev1.Pod) { p.Namespace = "nowhere" })
	for _, operation := range []admission.Operation{admission.Create, admission.Delete} {
		a := write(operation, "pods", nil, pod)
		if operation == admission.Create {
			a = write(operation, "pods", pod, nil)
		}
		if err := run(t.Context(), chain, a); !apierrors.IsNotFound(err) {
			t.Errorf("%s: %v", operation, err)
		}
	}
	if err := run(t.Context(), chain, write(admission.Delete, "pods", nil, newPod())); err != nil {
		t.Errorf("in a namespace: %v", err)
	}
}

func TestNamespaceAutoProvision(t *testing.T) {
	state := newState()
	chain := only(t, state, "NamespaceAutoProvision", func(c *plugins.Config) { c.Writer = state })
	pod := newPod(func(p *corev1.Pod) { p.Namespace = "fresh" })
	dry := write(admission.Create, "pods", pod, nil)
	dry.DryRun = true
	if err := run(t.Context(), chain, dry); err != nil {
		t.Fatal(err)
	}
	if _, err := state.Get(t.Context(), corev1.Resource("namespaces"), "", "fresh"); !apierrors.IsNotFound(err) {
		t.Errorf("a dry run made the namespace: %v", err)
	}
	if err := run(t.Context(), chain, write(admission.Create, "pods", pod, nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := state.Get(t.Context(), corev1.Resource("namespaces"), "", "fresh"); err != nil {
		t.Errorf("the namespace: %v", err)
	}
}

func TestLimitPodHardAntiAffinityTopology(t *testing.T) {
	chain := only(t, newState(), "LimitPodHardAntiAffinityTopology")
	apart := func(topology string) *corev1.Pod {
		return newPod(func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: topology}}}}
		})
	}
	if err := run(t.Context(), chain, write(admission.Create, "pods", apart(corev1.LabelHostname), nil)); err != nil {
		t.Errorf("by host: %v", err)
	}
	assertRefused(t, run(t.Context(), chain, write(admission.Create, "pods", apart("zone"), nil)), "has TopologyKey zone but only key kubernetes.io/hostname is allowed")
}

func TestPodNodeSelector(t *testing.T) {
	state := newState()
	annotated(state, "blue", map[string]string{"scheduler.alpha.kubernetes.io/node-selector": "env=blue,disk=ssd"})
	chain := only(t, state, "PodNodeSelector", func(c *plugins.Config) {
		c.Configurations.PodNodeSelector = map[string]string{"clusterDefaultNodeSelector": "env=any", "blue": "env=blue,disk=ssd,gpu=no"}
	})
	pod := newPod(func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"gpu": "no"} })
	if err := run(t.Context(), chain, write(admission.Create, "pods", pod, nil)); err != nil || !maps.Equal(pod.Spec.NodeSelector, map[string]string{"env": "blue", "disk": "ssd", "gpu": "no"}) {
		t.Errorf("merged: %v, %v", pod.Spec.NodeSelector, err)
	}
	assertRefused(t, run(t.Context(), chain, write(admission.Create, "pods", newPod(func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"env": "red"} }), nil)),
		"conflicts with its namespace node label selector")
	assertRefused(t, run(t.Context(), chain, write(admission.Create, "pods", newPod(func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"other": "x"} }), nil)),
		"conflict with its namespace whitelist")
	elsewhere := newPod(func(p *corev1.Pod) { p.Namespace = "default" })
	if err := run(t.Context(), chain, write(admission.Create, "pods", elsewhere, nil)); err != nil || elsewhere.Spec.NodeSelector["env"] != "any" {
		t.Errorf("by default: %v, %v", elsewhere.Spec.NodeSelector, err)
	}
}

func TestPodTolerationRestriction(t *testing.T) {
	state := newState()
	annotated(state, "blue", map[string]string{
		"scheduler.alpha.kubernetes.io/defaultTolerations":   `[{"key":"team","operator":"Equal","value":"blue","effect":"NoSchedule"}]`,
		"scheduler.alpha.kubernetes.io/tolerationsWhitelist": `[{"key":"team","operator":"Exists"},{"key":"node.kubernetes.io/memory-pressure","operator":"Exists"}]`,
	})
	chain := only(t, state, "PodTolerationRestriction")
	pod := newPod(func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
	})
	if err := run(t.Context(), chain, write(admission.Create, "pods", pod, nil)); err != nil {
		t.Fatal(err)
	}
	if got := pod.Spec.Tolerations; len(got) != 2 || got[0].Value != "blue" || got[1].Key != corev1.TaintNodeMemoryPressure {
		t.Errorf("tolerations %+v", got)
	}
	// A wider toleration of the pod's own takes the default's place.
	wide := newPod(func(p *corev1.Pod) {
		p.Spec.Tolerations = []corev1.Toleration{{Key: "team", Operator: corev1.TolerationOpExists}}
	})
	if err := run(t.Context(), chain, write(admission.Create, "pods", wide, nil)); err != nil || len(wide.Spec.Tolerations) != 1 {
		t.Errorf("wide: %+v, %v", wide.Spec.Tolerations, err)
	}
	all := newPod(func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} })
	assertRefused(t, run(t.Context(), chain, write(admission.Create, "pods", all, nil)), "conflict with its namespace whitelist")
}

func TestEventRateLimit(t *testing.T) {
	chain := only(t, newState(), "EventRateLimit", func(c *plugins.Config) {
		c.Configurations.EventRateLimit = []plugins.EventLimit{{Type: "Namespace", QPS: 1, Burst: 2}, {Type: "User", QPS: 1, Burst: 3}}
	})
	event := func(namespace, user string) error {
		a := write(admission.Create, "events", &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "e"}}, nil)
		a.User = &authn.User{Name: user}
		return chain.Validate(t.Context(), a)
	}
	for n, want := range []bool{true, true, false} {
		if err := event("blue", "alice"); (err == nil) != want || err != nil && !apierrors.IsTooManyRequests(err) {
			t.Errorf("event %d: %v", n, err)
		}
	}
	if err := event("default", "alice"); !apierrors.IsTooManyRequests(err) || !strings.Contains(err.Error(), "limit reached on type User for key alice") {
		t.Errorf("the user's fourth: %v", err)
	}
	newer := write(admission.Create, "events.events.k8s.io", &eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "e"}}, nil)
	newer.User = &authn.User{Name: "bob"}
	if err := chain.Validate(t.Context(), newer); !apierrors.IsTooManyRequests(err) {
		t.Errorf("an event of the newer kind: %v", err)
	}
}

func TestPodTopologyLabels(t *testing.T) {
	state := newState()
	state.Put(corev1.Resource("nodes"), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{
		corev1.LabelTopologyZone: "z", corev1.LabelTopologyRegion: "r", "other": "x",
	}}})
	chain := only(t, state, "PodTopologyLabels")
	binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "p", Labels: map[string]string{corev1.LabelTopologyZone: "mine"}}, Target: corev1.ObjectReference{Kind: "Node", Name: "n"}}
	if err := run(t.Context(), chain, write(admission.Create, "pods/binding", binding, nil)); err != nil || binding.Labels[corev1.LabelTopologyRegion] != "r" || binding.Labels[corev1.LabelTopologyZone] != "mine" || len(binding.Labels) != 2 {
		t.Errorf("binding: %v, %v", binding.Labels, err)
	}
	pod := newPod(func(p *corev1.Pod) { p.Spec.NodeName = "n" })
	if err := run(t.Context(), chain, write(admission.Create, "pods", pod, nil)); err != nil || pod.Labels[corev1.LabelTopologyZone] != "z" {
		t.Errorf("pod: %v, %v", pod.Labels, err)
	}
	if err := run(t.Context(), chain, write(admission.Create, "pods", newPod(func(p *corev1.Pod) { p.Spec.NodeName = "unknown" }), nil)); err != nil {
		t.Errorf("on an unknown node: %v", err)
	}
}

func TestPodResizeValidator(t *testing.T) {
	state := newState()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{corev1.LabelOSStable: "linux"}}}
	node.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("1Gi")}
	state.Put(corev1.Resource("nodes"), node)
	other := node.DeepCopy()
	other.Name, other.Labels = "w", map[string]string{corev1.LabelOSStable: "windows"}
	state.Put(corev1.Resource("nodes"), other)
	chain := only(t, state, "PodResizeValidator")
	sized := func(node, cpu string) *corev1.Pod {
		return newPod(func(p *corev1.Pod) {
			p.Spec.NodeName = node
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
		})
	}
	if err := run(t.Context(), chain, write(admission.Update, "pods/resize", sized("n", "2"), sized("n", "1"))); err != nil {
		t.Errorf("within the node: %v", err)
	}
	assertRefused(t, run(t.Context(), chain, write(admission.Update, "pods/resize", sized("n", "3"), sized("n", "1"))), "cpu, requested: 3000, allocatable: 2000")
	assertRefused(t, run(t.Context(), chain, write(admission.Update, "pods/resize", sized("w", "2"), sized("w", "1"))), `only supported on linux nodes, node "w" is "windows"`)
	if err := run(t.Context(), chain, write(admission.Update, "pods", sized("n", "3"), sized("n", "1"))); err != nil {
		t.Errorf("not a resize: %v", err)
	}
}

func TestImagePolicyWebhook(t *testing.T) {
	var asked, broken atomic.Int32
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if broken.Load() > 0 {
			http.Error(w, "no", http.StatusBadRequest)
			return
		}
		var review imagepolicyv1alpha1.ImageReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Errorf("review: %v", err)
		}
		review.Status.Allowed = true
		for _, container := range review.Spec.Containers {
			if container.Image == "bad" {
				review.Status = imagepolicyv1alpha1.ImageReviewStatus{Reason: "it is bad"}
			}
		}
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(service.Close)
	policy := &plugins.ImagePolicy{Client: &rest.Config{Host: service.URL}, AllowTTL: time.Minute, DenyTTL: time.Minute, RetryBackoff: time.Millisecond}
	chain := only(t, newState(), "ImagePolicyWebhook", func(c *plugins.Config) { c.Configurations.ImagePolicyWebhook = policy })
	try := func(image string) error {
		pod := newPod(func(p *corev1.Pod) { p.Spec.Containers[1].Image = image })
		return run(context.WithoutCancel(t.Context()), chain, write(admission.Create, "pods", pod, nil))
	}
	for range 2 {
		if err := try("good"); err != nil {
			t.Errorf("a good image: %v", err)
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the service was asked %d times for the same images", n)
	}
	assertRefused(t, try("bad"), "image policy webhook backend denied one or more images: it is bad")
	broken.Store(1)
	assertRefused(t, try("new"), "error contacting webhook: 400")
	policy.AllowOnUnreachable = true
	if err := try("new"); err != nil {
		t.Errorf("open when it fails: %v", err)
	}
}

func TestConfigurationFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "events.yaml"), []byte("apiVersion: eventratelimit.admission.k8s.io/v1alpha1\nkind: Configuration\nlimits: [{type: Server, qps: 5, burst: 7}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	load := func(sections string) (plugins.Configurations, error) {
		path := filepath.Join(dir, "admission.yaml")
		if err := os.WriteFile(path, []byte("apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n"+sections), 0o600); err != nil {
			t.Fatal(err)
		}
		return plugins.LoadConfigurations(path)
	}
	c, err := load(`
- name: EventRateLimit
  path: events.yaml
- name: PodNodeSelector
  configuration: {podNodeSelectorPluginConfig: {clusterDefaultNodeSelector: "a=b"}}
- name: PodTolerationRestriction
  configuration: {apiVersion: podtolerationrestriction.admission.k8s.io/v1alpha1, kind: Configuration, default: [{key: a, operator: Exists}]}
- name: PodSecurity
  configuration: {apiVersion: pod-security.admission.config.k8s.io/v1, kind: PodSecurityConfiguration, defaults: {enforce: restricted}}
- name: Priority
`)
	if err != nil || len(c.EventRateLimit) != 1 || c.EventRateLimit[0].Burst != 7 || c.PodNodeSelector["clusterDefaultNodeSelector"] != "a=b" ||
		len(c.PodTolerationRestriction.Default) != 1 || c.PodSecurity == nil || c.PodSecurity.Defaults.Enforce != "restricted" {
		t.Errorf("%+v, %v", c, err)
	}
	for sections, want := range map[string]string{
		"- name: Nonsense\n":                                                    `no such plugin`,
		"- name: Priority\n  configuration: {a: b}\n":                           "takes no configuration",
		"- name: EventRateLimit\n  path: missing.yaml\n":                        "missing.yaml",
		"- name: EventRateLimit\n  path: events.yaml\n- name: EventRateLimit\n": "configured twice",
		"- name: EventRateLimit\n  configuration: {apiVersion: eventratelimit.admission.k8s.io/v1alpha1, kind: Configuration, limits: [{type: Moon, qps: 1, burst: 1}]}\n": `"Moon"`,
		"- name: PodNodeSelector\n  configuration: {podNodeSelectorPluginConfig: {a: \"b in (c)\"}}\n":                                                                     "podNodeSelectorPluginConfig.a",
		"- name: ResourceQuota\n  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: Configuration}\n":                                                          "ResourceQuotaConfiguration",
		"- name: PodTolerationRestriction\n  configuration: {apiVersion: podtolerationrestriction.admission.k8s.io/v1alpha1, kind: Configuration, defaults: []}\n":         `unknown field "defaults"`,
	} {
		if _, err := load(sections); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", sections, err, want)
		}
	}
}

func TestAlwaysDeny(t *testing.T) {
	assertRefused(t, run(t.Context(), only(t, newState(), "AlwaysDeny"), write(admission.Create, "pods", newPod(), nil)), "admission control is denying all modifications")
}
