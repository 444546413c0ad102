package podspec

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func (c *checker) validateMounts(container *corev1.Container, path *field.Path) field.ErrorList {
	devices := map[string]bool{}
	devicePaths := map[string]bool{}
	for _, d := range container.VolumeDevices {
		devices[d.Name], devicePaths[d.DevicePath] = true, true
	}
	var errs field.ErrorList
	points := map[string]bool{}
	for i := range container.VolumeMounts {
		mount, at := &container.VolumeMounts[i], path.Index(i)
		errs = append(errs, required(mount.Name, at.Child("name"))...)
		if _, known := c.volumes[mount.Name]; !known {
			errs = append(errs, field.NotFound(at.Child("name"), mount.Name))
		}
		errs = append(errs, required(mount.MountPath, at.Child("mountPath"))...)
		if points[mount.MountPath] {
			errs = append(errs, field.Invalid(at.Child("mountPath"), mount.MountPath, "must be unique"))
		}
		points[mount.MountPath] = true
		if devices[mount.Name] {
			errs = append(errs, field.Invalid(at.Child("name"), mount.Name, "must not already exist in volumeDevices"))
		}
		if devicePaths[mount.MountPath] {
			errs = append(errs, field.Invalid(at.Child("mountPath"), mount.MountPath, "must not already exist as a path in volumeDevices"))
		}
		errs = append(errs, validateSubPath(mount, at, path)...)
		errs = append(errs, validatePropagation(mount, container, path)...)
	}
	return errs
}

// validateSubPath reports a bad path at the list, as upstream does, and the
// exclusion of the two forms at the mount.
func validateSubPath(mount *corev1.VolumeMount, at, list *field.Path) field.ErrorList {
	var errs field.ErrorList
	if mount.SubPath != "" {
		errs = append(errs, descending(mount.SubPath, list.Child("subPath"))...)
	}
	if mount.SubPathExpr != "" {
		if mount.SubPath != "" {
			errs = append(errs, field.Invalid(at.Child("subPathExpr"), mount.SubPathExpr, "subPathExpr and subPath are mutually exclusive"))
		}
		errs = append(errs, descending(mount.SubPathExpr, list.Child("subPathExpr"))...)
	}
	return errs
}

func validatePropagation(mount *corev1.VolumeMount, container *corev1.Container, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if p := mount.MountPropagation; p != nil {
		errs = append(errs, notSupported(*p, path.Child("mountPropagation"),
			corev1.MountPropagationBidirectional, corev1.MountPropagationHostToContainer, corev1.MountPropagationNone)...)
		if *p == corev1.MountPropagationBidirectional && !privileged(container.SecurityContext) {
			errs = append(errs, field.Forbidden(path.Child("mountPropagation"), "Bidirectional mount propagation is available only to privileged containers"))
		}
	}
	at := path.Child("recursiveReadOnly")
	if mount.RecursiveReadOnly == nil {
		return errs
	}
	switch *mount.RecursiveReadOnly {
	case corev1.RecursiveReadOnlyDisabled:
	case corev1.RecursiveReadOnlyEnabled, corev1.RecursiveReadOnlyIfPossible:
		if !mount.ReadOnly {
			errs = append(errs, field.Forbidden(at, "may only be specified when readOnly is true"))
		}
		if p := mount.MountPropagation; p != nil && *p != corev1.MountPropagationNone {
			errs = append(errs, field.Forbidden(at, "may only be specified when mountPropagation is None or not specified"))
		}
	default:
		errs = append(errs, notSupported(*mount.RecursiveReadOnly, at,
			corev1.RecursiveReadOnlyDisabled, corev1.RecursiveReadOnlyEnabled, corev1.RecursiveReadOnlyIfPossible)...)
	}
	return errs
}

func (c *checker) validateDevices(container *corev1.Container, path *field.Path) field.ErrorList {
	mounts, mountPaths := map[string]bool{}, map[string]bool{}
	for _, m := range container.VolumeMounts {
		mounts[m.Name], mountPaths[m.MountPath] = true, true
	}
	var errs field.ErrorList
	names, paths := map[string]bool{}, map[string]bool{}
	for i, device := range container.VolumeDevices {
		at := path.Index(i)
		errs = append(errs, required(device.Name, at.Child("name"))...)
		volume, known := c.volumes[device.Name]
		if names[device.Name] {
			errs = append(errs, field.Invalid(at.Child("name"), device.Name, "must be unique"))
		}
		if !known {
			errs = append(errs, field.NotFound(at.Child("name"), device.Name))
		} else if volume.PersistentVolumeClaim == nil && volume.Ephemeral == nil {
			errs = append(errs, field.Invalid(at.Child("name"), device.Name, "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"))
		}
		errs = append(errs, required(device.DevicePath, at.Child("devicePath"))...)
		if paths[device.DevicePath] {
			errs = append(errs, field.Invalid(at.Child("devicePath"), device.DevicePath, "must be unique"))
		}
		if device.DevicePath != "" && len(ValidateNoBacksteps(device.DevicePath, at)) > 0 {
			errs = append(errs, field.Invalid(at.Child("devicePath"), device.DevicePath, "can not contain backsteps ('..')"))
		}
		if mounts[device.Name] {
			errs = append(errs, field.Invalid(at.Child("name"), device.Name, "must not already exist in volumeMounts"))
		}
		if mountPaths[device.DevicePath] {
			errs = append(errs, field.Invalid(at.Child("devicePath"), device.DevicePath, "must not already exist as a path in volumeMounts"))
		}
		names[device.Name], paths[device.DevicePath] = device.Name != "", true
	}
	return errs
}
