package quota

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// classSuffix follows a storage class in the name of what is counted for it
// alone: gold.storageclass.storage.k8s.io/requests.storage.
const classSuffix = ".storageclass.storage.k8s.io/"

// volumeClaims measures persistent volume claims, in sum and by storage class.
type volumeClaims struct{}

// Resource implements Evaluator.
func (volumeClaims) Resource() schema.GroupResource { return corev1.Resource("persistentvolumeclaims") }

// Tracks implements Evaluator.
func (volumeClaims) Tracks(name corev1.ResourceName) bool {
	if _, rest, ok := strings.Cut(string(name), classSuffix); ok {
		name = corev1.ResourceName(rest)
	} else if name == "count/persistentvolumeclaims" {
		return true
	}
	return name == corev1.ResourcePersistentVolumeClaims || name == corev1.ResourceRequestsStorage
}

// Usage implements Evaluator.
func (volumeClaims) Usage(obj runtime.Object) corev1.ResourceList {
	claim, ok := obj.(*corev1.PersistentVolumeClaim)
	if !ok {
		return nil
	}
	list := corev1.ResourceList{"count/persistentvolumeclaims": number(1), corev1.ResourcePersistentVolumeClaims: number(1)}
	class := claim.Annotations[corev1.BetaStorageClassAnnotation]
	if class == "" && claim.Spec.StorageClassName != nil {
		class = *claim.Spec.StorageClassName
	}
	storage, wants := requested(claim)
	if wants {
		list[corev1.ResourceRequestsStorage] = storage
	}
	if class != "" {
		list[corev1.ResourceName(class+classSuffix)+corev1.ResourcePersistentVolumeClaims] = number(1)
		if wants {
			list[corev1.ResourceName(class+classSuffix)+corev1.ResourceRequestsStorage] = storage
		}
	}
	return list
}

// requested is the storage that a claim holds: what it asks for, or what is
// allocated to it if that is more. It is in whole bytes, as quotas are.
func requested(claim *corev1.PersistentVolumeClaim) (resource.Quantity, bool) {
	want, ok := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if !ok {
		return want, false
	}
	if allocated, ok := claim.Status.AllocatedResources[corev1.ResourceStorage]; ok && allocated.Cmp(want) > 0 {
		want = allocated
	}
	want = want.DeepCopy()
	want.RoundUp(0)
	return want, true
}

// InScope implements Evaluator.
func (volumeClaims) InScope(scope corev1.ScopedResourceSelectorRequirement, obj runtime.Object) bool {
	claim, ok := obj.(*corev1.PersistentVolumeClaim)
	return ok && scope.ScopeName == corev1.ResourceQuotaScopeVolumeAttributesClass && selects(scope, attributeClasses(claim)...)
}

// attributeClasses are the classes that a claim has, wants, or is changed to.
func attributeClasses(claim *corev1.PersistentVolumeClaim) []string {
	var names []string
	for _, name := range []*string{claim.Spec.VolumeAttributesClassName, claim.Status.CurrentVolumeAttributesClassName} {
		if name != nil && *name != "" {
			names = append(names, *name)
		}
	}
	if change := claim.Status.ModifyVolumeStatus; change != nil && change.TargetVolumeAttributesClassName != "" {
		names = append(names, change.TargetVolumeAttributesClassName)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Check implements Evaluator.
func (volumeClaims) Check([]corev1.ResourceName, runtime.Object) error { return nil }

// Charges implements Evaluator.
func (v volumeClaims) Charges(subresource string, obj, old runtime.Object) bool {
	switch subresource {
	case "":
		return true
	case "status":
		return v.Freed(obj, old)
	}
	return false
}

// Freed implements Evaluator.
func (v volumeClaims) Freed(obj, old runtime.Object) bool {
	after, ok := obj.(*corev1.PersistentVolumeClaim)
	before, had := old.(*corev1.PersistentVolumeClaim)
	if !ok || !had {
		return false
	}
	return !Equal(v.Usage(before), v.Usage(after)) || !slices.Equal(attributeClasses(before), attributeClasses(after))
}
