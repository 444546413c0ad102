package feed

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/sampan-io/sampan/services/scheduler/internal/framework"
)

// Volumes implements framework.Volumes by informers and the API.
type Volumes struct {
	Client  kubernetes.Interface
	Claims  corelisters.PersistentVolumeClaimLister
	Listed  corelisters.PersistentVolumeLister
	Classes storagelisters.StorageClassLister
	Nodes   corelisters.NodeLister
	Storage storagelisters.CSINodeLister
	Free    storagelisters.CSIStorageCapacityLister
	Drivers storagelisters.CSIDriverLister
}

// Claim is the claim of that name, or nil.
func (v Volumes) Claim(namespace, name string) *corev1.PersistentVolumeClaim {
	return found(v.Claims.PersistentVolumeClaims(namespace).Get(name))
}

// Volume is the persistent volume of that name, or nil.
func (v Volumes) Volume(name string) *corev1.PersistentVolume { return found(v.Listed.Get(name)) }

// Class is the storage class of that name, or nil.
func (v Volumes) Class(name string) *storagev1.StorageClass { return found(v.Classes.Get(name)) }

// Node is the node of that name, or nil.
func (v Volumes) Node(name string) *corev1.Node { return found(v.Nodes.Get(name)) }

// CSINode is what CSI drivers say of the node, or nil.
func (v Volumes) CSINode(node string) *storagev1.CSINode { return found(v.Storage.Get(node)) }

// CSIDriver is the driver of that name, or nil.
func (v Volumes) CSIDriver(name string) *storagev1.CSIDriver { return found(v.Drivers.Get(name)) }

// Capacities are those of a class.
func (v Volumes) Capacities(class string) []*storagev1.CSIStorageCapacity {
	all, err := v.Free.List(labels.Everything())
	if err != nil {
		return nil
	}
	var of []*storagev1.CSIStorageCapacity
	for _, capacity := range all {
		if capacity.StorageClassName == class {
			of = append(of, capacity)
		}
	}
	return of
}

func found[T any](object *T, err error) *T {
	if err != nil {
		return nil
	}
	return object
}

// OfClass are all persistent volumes of a class.
func (v Volumes) OfClass(class string) []*corev1.PersistentVolume {
	all, err := v.Listed.List(labels.Everything())
	if err != nil {
		return nil
	}
	var of []*corev1.PersistentVolume
	for _, volume := range all {
		if volume.Spec.StorageClassName == class {
			of = append(of, volume)
		}
	}
	return of
}

// Assign makes the volume name the claim, or asks for one on the node when volume
// is nil. The binder does the rest.
func (v Volumes) Assign(ctx context.Context, claim *corev1.PersistentVolumeClaim, volume *corev1.PersistentVolume, node string) error {
	const selectedNode, byController = "volume.kubernetes.io/selected-node", "pv.kubernetes.io/bound-by-controller"
	if volume == nil {
		updated := claim.DeepCopy()
		metav1.SetMetaDataAnnotation(&updated.ObjectMeta, selectedNode, node)
		if _, err := v.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, updated, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("choosing node of claim %s/%s: %w", claim.Namespace, claim.Name, err)
		}
		return nil
	}
	updated := volume.DeepCopy()
	if updated.Spec.ClaimRef == nil {
		metav1.SetMetaDataAnnotation(&updated.ObjectMeta, byController, "yes")
	}
	updated.Spec.ClaimRef = &corev1.ObjectReference{
		Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, ResourceVersion: claim.ResourceVersion,
	}
	if _, err := v.Client.CoreV1().PersistentVolumes().Update(ctx, updated, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("choosing volume %s: %w", volume.Name, err)
	}
	return nil
}

// Storage is the handler of notifications about claims, volumes and classes.
func (f *Feed) Storage() cache.ResourceEventHandler {
	changed := func(action framework.Action) {
		f.Queue.Change(framework.Change{Event: framework.Event{Resource: framework.StorageResource, Action: action, Label: "StorageChange"}})
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { changed(framework.Add) },
		UpdateFunc: func(before, after any) {
			if !equality.Semantic.DeepEqual(before, after) {
				changed(framework.UpdatePodOther)
			}
		},
		DeleteFunc: func(any) { changed(framework.Delete) },
	}
}
