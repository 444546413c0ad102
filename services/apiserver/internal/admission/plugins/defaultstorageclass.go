package plugins

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// defaultStorageClass gives claims that name no class the default one.
type defaultStorageClass struct {
	plugin
	reader registry.Reader
}

func newDefaultStorageClass(config Config) admission.Plugin {
	return &defaultStorageClass{plugin{"DefaultStorageClass", []admission.Operation{admission.Create}}, config.State}
}

// Admit implements admission.Mutator. A claim whose class is "" wants none.
func (p *defaultStorageClass) Admit(ctx context.Context, a *admission.Attributes) error {
	claim, ok := a.Object.(*corev1.PersistentVolumeClaim)
	if !ok || !is(a, corev1.Resource("persistentvolumeclaims")) || claim.Spec.StorageClassName != nil {
		return nil
	}
	if _, ok := claim.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		return nil
	}
	classes, err := listOf[*storagev1.StorageClass](ctx, p.reader, storagev1.Resource("storageclasses"), "")
	if err != nil {
		return err
	}
	class, ok := newestDefault(classes, "storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class")
	if ok {
		claim.Spec.StorageClassName = new(class.Name)
	}
	return nil
}
