package quota_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/internal/quota"
)

func list(pairs ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for _, pair := range pairs {
		name, value, _ := strings.Cut(pair, "=")
		out[corev1.ResourceName(name)] = resource.MustParse(value)
	}
	return out
}

func pod(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "i", Resources: corev1.ResourceRequirements{Requests: list("cpu=3")}}},
		Containers: []corev1.Container{
			{Name: "a", Resources: corev1.ResourceRequirements{Requests: list("cpu=1", "memory=1Gi", "hugepages-2Mi=4Mi", "example.com/gpu=2"), Limits: list("memory=2Gi")}},
			{Name: "b", Resources: corev1.ResourceRequirements{Requests: list("cpu=500m")}},
		},
	}}
	for _, f := range change {
		f(p)
	}
	return p
}

func claim(change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{
		StorageClassName: new("gold"), Resources: corev1.VolumeResourceRequirements{Requests: list("storage=1Gi")},
	}}
	for _, f := range change {
		f(c)
	}
	return c
}

func service(kind corev1.ServiceType, allocate *bool, nodePorts ...int32) *corev1.Service {
	s := &corev1.Service{Spec: corev1.ServiceSpec{Type: kind, AllocateLoadBalancerNodePorts: allocate}}
	for _, port := range nodePorts {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{NodePort: port})
	}
	return s
}

func TestUsage(t *testing.T) {
	gone := func(p *corev1.Pod) {
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = new(metav1.NewTime(time.Now().Add(-time.Minute))), new(int64(30))
	}
	for what, test := range map[string]struct {
		resource string
		obj      runtime.Object
		want     corev1.ResourceList
	}{
		"a pod": {"pods", pod(), list("count/pods=1", "pods=1", "cpu=3", "requests.cpu=3", "memory=1Gi", "requests.memory=1Gi", "limits.memory=2Gi",
			"hugepages-2Mi=4Mi", "requests.hugepages-2Mi=4Mi", "requests.example.com/gpu=2")},
		"a pod with overhead": {"pods", pod(func(p *corev1.Pod) { p.Spec.Overhead = list("cpu=1"); p.Spec.Containers = nil }),
			list("count/pods=1", "pods=1", "cpu=4", "requests.cpu=4")},
		"a pod that has ended":    {"pods", pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), list("count/pods=1")},
		"a pod that is stuck":     {"pods", pod(gone), list("count/pods=1")},
		"a plain service":         {"services", service(corev1.ServiceTypeClusterIP, nil, 0), list("count/services=1", "services=1", "services.nodeports=0", "services.loadbalancers=0")},
		"a service on node ports": {"services", service(corev1.ServiceTypeNodePort, nil, 0, 0), list("count/services=1", "services=1", "services.nodeports=2", "services.loadbalancers=0")},
		"a load balancer":         {"services", service(corev1.ServiceTypeLoadBalancer, nil, 0), list("count/services=1", "services=1", "services.nodeports=1", "services.loadbalancers=1")},
		"a load balancer without node ports but one": {"services", service(corev1.ServiceTypeLoadBalancer, new(false), 0, 30000),
			list("count/services=1", "services=1", "services.nodeports=1", "services.loadbalancers=1")},
		"a claim": {"persistentvolumeclaims", claim(), list("count/persistentvolumeclaims=1", "persistentvolumeclaims=1", "requests.storage=1Gi",
			"gold.storageclass.storage.k8s.io/persistentvolumeclaims=1", "gold.storageclass.storage.k8s.io/requests.storage=1Gi")},
		"a claim that holds more than it asks for": {"persistentvolumeclaims", claim(func(c *corev1.PersistentVolumeClaim) {
			c.Spec.StorageClassName, c.Status.AllocatedResources = nil, list("storage=3Gi")
		}), list("count/persistentvolumeclaims=1", "persistentvolumeclaims=1", "requests.storage=3Gi")},
		"a claim of devices": {"resourceclaims.resource.k8s.io", &resourcev1.ResourceClaim{Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{
			{Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 2}},
			{FirstAvailable: []resourcev1.DeviceSubRequest{
				{DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1},
				{DeviceClassName: "nic", AllocationMode: resourcev1.DeviceAllocationModeAll},
			}},
		}}}}, list("count/resourceclaims.resource.k8s.io=1", "gpu.deviceclass.resource.k8s.io/devices=3", "nic.deviceclass.resource.k8s.io/devices=32")},
		"a secret":         {"secrets", &corev1.Secret{}, list("secrets=1", "count/secrets=1")},
		"any other object": {"widgets.example.com", &corev1.Secret{}, list("count/widgets.example.com=1")},
	} {
		if got := quota.For(schema.ParseGroupResource(test.resource)).Usage(test.obj); !quota.Equal(got, test.want) {
			t.Errorf("%s: %s, want %s", what, quota.Format(got), quota.Format(test.want))
		}
	}
}

