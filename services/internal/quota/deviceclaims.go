package quota

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// deviceClaims measures claims of devices, by class of device.
type deviceClaims struct{ unscoped }

// Resource implements Evaluator.
func (deviceClaims) Resource() schema.GroupResource { return resourcev1.Resource("resourceclaims") }

// Tracks implements Evaluator.
func (d deviceClaims) Tracks(name corev1.ResourceName) bool {
	return name == CountName(d.Resource()) || strings.HasSuffix(string(name), corev1.ResourceClaimsPerClass)
}

// Usage implements Evaluator. Of alternatives each class counts with the most
// that it may come to.
func (d deviceClaims) Usage(obj runtime.Object) corev1.ResourceList {
	claim, ok := obj.(*resourcev1.ResourceClaim)
	if !ok {
		return nil
	}
	devices := map[string]int64{}
	for _, request := range claim.Spec.Devices.Requests {
		if request.Exactly != nil {
			devices[request.Exactly.DeviceClassName] += most(request.Exactly.AllocationMode, request.Exactly.Count)
		}
		worst := map[string]int64{}
		for _, one := range request.FirstAvailable {
			worst[one.DeviceClassName] = max(worst[one.DeviceClassName], most(one.AllocationMode, one.Count))
		}
		for class, count := range worst {
			devices[class] += count
		}
	}
	list := corev1.ResourceList{CountName(d.Resource()): number(1)}
	for class, count := range devices {
		list[corev1.ResourceName(class+corev1.ResourceClaimsPerClass)] = number(count)
	}
	return list
}

func most(mode resourcev1.DeviceAllocationMode, count int64) int64 {
	switch mode {
	case resourcev1.DeviceAllocationModeExactCount:
		return count
	case resourcev1.DeviceAllocationModeAll:
		return resourcev1.AllocationResultsMaxSize
	}
	return 0
}

// Charges implements Evaluator.
func (deviceClaims) Charges(subresource string, _, _ runtime.Object) bool { return subresource == "" }

// Freed implements Evaluator. The devices that a claim asks for do not change.
func (deviceClaims) Freed(_, _ runtime.Object) bool { return false }
