package podspec

import (
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidateAccessModes checks the modes in which a volume or claim is used.
func ValidateAccessModes(modes []corev1.PersistentVolumeAccessMode, path *field.Path) field.ErrorList {
	if len(modes) == 0 {
		return field.ErrorList{field.Required(path, "at least 1 access mode is required")}
	}
	var errs field.ErrorList
	alone, others := false, false
	for _, mode := range modes {
		errs = append(errs, notSupported(mode, path, corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOnce, corev1.ReadWriteOncePod)...)
		if mode == corev1.ReadWriteOncePod {
			alone = true
		} else {
			others = true
		}
	}
	if alone && others {
		errs = append(errs, field.Forbidden(path, "may not use ReadWriteOncePod with other access modes"))
	}
	return errs
}

// ValidateClaimSpec checks the spec of a claim, or of a claim that will be
// made.
func ValidateClaimSpec(spec *corev1.PersistentVolumeClaimSpec, path *field.Path) field.ErrorList {
	errs := ValidateAccessModes(spec.AccessModes, path.Child("accessModes"))
	if spec.Selector != nil {
		errs = append(errs, metav1validation.ValidateLabelSelector(spec.Selector, metav1validation.LabelSelectorValidationOptions{}, path.Child("selector"))...)
	}
	storage, set := spec.Resources.Requests[corev1.ResourceStorage]
	at := path.Child("resources").Key(string(corev1.ResourceStorage))
	switch {
	case !set:
		errs = append(errs, field.Required(at, ""))
	case storage.Sign() <= 0:
		errs = append(errs, field.Invalid(at, storage.String(), "must be greater than zero"))
	}
	if c := spec.StorageClassName; c != nil && *c != "" {
		errs = append(errs, invalid(path.Child("storageClassName"), *c, apivalidation.NameIsDNSSubdomain(*c, false))...)
	}
	if spec.VolumeMode != nil {
		errs = append(errs, notSupported(*spec.VolumeMode, path.Child("volumeMode"), corev1.PersistentVolumeBlock, corev1.PersistentVolumeFilesystem)...)
	}
	if c := spec.VolumeAttributesClassName; c != nil && *c != "" {
		errs = append(errs, invalid(path.Child("volumeAttributesClassName"), *c, apivalidation.NameIsDNSSubdomain(*c, false))...)
	}
	return append(errs, validateDataSources(spec, path)...)
}

func validateDataSources(spec *corev1.PersistentVolumeClaimSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s := spec.DataSource; s != nil {
		errs = append(errs, validateDataSource(s.APIGroup, s.Kind, s.Name, path.Child("dataSource"))...)
	}
	if s := spec.DataSourceRef; s != nil {
		at := path.Child("dataSourceRef")
		errs = append(errs, validateDataSource(s.APIGroup, s.Kind, s.Name, at)...)
		if s.Namespace != nil && *s.Namespace != "" {
			errs = append(errs, invalid(at.Child("namespace"), *s.Namespace, apivalidation.ValidateNamespaceName(*s.Namespace, false))...)
		}
	}
	if a, b := spec.DataSource, spec.DataSourceRef; a != nil && b != nil && (b.Namespace == nil || *b.Namespace == "") {
		if a.Kind != b.Kind || a.Name != b.Name || deref(a.APIGroup) != deref(b.APIGroup) {
			errs = append(errs, field.Invalid(path, path.Child("dataSource").String(), "must match dataSourceRef"))
		}
	}
	return errs
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func validateDataSource(group *string, kind, name string, path *field.Path) field.ErrorList {
	errs := required(name, path.Child("name"))
	errs = append(errs, required(kind, path.Child("kind"))...)
	if deref(group) == "" && kind != "PersistentVolumeClaim" {
		errs = append(errs, field.Invalid(path, kind, "must be 'PersistentVolumeClaim' when referencing the default apiGroup"))
	}
	if g := deref(group); g != "" {
		errs = append(errs, dnsSubdomain(g, path.Child("apiGroup"))...)
	}
	return errs
}