func TestScopes(t *testing.T) {
	scope := func(name corev1.ResourceQuotaScope, operator corev1.ScopeSelectorOperator, values ...string) corev1.ScopedResourceSelectorRequirement {
		return corev1.ScopedResourceSelectorRequirement{ScopeName: name, Operator: operator, Values: values}
	}
	const exists = corev1.ScopeSelectorOpExists
	high := pod(func(p *corev1.Pod) { p.Spec.PriorityClassName = "high" })
	empty := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a"}}}}
	far := pod(func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{
			{PodAffinityTerm: corev1.PodAffinityTerm{NamespaceSelector: &metav1.LabelSelector{}}},
		}}}
	})
	fast := claim(func(c *corev1.PersistentVolumeClaim) { c.Status.CurrentVolumeAttributesClassName = new("fast") })
	for what, test := range map[string]struct {
		resource string
		obj      runtime.Object
		scope    corev1.ScopedResourceSelectorRequirement
		want     bool
	}{
		"no deadline":               {"pods", pod(), scope(corev1.ResourceQuotaScopeTerminating, exists), false},
		"a deadline":                {"pods", pod(func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = new(int64(5)) }), scope(corev1.ResourceQuotaScopeTerminating, exists), true},
		"no requests":               {"pods", empty, scope(corev1.ResourceQuotaScopeBestEffort, exists), true},
		"requests":                  {"pods", pod(), scope(corev1.ResourceQuotaScopeNotBestEffort, exists), true},
		"a class":                   {"pods", high, scope(corev1.ResourceQuotaScopePriorityClass, exists), true},
		"a class of several":        {"pods", high, scope(corev1.ResourceQuotaScopePriorityClass, corev1.ScopeSelectorOpIn, "low", "high"), true},
		"another class":             {"pods", high, scope(corev1.ResourceQuotaScopePriorityClass, corev1.ScopeSelectorOpNotIn, "high"), false},
		"no class":                  {"pods", pod(), scope(corev1.ResourceQuotaScopePriorityClass, corev1.ScopeSelectorOpDoesNotExist), true},
		"no class among those":      {"pods", pod(), scope(corev1.ResourceQuotaScopePriorityClass, corev1.ScopeSelectorOpNotIn, "high"), true},
		"affinity across":           {"pods", far, scope(corev1.ResourceQuotaScopeCrossNamespacePodAffinity, exists), true},
		"no affinity":               {"pods", pod(), scope(corev1.ResourceQuotaScopeCrossNamespacePodAffinity, exists), false},
		"a claim's class":           {"persistentvolumeclaims", fast, scope(corev1.ResourceQuotaScopeVolumeAttributesClass, corev1.ScopeSelectorOpIn, "fast"), true},
		"a claim of none":           {"persistentvolumeclaims", claim(), scope(corev1.ResourceQuotaScopeVolumeAttributesClass, exists), false},
		"a pod's scope for a claim": {"persistentvolumeclaims", claim(), scope(corev1.ResourceQuotaScopeBestEffort, exists), false},
	} {
		if got := quota.For(schema.ParseGroupResource(test.resource)).InScope(test.scope, test.obj); got != test.want {
			t.Errorf("%s: %v", what, got)
		}
	}
}

func TestCheckNamesWhatContainersDoNotSay(t *testing.T) {
	names := []corev1.ResourceName{corev1.ResourceLimitsMemory, corev1.ResourceRequestsCPU, corev1.ResourceEphemeralStorage}
	err := quota.For(corev1.Resource("pods")).Check(names, pod())
	if err == nil || err.Error() != "must specify limits.memory for: b,i" {
		t.Errorf("got %v", err)
	}
	whole := pod(func(p *corev1.Pod) {
		p.Spec.Resources = &corev1.ResourceRequirements{Requests: list("cpu=1"), Limits: list("memory=1Gi")}
	})
	if err := quota.For(corev1.Resource("pods")).Check(names, whole); err != nil {
		t.Errorf("a pod that speaks for itself: %v", err)
	}
}

func TestUsedCountsWhatIsThere(t *testing.T) {
	broken := errors.New("broken")
	spec := &corev1.ResourceQuotaSpec{Hard: list("pods=9", "requests.cpu=9", "count/widgets.example.com=9", "secrets=9", "count/events=9", "unknown.example.com/x=1")}
	got, err := quota.Used(spec, func(resource schema.GroupResource) ([]runtime.Object, error) {
		switch resource.Resource {
		case "pods":
			return []runtime.Object{pod(), pod()}, nil
		case "widgets":
			return nil, nil
		}
		return nil, broken
	})
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "listing secrets") {
		t.Errorf("error %v", err)
	}
	if want := list("pods=2", "requests.cpu=6", "count/widgets.example.com=0"); !quota.Equal(got, want) {
		t.Errorf("used %s, want %s", quota.Format(got), quota.Format(want))
	}
	var names []string
	for _, resource := range quota.Resources(spec) {
		names = append(names, resource.String())
	}
	if !slices.Equal(names, []string{"pods", "secrets", "widgets.example.com"}) {
		t.Errorf("resources %v", names)
	}
}
