package plugins_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/admission/plugins"
	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/statetest"
)

// newState has namespaces and what pods need in them.
func newState() *statetest.State {
	state := statetest.New()
	for _, name := range []string{"default", "kube-system", "blue"} {
		state.Put(corev1.Resource("namespaces"), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NamespaceStatus{Phase: corev1.NamespaceActive}})
		state.Put(corev1.Resource("serviceaccounts"), &corev1.ServiceAccount{
			ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "default"}, ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}},
		})
	}
	state.Put(corev1.Resource("namespaces"), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "going"}, Status: corev1.NamespaceStatus{Phase: corev1.NamespaceTerminating}})
	for name, value := range map[string]int32{"system-node-critical": 2000001000, "high": 1000} {
		state.Put(schedulingv1.Resource("priorityclasses"), &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value})
	}
	return state
}

func mustChain(t testing.TB, config plugins.Config) admission.Chain {
	t.Helper()
	chain, err := plugins.New(config)
	if err != nil {
		t.Fatal(err)
	}
	return chain
}

// only is the chain of one plugin.
func only(t testing.TB, state plugins.State, name string, change ...func(*plugins.Config)) admission.Chain {
	t.Helper()
	config := plugins.Config{State: state, Enable: []string{name}, APIAudiences: []string{"api"}}
	for _, other := range plugins.Names() {
		if other != name {
			config.Disable = append(config.Disable, other)
		}
	}
	for _, f := range change {
		f(&config)
	}
	return mustChain(t, config)
}

// run passes a write through the chain as the engine does.
func run(ctx context.Context, chain admission.Chain, a *admission.Attributes) error {
	if a.User == nil {
		a.User = &authn.User{Name: "alice"}
	}
	if err := chain.Admit(ctx, a); err != nil {
		return err
	}
	return chain.Validate(ctx, a)
}

// write is a write of obj to a resource ("pods", "pods/status", "leases.coordination.k8s.io").
func write(operation admission.Operation, resource string, obj, old registry.Object) *admission.Attributes {
	resource, subresource, _ := strings.Cut(resource, "/")
	gr := schema.ParseGroupResource(resource)
	a := &admission.Attributes{Operation: operation, Resource: gr.WithVersion("v1"), Subresource: subresource}
	if old != nil {
		a.OldObject, a.Namespace, a.Name = old, old.GetNamespace(), old.GetName()
	}
	if obj != nil {
		a.Object, a.Namespace, a.Name = obj, obj.GetNamespace(), obj.GetName()
	}
	return a
}

func newPod(change ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "p"}, Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "i"}}, Containers: []corev1.Container{{Name: "a"}, {Name: "b"}},
	}}
	for _, f := range change {
		f(pod)
	}
	return pod
}

func assertRefused(t *testing.T, err error, message string) {
	t.Helper()
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), message) {
		t.Errorf("got %v, want 403 with %q", err, message)
	}
}

func TestUnknownPluginsAreNamed(t *testing.T) {
	for _, config := range []plugins.Config{
		{Enable: []string{"PodPreset"}}, {Disable: []string{"nodeRestriction"}},
		{Enable: []string{"Priority"}, Disable: []string{"Priority"}},
	} {
		if _, err := plugins.New(config); err == nil {
			t.Errorf("%+v was accepted", config)
		} else if name := append(config.Enable, config.Disable...)[0]; !strings.Contains(err.Error(), name) {
			t.Errorf("%v does not name %s", err, name)
		}
	}
}

func TestPluginNamesAreUnique(t *testing.T) {
	names := slices.Sorted(slices.Values(plugins.Names()))
	if len(slices.Compact(slices.Clone(names))) != len(names) {
		t.Errorf("names %v", names)
	}
	for _, plugin := range mustChain(t, plugins.Config{State: newState()}) {
		if !slices.Contains(names, plugin.Name()) {
			t.Errorf("plugin %s is listed under another name", plugin.Name())
		}
		_, mutates := plugin.(admission.Mutator)
		_, validates := plugin.(admission.Validator)
		if !mutates && !validates {
			t.Errorf("plugin %s does nothing", plugin.Name())
		}
	}
}

// named is a plugin that only has a name.
type named string

func (n named) Name() string                     { return string(n) }
func (n named) Handles(admission.Operation) bool { return false }

