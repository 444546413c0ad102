package podspec

import (
	"net"
	"path"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateNetworkVolume checks the sources that reach storage outside the
// node.
func validateNetworkVolume(name string, v *corev1.VolumeSource, at *field.Path) field.ErrorList {
	switch {
	case v.NFS != nil:
		return ValidateNFS(v.NFS, at.Child("nfs"))
	case v.ISCSI != nil:
		errs := validateISCSI(v.ISCSI, at.Child("iscsi"))
		if v.ISCSI.InitiatorName != nil && len(name+":"+v.ISCSI.TargetPortal) > 64 {
			errs = append(errs, field.Invalid(at.Child("name"), name, "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified."))
		}
		return errs
	case v.FC != nil:
		return ValidateFC(v.FC, at.Child("fc"))
	case v.CSI != nil:
		return validateInlineCSI(v.CSI, at.Child("csi"))
	case v.RBD != nil:
		errs := requireList(v.RBD.CephMonitors, at.Child("rbd", "monitors"))
		return append(errs, required(v.RBD.RBDImage, at.Child("rbd", "image"))...)
	case v.CephFS != nil:
		return requireList(v.CephFS.Monitors, at.Child("cephfs", "monitors"))
	case v.Glusterfs != nil:
		errs := required(v.Glusterfs.EndpointsName, at.Child("glusterfs", "endpoints"))
		return append(errs, required(v.Glusterfs.Path, at.Child("glusterfs", "path"))...)
	case v.FlexVolume != nil:
		return validateFlex(v.FlexVolume.Driver, v.FlexVolume.Options, at.Child("flexVolume"))
	default:
		return validateCloudVolume(v, at)
	}
}

// validateCloudVolume checks the sources of single providers.
func validateCloudVolume(v *corev1.VolumeSource, at *field.Path) field.ErrorList {
	switch {
	case v.GCEPersistentDisk != nil:
		errs := required(v.GCEPersistentDisk.PDName, at.Child("persistentDisk", "pdName"))
		return append(errs, validPartition(v.GCEPersistentDisk.Partition, at.Child("persistentDisk", "partition"))...)
	case v.AWSElasticBlockStore != nil:
		errs := required(v.AWSElasticBlockStore.VolumeID, at.Child("awsElasticBlockStore", "volumeID"))
		return append(errs, validPartition(v.AWSElasticBlockStore.Partition, at.Child("awsElasticBlockStore", "partition"))...)
	case v.Cinder != nil:
		errs := required(v.Cinder.VolumeID, at.Child("cinder", "volumeID"))
		return append(errs, validSecretRef(v.Cinder.SecretRef, at.Child("cinder", "secretRef"))...)
	case v.AzureFile != nil:
		errs := required(v.AzureFile.SecretName, at.Child("azureFile", "secretName"))
		return append(errs, required(v.AzureFile.ShareName, at.Child("azureFile", "shareName"))...)
	case v.AzureDisk != nil:
		return validateAzureDisk(v.AzureDisk, at.Child("azureDisk"))
	case v.VsphereVolume != nil:
		return required(v.VsphereVolume.VolumePath, at.Child("vsphereVolume", "volumePath"))
	case v.PhotonPersistentDisk != nil:
		return required(v.PhotonPersistentDisk.PdID, at.Child("photonPersistentDisk", "pdID"))
	case v.PortworxVolume != nil:
		return required(v.PortworxVolume.VolumeID, at.Child("portworxVolume", "volumeID"))
	case v.ScaleIO != nil:
		errs := required(v.ScaleIO.Gateway, at.Child("scaleIO", "gateway"))
		errs = append(errs, required(v.ScaleIO.System, at.Child("scaleIO", "system"))...)
		return append(errs, required(v.ScaleIO.VolumeName, at.Child("scaleIO", "volumeName"))...)
	case v.StorageOS != nil:
		return validateStorageOS(v.StorageOS, at.Child("storageos"))
	case v.Quobyte != nil:
		return validateQuobyte(v.Quobyte, at.Child("quobyte"))
	case v.Flocker != nil:
		return validateFlocker(v.Flocker, at.Child("flocker"))
	}
	return nil
}

func requireList(list []string, at *field.Path) field.ErrorList {
	if len(list) == 0 {
		return field.ErrorList{field.Required(at, "")}
	}
	return nil
}

func validPartition(partition int32, at *field.Path) field.ErrorList {
	if partition < 0 || partition > 255 {
		return field.ErrorList{field.Invalid(at, partition, utilvalidation.InclusiveRangeError(1, 255))}
	}
	return nil
}

func validSecretRef(ref *corev1.LocalObjectReference, at *field.Path) field.ErrorList {
	if ref == nil {
		return nil
	}
	return required(ref.Name, at.Child("name"))
}

// ValidateNFS checks a directory of an NFS server.
func ValidateNFS(v *corev1.NFSVolumeSource, at *field.Path) field.ErrorList {
	errs := required(v.Server, at.Child("server"))
	errs = append(errs, required(v.Path, at.Child("path"))...)
	if !path.IsAbs(v.Path) {
		errs = append(errs, field.Invalid(at.Child("path"), v.Path, "must be an absolute path"))
	}
	return errs
}

// iscsiName says whether a name has one of the three forms, and is well-formed
// in it.
func iscsiName(name string) (known, valid bool) {
	for prefix, pattern := range map[string]string{
		"iqn": `^iqn\.\d{4}-\d{2}\.([[:alnum:]-.]+)(:[^,;*&$|\s]+)$`,
		"eui": `^eui.[[:alnum:]]{16}$`,
		"naa": `^naa.[[:alnum:]]{32}$`,
	} {
		if strings.HasPrefix(name, prefix) {
			return true, regexp.MustCompile(pattern).MatchString(name)
		}
	}
	return false, false
}

func validateISCSI(v *corev1.ISCSIVolumeSource, at *field.Path) field.ErrorList {
	errs := required(v.TargetPortal, at.Child("targetPortal"))
	check := func(name string, at *field.Path) {
		if known, valid := iscsiName(name); !known {
			errs = append(errs, field.Invalid(at, name, "must be valid format starting with iqn, eui, or naa"))
		} else if !valid {
			errs = append(errs, field.Invalid(at, name, "must be valid format"))
		}
	}
	if v.IQN == "" {
		errs = append(errs, field.Required(at.Child("iqn"), ""))
	} else {
		check(v.IQN, at.Child("iqn"))
	}
	if v.Lun < 0 || v.Lun > 255 {
		errs = append(errs, field.Invalid(at.Child("lun"), v.Lun, utilvalidation.InclusiveRangeError(0, 255)))
	}
	if (v.DiscoveryCHAPAuth || v.SessionCHAPAuth) && v.SecretRef == nil {
		errs = append(errs, field.Required(at.Child("secretRef"), ""))
	}
	if v.InitiatorName != nil {
		check(*v.InitiatorName, at.Child("initiatorname"))
	}
	return errs
}

// ValidateFC checks a Fibre Channel volume.
func ValidateFC(v *corev1.FCVolumeSource, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	targets := at.Child("targetWWNs")
	if len(v.TargetWWNs) == 0 && len(v.WWIDs) == 0 {
		errs = append(errs, field.Required(targets, "must specify either targetWWNs or wwids, but not both"))
	}
	if len(v.TargetWWNs) != 0 && len(v.WWIDs) != 0 {
		errs = append(errs, field.Invalid(targets, v.TargetWWNs, "targetWWNs and wwids can not be specified simultaneously"))
	}
	if len(v.TargetWWNs) == 0 {
		return errs
	}
	if v.Lun == nil {
		errs = append(errs, field.Required(at.Child("lun"), "lun is required if targetWWNs is specified"))
	} else if *v.Lun < 0 || *v.Lun > 255 {
		errs = append(errs, field.Invalid(at.Child("lun"), *v.Lun, utilvalidation.InclusiveRangeError(0, 255)))
	}
	return errs
}

// ValidateCSIDriverName checks the name of a CSI driver.
func ValidateCSIDriverName(name string, at *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	if len(name) > 63 {
		return field.ErrorList{field.TooLong(at, name, 63)}
	}
	return dnsSubdomain(strings.ToLower(name), at)
}

func validateInlineCSI(v *corev1.CSIVolumeSource, at *field.Path) field.ErrorList {
	errs := ValidateCSIDriverName(v.Driver, at.Child("driver"))
	if ref := v.NodePublishSecretRef; ref != nil {
		errs = append(errs, required(ref.Name, at.Child("nodePublishSecretRef", "name"))...)
	}
	return errs
}

func validateFlex(driver string, options map[string]string, at *field.Path) field.ErrorList {
	errs := required(driver, at.Child("driver"))
	for key := range options {
		domain, _, _ := strings.Cut(key, "/")
		domain = "." + strings.ToLower(domain)
		if strings.HasSuffix(domain, ".kubernetes.io") || strings.HasSuffix(domain, ".k8s.io") {
			errs = append(errs, field.Invalid(at.Child("options").Key(key), key, "kubernetes.io and k8s.io namespaces are reserved"))
		}
	}
	return errs
}

func validateAzureDisk(v *corev1.AzureDiskVolumeSource, at *field.Path) field.ErrorList {
	errs := required(v.DiskName, at.Child("diskName"))
	errs = append(errs, required(v.DataDiskURI, at.Child("diskURI"))...)
	if v.CachingMode != nil {
		errs = append(errs, notSupported(*v.CachingMode, at.Child("cachingMode"),
			corev1.AzureDataDiskCachingNone, corev1.AzureDataDiskCachingReadOnly, corev1.AzureDataDiskCachingReadWrite)...)
	}
	if v.Kind == nil {
		return errs
	}
	errs = append(errs, notSupported(*v.Kind, at.Child("kind"), corev1.AzureDedicatedBlobDisk, corev1.AzureManagedDisk, corev1.AzureSharedBlobDisk)...)
	if *v.Kind == corev1.AzureManagedDisk && !strings.HasPrefix(v.DataDiskURI, "/subscriptions/") {
		errs = append(errs, field.NotSupported(at.Child("diskURI"), v.DataDiskURI, []string{"/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}"}))
	}
	if *v.Kind != corev1.AzureManagedDisk && !strings.HasPrefix(v.DataDiskURI, "https://") {
		errs = append(errs, field.NotSupported(at.Child("diskURI"), v.DataDiskURI, []string{"https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd"}))
	}
	return errs
}

func validateStorageOS(v *corev1.StorageOSVolumeSource, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if v.VolumeName == "" {
		errs = append(errs, field.Required(at.Child("volumeName"), ""))
	} else {
		errs = append(errs, dnsLabel(v.VolumeName, at.Child("volumeName"))...)
	}
	if v.VolumeNamespace != "" {
		errs = append(errs, dnsLabel(v.VolumeNamespace, at.Child("volumeNamespace"))...)
	}
	return append(errs, validSecretRef(v.SecretRef, at.Child("secretRef"))...)
}

func validateQuobyte(v *corev1.QuobyteVolumeSource, at *field.Path) field.ErrorList {
	const pairs = "must be a host:port pair or multiple pairs separated by commas"
	var errs field.ErrorList
	switch {
	case v.Registry == "":
		errs = append(errs, field.Required(at.Child("registry"), pairs))
	case len(v.Tenant) >= 65:
		errs = append(errs, field.Required(at.Child("tenant"), "must be a UUID and may not exceed a length of 64 characters"))
	case slices.ContainsFunc(strings.Split(v.Registry, ","), func(pair string) bool { _, _, err := net.SplitHostPort(pair); return err != nil }):
		errs = append(errs, field.Invalid(at.Child("registry"), v.Registry, pairs))
	}
	return append(errs, required(v.Volume, at.Child("volume"))...)
}

func validateFlocker(v *corev1.FlockerVolumeSource, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if v.DatasetName == "" && v.DatasetUUID == "" {
		errs = append(errs, field.Required(at, "one of datasetName and datasetUUID is required"))
	}
	if v.DatasetName != "" && v.DatasetUUID != "" {
		errs = append(errs, field.Invalid(at, "resource", "datasetName and datasetUUID can not be specified simultaneously"))
	}
	if strings.Contains(v.DatasetName, "/") {
		errs = append(errs, field.Invalid(at.Child("datasetName"), v.DatasetName, "must not contain '/'"))
	}
	return errs
}
