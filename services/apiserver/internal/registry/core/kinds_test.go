package core

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

func resourceOne() resource.Quantity { return resource.MustParse("1") }

// errorsOf defaults and validates a new object.
func errorsOf(r *registry.Resource, obj runtime.Object) string {
	if r.Strategy.Default != nil {
		r.Strategy.Default(obj)
	}
	if r.Strategy.PrepareForCreate != nil {
		r.Strategy.PrepareForCreate(context.Background(), obj)
	}
	err := r.Strategy.Validate(context.Background(), obj).ToAggregate()
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestNamespaceLife(t *testing.T) {
	r := Namespaces()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}
	r.Strategy.Default(ns)
	r.Strategy.PrepareForCreate(context.Background(), ns)
	if ns.Labels["kubernetes.io/metadata.name"] != "shop" || ns.Status.Phase != corev1.NamespaceActive || ns.Spec.Finalizers[0] != "kubernetes" {
		t.Errorf("namespace is %+v", ns)
	}
	if r.Strategy.MarkDeleted(ns); ns.Status.Phase != corev1.NamespaceTerminating || !r.Strategy.Held(ns) {
		t.Errorf("a deleted namespace is %s, held %t", ns.Status.Phase, r.Strategy.Held(ns))
	}
	ns.Spec.Finalizers = nil
	if r.Strategy.Held(ns) {
		t.Error("a finalized namespace is held")
	}
	changed := &corev1.Namespace{}
	r.Strategy.PrepareForUpdate(context.Background(), changed, &corev1.Namespace{Spec: corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{"kubernetes"}}})
	if len(changed.Spec.Finalizers) != 1 {
		t.Error("an update changed spec.finalizers")
	}
	if msgs := r.Strategy.ValidateName("a.b", false); len(msgs) == 0 {
		t.Error("a namespace may be called a.b")
	}
}

func TestSecrets(t *testing.T) {
	r := Secrets()
	secret := &corev1.Secret{Data: map[string][]byte{"a": []byte("old")}, StringData: map[string]string{"a": "new", "b": "x"}}
	r.Strategy.Default(secret)
	if string(secret.Data["a"]) != "new" || string(secret.Data["b"]) != "x" || secret.StringData != nil || secret.Type != corev1.SecretTypeOpaque {
		t.Errorf("secret is %+v", secret)
	}
	for _, test := range []struct {
		secret corev1.Secret
		want   string
	}{
		{corev1.Secret{Type: corev1.SecretTypeTLS}, "data[tls.crt]: Required value"},
		{corev1.Secret{Type: corev1.SecretTypeServiceAccountToken}, "metadata.annotations[kubernetes.io/service-account.name]: Required value"},
		{corev1.Secret{Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{".dockerconfigjson": []byte("x")}}, "<secret contents redacted>"},
		{corev1.Secret{Type: corev1.SecretTypeBasicAuth}, "data[username]: Required value"},
		{corev1.Secret{Data: map[string][]byte{"a/b": nil}}, `data[a/b]: Invalid value: "a/b": a valid config key must consist of`},
		{corev1.Secret{Data: map[string][]byte{"a": make([]byte, 1<<20+1)}}, "data: Too long: may not be more than 1048576 bytes"},
	} {
		if got := errorsOf(r, &test.secret); !strings.Contains(got, test.want) {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
	old := &corev1.Secret{Type: "Opaque", Immutable: ptr.To(true), Data: map[string][]byte{"a": nil}}
	now := &corev1.Secret{Type: "kubernetes.io/tls", Data: map[string][]byte{}}
	errs := r.Strategy.ValidateUpdate(context.Background(), now, old).ToAggregate()
	for _, want := range []string{"type: Invalid value", "immutable: Forbidden: field is immutable when `immutable` is set", "data: Forbidden"} {
		if errs == nil || !strings.Contains(errs.Error(), want) {
			t.Errorf("got %v, want %s", errs, want)
		}
	}
}

func TestConfigMaps(t *testing.T) {
	r := ConfigMaps()
	if got := errorsOf(r, &corev1.ConfigMap{Data: map[string]string{"a": ""}, BinaryData: map[string][]byte{"a": nil}}); !strings.Contains(got, "data[a]: Invalid value: \"a\": duplicate of key present in binaryData") {
		t.Errorf("got %q", got)
	}
	if got := errorsOf(r, &corev1.ConfigMap{Data: map[string]string{"a": strings.Repeat("x", 1<<20)}}); got != "" {
		t.Errorf("1 MiB: %s", got)
	}
}

func TestNodes(t *testing.T) {
	r := Nodes(nil)
	node := &corev1.Node{Status: corev1.NodeStatus{Capacity: corev1.ResourceList{"cpu": resourceOne()}}}
	r.Strategy.Default(node)
	if len(node.Status.Allocatable) != 1 {
		t.Error("allocatable did not follow capacity")
	}
	taint := corev1.Taint{Key: "a", Effect: corev1.TaintEffectNoSchedule}
	if got := errorsOf(r, &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{taint, taint}, PodCIDRs: []string{"10.0.0.0/24", "10.0.1.0/24"}}}); !strings.Contains(got, "taints must be unique by key and effect pair") || !strings.Contains(got, "may specify no more than one CIDR for each IP family") {
		t.Errorf("got %q", got)
	}
	old := &corev1.Node{Spec: corev1.NodeSpec{PodCIDR: "10.0.0.0/24", PodCIDRs: []string{"10.0.0.0/24"}}}
	now := &corev1.Node{Spec: corev1.NodeSpec{PodCIDR: "10.0.1.0/24", PodCIDRs: []string{"10.0.1.0/24"}}}
	if errs := r.Strategy.ValidateUpdate(context.Background(), now, old); len(errs) != 1 || errs[0].Error() != `spec.podCIDRs: Forbidden: node updates may not change podCIDR except from "" to valid` {
		t.Errorf("got %v", errs)
	}
	if r.KeyPrefix != "/registry/minions" {
		t.Errorf("nodes are kept at %s", r.KeyPrefix)
	}
}