// TestDocumentationListsThePlugins compares the table in docs/security.md.
func TestDocumentationListsThePlugins(t *testing.T) {
	page, err := os.ReadFile("../../../../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "<!-- plugins -->")
	table, _, _ = strings.Cut(table, "<!-- /plugins -->")
	var on []string
	configured := plugins.Configured{
		MutatingPolicies: named("MutatingAdmissionPolicy"), MutatingWebhooks: named("MutatingAdmissionWebhook"),
		ValidatingPolicies: named("ValidatingAdmissionPolicy"), ValidatingWebhooks: named("ValidatingAdmissionWebhook"),
	}
	for _, plugin := range mustChain(t, plugins.Config{State: newState(), Configured: configured}) {
		on = append(on, plugin.Name())
	}
	var want strings.Builder
	for _, name := range plugins.Names() {
		want.WriteString(name + map[bool]string{true: " yes\n", false: " no\n"}[slices.Contains(on, name)])
	}
	var have strings.Builder
	for line := range strings.Lines(table) {
		if cells := strings.Split(line, "|"); len(cells) > 3 && !strings.Contains(line, "---") && !strings.Contains(line, "| does |") {
			have.WriteString(strings.TrimSpace(cells[1]) + " " + strings.TrimSpace(cells[2]) + "\n")
		}
	}
	if have.String() != want.String() {
		t.Errorf("docs/security.md lists\n%swant\n%s", have.String(), want.String())
	}
}

func TestNamespaceLifecycle(t *testing.T) {
	chain := only(t, newState(), "NamespaceLifecycle")
	in := func(namespace string) *corev1.Pod {
		return newPod(func(p *corev1.Pod) { p.Namespace = namespace })
	}
	if err := run(t.Context(), chain, write(admission.Create, "pods", in("blue"), nil)); err != nil {
		t.Error(err)
	}
	if err := run(t.Context(), chain, write(admission.Create, "pods", in("absent"), nil)); !apierrors.IsNotFound(err) {
		t.Errorf("create in an absent namespace: %v", err)
	}
	err := run(t.Context(), chain, write(admission.Create, "pods", in("going"), nil))
	assertRefused(t, err, "because it is being terminated")
	if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		t.Error("the cause is missing")
	}
	if err := run(t.Context(), chain, write(admission.Update, "pods", in("going"), in("going"))); err != nil {
		t.Errorf("update in a terminating namespace: %v", err)
	}
	if err := run(t.Context(), chain, write(admission.Delete, "pods", nil, in("absent"))); err != nil {
		t.Errorf("delete in an absent namespace: %v", err)
	}
	for name, refused := range map[string]bool{"default": true, "kube-system": true, "blue": false} {
		err := run(t.Context(), chain, write(admission.Delete, "namespaces", nil, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
		if apierrors.IsForbidden(err) != refused {
			t.Errorf("delete namespace %s: %v", name, err)
		}
	}
}

func TestServiceAccountMountsTheToken(t *testing.T) {
	chain := only(t, newState(), "ServiceAccount")
	pod := newPod(func(p *corev1.Pod) {
		p.Spec.Containers[1].VolumeMounts = []corev1.VolumeMount{{Name: "own", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount"}}
	})
	if err := run(t.Context(), chain, write(admission.Create, "pods", pod, nil)); err != nil {
		t.Fatal(err)
	}
	if pod.Spec.ServiceAccountName != "default" || pod.Spec.DeprecatedServiceAccount != "default" || len(pod.Spec.ImagePullSecrets) != 1 {
		t.Errorf("spec %+v", pod.Spec)
	}
	if len(pod.Spec.Volumes) != 1 || !strings.HasPrefix(pod.Spec.Volumes[0].Name, "kube-api-access-") || len(pod.Spec.Volumes[0].Name) != len("kube-api-access-")+5 {
		t.Fatalf("volumes %+v", pod.Spec.Volumes)
	}
	source := pod.Spec.Volumes[0].Projected
	if *source.DefaultMode != 0o644 || len(source.Sources) != 3 || *source.Sources[0].ServiceAccountToken.ExpirationSeconds != 3607 ||
		source.Sources[1].ConfigMap.Name != "kube-root-ca.crt" || source.Sources[2].DownwardAPI.Items[0].FieldRef.FieldPath != "metadata.namespace" {
		t.Errorf("source %+v", source)
	}
	for _, c := range []corev1.Container{pod.Spec.InitContainers[0], pod.Spec.Containers[0]} {
		if len(c.VolumeMounts) != 1 || c.VolumeMounts[0].Name != pod.Spec.Volumes[0].Name || !c.VolumeMounts[0].ReadOnly {
			t.Errorf("mounts of %s: %+v", c.Name, c.VolumeMounts)
		}
	}
	if len(pod.Spec.Containers[1].VolumeMounts) != 1 {
		t.Error("a mount was added where the container has its own")
	}
	before := pod.DeepCopy()
	if err := run(t.Context(), chain, write(admission.Create, "pods", pod, nil)); err != nil || len(pod.Spec.Volumes) != len(before.Spec.Volumes) {
		t.Errorf("a second pass changed the pod: %v", err)
	}
}

func TestServiceAccountLeavesOutTheToken(t *testing.T) {
	state := newState()
	state.Put(corev1.Resource("serviceaccounts"), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "quiet"}, AutomountServiceAccountToken: new(false)})
	chain := only(t, state, "ServiceAccount")
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		want   int
	}{
		"by the pod":     {func(p *corev1.Pod) { p.Spec.AutomountServiceAccountToken = new(false) }, 0},
		"by the account": {func(p *corev1.Pod) { p.Spec.ServiceAccountName = "quiet" }, 0},
		"the pod against the count": {func(p *corev1.Pod) {
			p.Spec.ServiceAccountName, p.Spec.AutomountServiceAccountToken = "quiet", new(true)
		}, 1},
	} {
		pod := newPod(c.change)
		if err := run(t.Context(), chain, write(admission.Create, "pods", pod, nil)); err != nil {
			t.Fatal(err)
		}
		if len(pod.Spec.Volumes) != c.want {
			t.Errorf("%s: %d volumes, want %d", name, len(pod.Spec.Volumes), c.want)
		}
	}
}

func TestServiceAccountMustExist(t *testing.T) {
	chain := only(t, newState(), "ServiceAccount")
	err := run(t.Context(), chain, write(admission.Create, "pods", newPod(func(p *corev1.Pod) { p.Spec.ServiceAccountName = "absent" }), nil))
	assertRefused(t, err, "error looking up service account blue/absent")
}

func TestServiceAccountWaitsForTheDefaultOne(t *testing.T) {
	state := newState()
	chain := only(t, state, "ServiceAccount")
	asked := make(chan struct{})
	go func() {
		<-asked
		state.Put(corev1.Resource("serviceaccounts"), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "new", Name: "default"}})
	}()
	close(asked)
	pod := newPod(func(p *corev1.Pod) { p.Namespace = "new" })
	if err := run(t.Context(), chain, write(admission.Create, "pods", pod, nil)); err != nil {
		t.Error(err)
	}
	start := time.Now()
	never := newPod(func(p *corev1.Pod) { p.Namespace = "never" })
	assertRefused(t, run(t.Context(), chain, write(admission.Create, "pods", never, nil)), "error looking up service account never/default")
	if waited := time.Since(start); waited < time.Second || waited > 5*time.Second {
		t.Errorf("waited %v", waited)
	}
}

