package core

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// PersistentVolumes are pieces of storage.
func PersistentVolumes() *registry.Resource {
	doc, statusDoc := corev1.PersistentVolumeSpec{}.SwaggerDoc(), corev1.PersistentVolumeStatus{}.SwaggerDoc()
	status := volumeBehaviour()
	status.PrepareForUpdate = func(_ context.Context, obj, old *corev1.PersistentVolume) {
		obj.Spec = old.Spec
		setPhaseTime(obj, old)
	}
	status.ValidateUpdate = func(_ context.Context, obj, _ *corev1.PersistentVolume) field.ErrorList {
		if obj.ResourceVersion == "" {
			return field.ErrorList{field.Required(field.NewPath("resourceVersion"), "")}
		}
		return nil
	}
	status.ResetFields = []string{"spec"}
	return registry.Define(registry.Definition[*corev1.PersistentVolume]{
		GroupVersion: v1, Resource: "persistentvolumes", Kind: "PersistentVolume", Singular: "persistentvolume", ShortNames: []string{"pv"},
		ReturnDeleted: true,
		New:           func() *corev1.PersistentVolume { return &corev1.PersistentVolume{} },
		NewList:       func() runtime.Object { return &corev1.PersistentVolumeList{} },
		KeyPrefix:     "/registry/persistentvolumes",
		Fields:        func(obj *corev1.PersistentVolume) fields.Set { return fields.Set{"name": obj.Name} },
		Strategy:      volumeBehaviour(),
		Columns: []metav1.TableColumnDefinition{
			table.Name(),
			table.String("Capacity", doc["capacity"]),
			table.String("Access Modes", doc["accessModes"]),
			table.String("Reclaim Policy", doc["persistentVolumeReclaimPolicy"]),
			table.String("Status", statusDoc["phase"]),
			table.String("Claim", doc["claimRef"]),
			table.String("StorageClass", "StorageClass of the pv"),
			table.String("VolumeAttributesClass", "VolumeAttributesClass of the pv"),
			table.String("Reason", statusDoc["reason"]),
			table.Age(),
			table.Wide(table.String("VolumeMode", doc["volumeMode"])),
		},
		Row: volumeRow,
		Subresources: []registry.Subresource{
			{Name: "status", Verbs: readWrite(), Update: registry.Erase(status)},
		},
	})
}

func volumeRow(obj *corev1.PersistentVolume) []any {
	claim := ""
	if ref := obj.Spec.ClaimRef; ref != nil {
		claim = ref.Namespace + "/" + ref.Name
	}
	phase := string(obj.Status.Phase)
	if !obj.DeletionTimestamp.IsZero() {
		phase = "Terminating"
	}
	size := obj.Spec.Capacity[corev1.ResourceStorage]
	return []any{
		obj.Name, size.String(), accessModes(obj.Spec.AccessModes), string(obj.Spec.PersistentVolumeReclaimPolicy), phase, claim,
		storageClass(obj.Annotations, &obj.Spec.StorageClassName), orUnset(obj.Spec.VolumeAttributesClassName), obj.Status.Reason,
		table.Since(obj.CreationTimestamp), orUnset(obj.Spec.VolumeMode),
	}
}

func volumeBehaviour() registry.Behaviour[*corev1.PersistentVolume] {
	return registry.Behaviour[*corev1.PersistentVolume]{
		Default: defaultVolume,
		PrepareForCreate: func(_ context.Context, obj *corev1.PersistentVolume) {
			now := metav1.Now()
			obj.Status = corev1.PersistentVolumeStatus{Phase: corev1.VolumePending, LastPhaseTransitionTime: &now}
		},
		PrepareForUpdate: func(_ context.Context, obj, old *corev1.PersistentVolume) { obj.Status = old.Status },
		Validate:         func(_ context.Context, obj *corev1.PersistentVolume) field.ErrorList { return validateVolume(obj) },
		ValidateUpdate: func(_ context.Context, obj, old *corev1.PersistentVolume) field.ErrorList {
			return validateVolumeUpdate(obj, old)
		},
		ResetFields: []string{"status"},
	}
}

func defaultVolume(obj *corev1.PersistentVolume) {
	if obj.Status.Phase == "" {
		obj.Status.Phase = corev1.VolumePending
	}
	if obj.Spec.PersistentVolumeReclaimPolicy == "" {
		obj.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	}
	if obj.Spec.VolumeMode == nil {
		obj.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeFilesystem)
	}
	podspec.RoundQuantities(obj.Spec.Capacity)
	if s := obj.Spec.ISCSI; s != nil && s.ISCSIInterface == "" {
		s.ISCSIInterface = "default"
	}
	if s := obj.Spec.HostPath; s != nil && s.Type == nil {
		s.Type = ptr.To(corev1.HostPathUnset)
	}
}

// setPhaseTime notes when the phase changed, unless the client did.
func setPhaseTime(obj, old *corev1.PersistentVolume) {
	if obj.Status.Phase == old.Status.Phase {
		if obj.Status.LastPhaseTransitionTime == nil {
			obj.Status.LastPhaseTransitionTime = old.Status.LastPhaseTransitionTime
		}
		return
	}
	if t := obj.Status.LastPhaseTransitionTime; t == nil || t.Equal(old.Status.LastPhaseTransitionTime) {
		now := metav1.Now()
		obj.Status.LastPhaseTransitionTime = &now
	}
}
