package plugins

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
)

// storageProtection gives new volumes and claims the finalizer that keeps them
// while something uses them.
type storageProtection struct {
	plugin
	finalizers map[schema.GroupResource]string
}

func newStorageObjectInUseProtection(Config) admission.Plugin {
	return &storageProtection{
		plugin{"StorageObjectInUseProtection", []admission.Operation{admission.Create}},
		map[schema.GroupResource]string{
			corev1.Resource("persistentvolumes"):          "kubernetes.io/pv-protection",
			corev1.Resource("persistentvolumeclaims"):     "kubernetes.io/pvc-protection",
			storagev1.Resource("volumeattributesclasses"): "kubernetes.io/vac-protection",
		},
	}
}

// Admit implements admission.Mutator.
func (p *storageProtection) Admit(_ context.Context, a *admission.Attributes) error {
	finalizer := p.finalizers[a.Resource.GroupResource()]
	object, ok := a.Object.(metav1.Object)
	if !ok || finalizer == "" || a.Subresource != "" || slices.Contains(object.GetFinalizers(), finalizer) {
		return nil
	}
	object.SetFinalizers(append(object.GetFinalizers(), finalizer))
	return nil
}