func TestMirrorPodsGetNothing(t *testing.T) {
	chain := only(t, newState(), "ServiceAccount")
	mirror := func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }
	pod := newPod(mirror)
	if err := run(t.Context(), chain, write(admission.Create, "pods", pod, nil)); err != nil || pod.Spec.ServiceAccountName != "" || len(pod.Spec.Volumes) > 0 {
		t.Errorf("%v, %+v", err, pod.Spec)
	}
	assertRefused(t, run(t.Context(), chain, write(admission.Create, "pods", newPod(mirror, func(p *corev1.Pod) { p.Spec.ServiceAccountName = "default" }), nil)), "service accounts")
	assertRefused(t, run(t.Context(), chain, write(admission.Create, "pods", newPod(mirror, func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}}}
	}), nil)), "secrets")
}

func TestPriorityComesFromTheClass(t *testing.T) {
	state := newState()
	chain := only(t, state, "Priority")
	assert := func(change func(*corev1.Pod), priority int32, class string) {
		t.Helper()
		pod := newPod(change)
		if err := run(t.Context(), chain, write(admission.Create, "pods", pod, nil)); err != nil {
			t.Fatal(err)
		}
		if pod.Spec.Priority == nil || *pod.Spec.Priority != priority || pod.Spec.PriorityClassName != class || *pod.Spec.PreemptionPolicy != corev1.PreemptLowerPriority {
			t.Errorf("spec %+v, want %d of %q", pod.Spec, priority, class)
		}
	}
	assert(func(*corev1.Pod) {}, 0, "")
	assert(func(p *corev1.Pod) { p.Spec.PriorityClassName = "high" }, 1000, "high")
	assert(func(p *corev1.Pod) { p.Spec.PriorityClassName, p.Spec.Priority = "high", new(int32(1000)) }, 1000, "high")
	assertRefused(t, run(t.Context(), chain, write(admission.Create, "pods", newPod(func(p *corev1.Pod) { p.Spec.PriorityClassName = "absent" }), nil)), "no PriorityClass with name absent was found")
	assertRefused(t, run(t.Context(), chain, write(admission.Create, "pods", newPod(func(p *corev1.Pod) { p.Spec.Priority = new(int32(7)) }), nil)), "the integer value of priority (7) must not be provided")
	assertRefused(t, run(t.Context(), chain, write(admission.Create, "pods", newPod(func(p *corev1.Pod) { p.Spec.PreemptionPolicy = new(corev1.PreemptNever) }), nil)), "the string value of PreemptionPolicy (Never)")

	class := func(name string, value int32) *schedulingv1.PriorityClass {
		return &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value, GlobalDefault: true}
	}
	first := class("usual", 5)
	if err := run(t.Context(), chain, write(admission.Create, "priorityclasses.scheduling.k8s.io", first, nil)); err != nil {
		t.Fatal(err)
	}
	state.Put(schedulingv1.Resource("priorityclasses"), first)
	assert(func(*corev1.Pod) {}, 5, "usual")
	assertRefused(t, run(t.Context(), chain, write(admission.Create, "priorityclasses.scheduling.k8s.io", class("second", 6), nil)), "already marked as default")
	if err := run(t.Context(), chain, write(admission.Update, "priorityclasses.scheduling.k8s.io", first, first)); err != nil {
		t.Error(err)
	}
}

