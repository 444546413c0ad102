package core

import (
	"fmt"
	"path"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
)

func validateVolume(obj *corev1.PersistentVolume) field.ErrorList {
	spec, at := &obj.Spec, field.NewPath("spec")
	errs := podspec.ValidateAccessModes(spec.AccessModes, at.Child("accessModes"))
	errs = append(errs, validateCapacity(spec.Capacity, at.Child("capacity"))...)
	errs = append(errs, oneOf(spec.PersistentVolumeReclaimPolicy, at.Child("persistentVolumeReclaimPolicy"),
		corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRecycle, corev1.PersistentVolumeReclaimRetain)...)
	errs = append(errs, validateVolumeSource(&spec.PersistentVolumeSource, at)...)
	if spec.Local != nil && spec.NodeAffinity == nil {
		errs = append(errs, field.Required(field.NewPath("metadata", "annotations"), "Local volume requires node affinity"))
	}
	if a := spec.NodeAffinity; a != nil {
		if a.Required == nil {
			errs = append(errs, field.Required(at.Child("nodeAffinity", "required"), "must specify required node constraints"))
		} else {
			errs = append(errs, podspec.ValidateNodeSelector(a.Required, at.Child("nodeAffinity", "required"))...)
		}
	}
	if h := spec.HostPath; h != nil && path.Clean(h.Path) == "/" && spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle {
		errs = append(errs, field.Forbidden(at.Child("persistentVolumeReclaimPolicy"), "may not be 'recycle' for a hostPath mount of '/'"))
	}
	for name, class := range map[string]string{"storageClassName": spec.StorageClassName, "volumeAttributesClassName": deref(spec.VolumeAttributesClassName)} {
		if class == "" {
			continue
		}
		for _, msg := range apivalidation.NameIsDNSSubdomain(class, false) {
			errs = append(errs, field.Invalid(at.Child(name), class, msg))
		}
	}
	if spec.VolumeMode != nil {
		errs = append(errs, oneOf(*spec.VolumeMode, at.Child("volumeMode"), corev1.PersistentVolumeBlock, corev1.PersistentVolumeFilesystem)...)
	}
	return errs
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func validateCapacity(capacity corev1.ResourceList, at *field.Path) field.ErrorList {
	if len(capacity) == 0 {
		return field.ErrorList{field.Required(at, "")}
	}
	var errs field.ErrorList
	storage, set := capacity[corev1.ResourceStorage]
	if !set || len(capacity) > 1 {
		errs = append(errs, field.NotSupported(at, capacity, []corev1.ResourceName{corev1.ResourceStorage}))
	}
	if set && storage.Sign() <= 0 {
		errs = append(errs, field.Invalid(at.Key(string(corev1.ResourceStorage)), storage.String(), "must be greater than zero"))
	}
	return errs
}

// validateVolumeSource wants one source, and checks it where its kind is known
// to more than one provider.
func validateVolumeSource(source *corev1.PersistentVolumeSource, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	found := ""
	value := reflect.ValueOf(source).Elem()
	for i := range value.NumField() {
		if value.Field(i).IsNil() {
			continue
		}
		name, _, _ := strings.Cut(value.Type().Field(i).Tag.Get("json"), ",")
		if found != "" {
			errs = append(errs, field.Forbidden(at.Child(name), "may not specify more than 1 volume type"))
		}
		found = name
	}
	if found == "" {
		return field.ErrorList{field.Required(at, "must specify a volume type")}
	}
	need := func(child, text string) {
		if text == "" {
			errs = append(errs, field.Required(at.Child(found, child), ""))
		}
	}
	switch {
	case source.HostPath != nil:
		errs = append(errs, podspec.ValidateHostPath(source.HostPath, at.Child(found))...)
	case source.Local != nil:
		need("path", source.Local.Path)
		errs = append(errs, podspec.ValidateNoBacksteps(source.Local.Path, at.Child(found, "path"))...)
	case source.NFS != nil:
		errs = append(errs, podspec.ValidateNFS(source.NFS, at.Child(found))...)
	case source.FC != nil:
		errs = append(errs, podspec.ValidateFC(source.FC, at.Child(found))...)
	case source.CSI != nil:
		errs = append(errs, podspec.ValidateCSIDriverName(source.CSI.Driver, at.Child(found, "driver"))...)
		need("volumeHandle", source.CSI.VolumeHandle)
	case source.ISCSI != nil:
		need("targetPortal", source.ISCSI.TargetPortal)
		need("iqn", source.ISCSI.IQN)
	case source.FlexVolume != nil:
		need("driver", source.FlexVolume.Driver)
	case source.AWSElasticBlockStore != nil:
		need("volumeID", source.AWSElasticBlockStore.VolumeID)
	case source.GCEPersistentDisk != nil:
		need("pdName", source.GCEPersistentDisk.PDName)
	case source.AzureDisk != nil:
		need("diskName", source.AzureDisk.DiskName)
		need("diskURI", source.AzureDisk.DataDiskURI)
	case source.AzureFile != nil:
		need("secretName", source.AzureFile.SecretName)
		need("shareName", source.AzureFile.ShareName)
	case source.Cinder != nil:
		need("volumeID", source.Cinder.VolumeID)
	case source.VsphereVolume != nil:
		need("volumePath", source.VsphereVolume.VolumePath)
	}
	return errs
}

func validateVolumeUpdate(obj, old *corev1.PersistentVolume) field.ErrorList {
	errs := validateVolume(obj)
	at := field.NewPath("spec")
	now, was := obj.Spec.PersistentVolumeSource.DeepCopy(), old.Spec.PersistentVolumeSource.DeepCopy()
	if now.CSI != nil && was.CSI != nil && was.CSI.ControllerExpandSecretRef == nil {
		now.CSI.ControllerExpandSecretRef = nil
	}
	if now.CSI != nil && was.CSI != nil && was.CSI.NodeExpandSecretRef == nil {
		now.CSI.NodeExpandSecretRef = nil
	}
	if !apiequality.Semantic.DeepEqual(now, was) {
		errs = append(errs, field.Forbidden(at.Child("persistentvolumesource"), fmt.Sprintf("spec.persistentvolumesource is immutable after creation\n%v", diff.Diff(was, now))))
	}
	errs = append(errs, apivalidation.ValidateImmutableField(obj.Spec.VolumeMode, old.Spec.VolumeMode, field.NewPath("volumeMode"))...)
	if old.Spec.NodeAffinity != nil {
		if !apiequality.Semantic.DeepEqual(obj.Spec.NodeAffinity, old.Spec.NodeAffinity) {
			errs = append(errs, field.Invalid(field.NewPath("nodeAffinity"), obj.Spec.NodeAffinity, "field is immutable, except for updating from beta label to GA"))
		}
	}
	return errs
}
