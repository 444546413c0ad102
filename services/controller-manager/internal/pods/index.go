package pods

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// Names of the indexes over pods.
const (
	ownerIndex  = "controllerUID" // UID of the controller, or "orphan:" and the namespace
	uidIndex    = "uid"
	NodeIndex   = "nodeName"
	orphanOwner = "orphan:"
)

// AddOwnerIndex lets OwnedBy, Candidates and ByUID answer from informer, which
// must be one of pods and not yet started. Adding it again does nothing.
func AddOwnerIndex(informer cache.SharedIndexInformer) error {
	return addIndexes(informer, cache.Indexers{
		ownerIndex: func(obj any) ([]string, error) {
			pod, ok := obj.(*corev1.Pod)
			if !ok {
				return nil, nil
			}
			if ref := metav1.GetControllerOfNoCopy(pod); ref != nil {
				return []string{string(ref.UID)}, nil
			}
			return []string{orphanOwner + pod.Namespace}, nil
		},
		uidIndex: func(obj any) ([]string, error) {
			if pod, ok := obj.(*corev1.Pod); ok {
				return []string{string(pod.UID)}, nil
			}
			return nil, nil
		},
	})
}

// AddNodeIndex lets an informer of pods answer for NodeIndex.
func AddNodeIndex(informer cache.SharedIndexInformer) error {
	return addIndexes(informer, cache.Indexers{NodeIndex: func(obj any) ([]string, error) {
		if pod, ok := obj.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
			return []string{pod.Spec.NodeName}, nil
		}
		return nil, nil
	}})
}

func addIndexes(informer cache.SharedIndexInformer, wanted cache.Indexers) error {
	present := informer.GetIndexer().GetIndexers()
	missing := cache.Indexers{}
	for name, index := range wanted {
		if _, ok := present[name]; !ok {
			missing[name] = index
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if err := informer.AddIndexers(missing); err != nil {
		return fmt.Errorf("indexing pods: %w", err)
	}
	return nil
}

// OwnedBy is the pods whose controller has that UID.
func OwnedBy(index cache.Indexer, uid types.UID) []*corev1.Pod {
	return lookUp(index, ownerIndex, string(uid))
}

// OnNode is the pods bound to the node of that name.
func OnNode(index cache.Indexer, node string) []*corev1.Pod {
	return lookUp(index, NodeIndex, node)
}

// Candidates is the pods that owner may claim: its own, and those without a
// controller in its namespace.
func Candidates(index cache.Indexer, owner metav1.Object) ([]*corev1.Pod, error) {
	own, err := index.ByIndex(ownerIndex, string(owner.GetUID()))
	if err != nil {
		return nil, err
	}
	orphans, err := index.ByIndex(ownerIndex, orphanOwner+owner.GetNamespace())
	if err != nil {
		return nil, err
	}
	return append(typed(own), typed(orphans)...), nil
}

// ByUID is the pod of that UID, or nil.
func ByUID(index cache.Indexer, uid types.UID) *corev1.Pod {
	found := lookUp(index, uidIndex, string(uid))
	if len(found) == 0 {
		return nil
	}
	return found[0]
}

func lookUp(index cache.Indexer, name, value string) []*corev1.Pod {
	found, err := index.ByIndex(name, value)
	if err != nil {
		return nil // the index is there since AddOwnerIndex or AddNodeIndex
	}
	return typed(found)
}

func typed(objects []any) []*corev1.Pod {
	pods := make([]*corev1.Pod, 0, len(objects))
	for _, object := range objects {
		if pod, ok := object.(*corev1.Pod); ok {
			pods = append(pods, pod)
		}
	}
	return pods
}