func TestEndpointsRefuseLocalAddresses(t *testing.T) {
	for _, ip := range []string{"127.0.0.1", "169.254.169.254", "0.0.0.0", "::1", "fe80::1", "224.0.0.1"} {
		e := &corev1.Endpoints{Subsets: []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: ip}}}}}
		if got := errorsOf(Endpoints(), e); !strings.Contains(got, "subsets[0].addresses[0].ip: Invalid value") {
			t.Errorf("%s: %q", ip, got)
		}
	}
}

func TestEvents(t *testing.T) {
	r := Events(time.Hour)
	e := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "a"}, InvolvedObject: corev1.ObjectReference{Namespace: "b"}}
	if got := errorsOf(r, e); got != `involvedObject.namespace: Invalid value: "b": does not match event.namespace` {
		t.Errorf("got %q", got)
	}
	if r.TTL(e) != time.Hour {
		t.Errorf("events live %s", r.TTL(e))
	}
	e.ReportingController = "scheduler"
	if set := r.Fields(e); set["source"] != "scheduler" || set["involvedObject.namespace"] != "b" {
		t.Errorf("fields are %v", set)
	}
}

func TestLimitRanges(t *testing.T) {
	r := LimitRanges()
	l := &corev1.LimitRange{Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{Type: "Container", Max: corev1.ResourceList{"cpu": resourceOne()}, Min: corev1.ResourceList{"memory": resourceOne()}}}}}
	r.Strategy.Default(l)
	if item := l.Spec.Limits[0]; len(item.Default) != 1 || len(item.DefaultRequest) != 2 {
		t.Errorf("limits are %+v", item)
	}
	bad := &corev1.LimitRange{Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{Type: "Pod", Min: corev1.ResourceList{"cpu": resource.MustParse("2")}, Max: corev1.ResourceList{"cpu": resourceOne()}}, {Type: "Pod"}}}}
	if got := errorsOf(r, bad); !strings.Contains(got, "min value 2 is greater than max value 1") || !strings.Contains(got, `spec.limits[1].type: Duplicate value: "Pod"`) {
		t.Errorf("got %q", got)
	}
}