func TestPriorityIsKeptOnUpdate(t *testing.T) {
	chain := only(t, newState(), "Priority")
	old := newPod(func(p *corev1.Pod) {
		p.Spec.Priority, p.Spec.PreemptionPolicy = new(int32(9)), new(corev1.PreemptNever)
	})
	pod := newPod()
	if err := run(t.Context(), chain, write(admission.Update, "pods", pod, old)); err != nil {
		t.Fatal(err)
	}
	if *pod.Spec.Priority != 9 || *pod.Spec.PreemptionPolicy != corev1.PreemptNever {
		t.Errorf("spec %+v", pod.Spec)
	}
}

func TestDefaultTolerations(t *testing.T) {
	chain := only(t, newState(), "DefaultTolerationSeconds", func(c *plugins.Config) { c.UnreachableSeconds = 30 })
	pod := newPod()
	if err := run(t.Context(), chain, write(admission.Create, "pods", pod, nil)); err != nil {
		t.Fatal(err)
	}
	if len(pod.Spec.Tolerations) != 2 || *pod.Spec.Tolerations[0].TolerationSeconds != 300 || *pod.Spec.Tolerations[1].TolerationSeconds != 30 {
		t.Errorf("tolerations %+v", pod.Spec.Tolerations)
	}
	everything := newPod(func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} })
	if err := run(t.Context(), chain, write(admission.Create, "pods", everything, nil)); err != nil || len(everything.Spec.Tolerations) != 1 {
		t.Errorf("tolerations %+v, %v", everything.Spec.Tolerations, err)
	}
}

func TestNewNodesAreTainted(t *testing.T) {
	chain := only(t, newState(), "TaintNodesByCondition")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	for range 2 {
		if err := run(t.Context(), chain, write(admission.Create, "nodes", node, nil)); err != nil {
			t.Fatal(err)
		}
	}
	if len(node.Spec.Taints) != 1 || node.Spec.Taints[0].Key != "node.kubernetes.io/not-ready" || node.Spec.Taints[0].Effect != corev1.TaintEffectNoSchedule {
		t.Errorf("taints %+v", node.Spec.Taints)
	}
}

func TestExternalIPsAreRefused(t *testing.T) {
	chain := only(t, newState(), "DenyServiceExternalIPs")
	service := func(ips ...string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "s"}, Spec: corev1.ServiceSpec{ExternalIPs: ips}}
	}
	assertRefused(t, run(t.Context(), chain, write(admission.Create, "services", service("8.8.8.8"), nil)), "Use of external IPs is denied by admission control")
	assertRefused(t, run(t.Context(), chain, write(admission.Update, "services", service("1.1.1.1", "8.8.8.8"), service("1.1.1.1"))), "denied")
	for _, c := range [][2]*corev1.Service{{service(), service("1.1.1.1")}, {service("1.1.1.1"), service("1.1.1.1", "8.8.8.8")}} {
		if err := run(t.Context(), chain, write(admission.Update, "services", c[0], c[1])); err != nil {
			t.Error(err)
		}
	}
}
