package plugins

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// claimResize lets claims grow only where their storage class says that it can.
type claimResize struct {
	plugin
	reader registry.Reader
}

func newPersistentVolumeClaimResize(config Config) admission.Plugin {
	return &claimResize{plugin{"PersistentVolumeClaimResize", []admission.Operation{admission.Update}}, config.State}
}

// Validate implements admission.Validator.
func (p *claimResize) Validate(ctx context.Context, a *admission.Attributes) error {
	claim, ok := a.Object.(*corev1.PersistentVolumeClaim)
	old, had := a.OldObject.(*corev1.PersistentVolumeClaim)
	if !ok || !had || !is(a, corev1.Resource("persistentvolumeclaims")) {
		return nil
	}
	size, before := claim.Spec.Resources.Requests[corev1.ResourceStorage], old.Spec.Resources.Requests[corev1.ResourceStorage]
	if size.Cmp(before) <= 0 {
		return nil
	}
	if old.Status.Phase != corev1.ClaimBound {
		return errors.New("Only bound persistent volume claims can be expanded") //nolint:staticcheck // upstream's message
	}
	name := claim.Annotations[corev1.BetaStorageClassAnnotation]
	if name == "" && claim.Spec.StorageClassName != nil {
		name = *claim.Spec.StorageClassName
	}
	if name != "" {
		obj, err := p.reader.Get(ctx, storagev1.Resource("storageclasses"), "", name)
		if ignoreNotFound(err) != nil {
			return err
		}
		if class, ok := obj.(*storagev1.StorageClass); ok && class.AllowVolumeExpansion != nil && *class.AllowVolumeExpansion {
			return nil
		}
	}
	return errors.New("only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize")
}