func TestQuotas(t *testing.T) {
	r := ResourceQuotas()
	bad := &corev1.ResourceQuota{Spec: corev1.ResourceQuotaSpec{
		Hard:   corev1.ResourceList{"cpu": resourceOne(), "nonsense": resourceOne(), "pods": resource.MustParse("500m"), "count/deployments.apps": resourceOne()},
		Scopes: []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeBestEffort, corev1.ResourceQuotaScopeNotBestEffort},
	}}
	got := errorsOf(r, bad)
	for _, want := range []string{
		`spec.hard[nonsense]: Invalid value: "nonsense": must be a standard resource for quota`, `spec.hard[pods]: Invalid value: "500m": must be an integer`,
		"unsupported scope applied to resource", "conflicting scopes",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestClaims(t *testing.T) {
	r := PersistentVolumeClaims()
	claim := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{"ReadWriteOnce"}, Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{"storage": resourceOne()}}}}
	if got := errorsOf(r, claim); got != "" {
		t.Error(got)
	}
	if got := errorsOf(r, &corev1.PersistentVolumeClaim{}); !strings.Contains(got, "spec.accessModes: Required value: at least 1 access mode is required") || !strings.Contains(got, "spec.resources[storage]: Required value") {
		t.Errorf("got %q", got)
	}
	bound := claim.DeepCopy()
	bound.Spec.VolumeName = "pv-1"
	if errs := r.Strategy.ValidateUpdate(context.Background(), bound, claim); len(errs) > 0 {
		t.Errorf("binding: %v", errs)
	}
	moved := bound.DeepCopy()
	moved.Spec.VolumeName = "pv-2"
	if errs := r.Strategy.ValidateUpdate(context.Background(), moved, bound); len(errs) != 1 || !strings.HasPrefix(errs[0].Error(), "spec: Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims") {
		t.Errorf("moving: %v", errs)
	}
}

func TestVolumes(t *testing.T) {
	r := PersistentVolumes()
	if got := errorsOf(r, &corev1.PersistentVolume{}); !strings.Contains(got, "spec.capacity: Required value") || !strings.Contains(got, "spec: Required value: must specify a volume type") {
		t.Errorf("got %q", got)
	}
	volume := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{"ReadWriteOnce"}, Capacity: corev1.ResourceList{"storage": resourceOne()},
		PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/data"}},
	}}
	if got := errorsOf(r, volume); got != "" {
		t.Error(got)
	}
	now := volume.DeepCopy()
	now.Spec.HostPath.Path = "/other"
	if errs := r.Strategy.ValidateUpdate(context.Background(), now, volume); len(errs) != 1 || !strings.HasPrefix(errs[0].Error(), "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation") {
		t.Errorf("got %v", errs)
	}
}

func TestReplicationControllers(t *testing.T) {
	r := ReplicationControllers()
	rc := &corev1.ReplicationController{Spec: corev1.ReplicationControllerSpec{Template: &corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "c:1"}}},
	}}}
	if got := errorsOf(r, rc); got != "" || rc.Spec.Selector["a"] != "b" || rc.Labels["a"] != "b" || *rc.Spec.Replicas != 1 {
		t.Errorf("%s; controller is %+v", got, rc)
	}
	if r.Strategy.DefaultPropagation != metav1.DeletePropagationOrphan || r.KeyPrefix != "/registry/controllers" {
		t.Error("deletion must orphan by default, and the key is the old one")
	}
}

func TestComponentStatuses(t *testing.T) {
	r := ComponentStatuses([]Component{{Name: "scheduler", Check: func(context.Context) (string, error) { return "ok", nil }}, {Name: "store", Check: func(context.Context) (string, error) { return "", context.DeadlineExceeded }}})
	list, err := r.Virtual.List(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	items := list.(*corev1.ComponentStatusList).Items
	assertTable(t, printed(r, &items[0], &items[1]), `
Name | Status | Message | Error
scheduler | Healthy | ok | 
store | Unhealthy |  | context deadline exceeded`)
	if _, err := r.Virtual.Get(context.Background(), "", "nope"); err == nil {
		t.Error("an unknown component was found")
	}
}
