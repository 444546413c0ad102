package podspec

import (
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateVolumes checks the volumes and remembers the valid ones.
func (c *checker) validateVolumes(path *field.Path) field.ErrorList {
	c.volumes = map[string]corev1.VolumeSource{}
	var errs field.ErrorList
	for i := range c.spec.Volumes {
		volume, at := &c.spec.Volumes[i], path.Index(i)
		bad := c.validateVolume(volume, at)
		if volume.Name == "" {
			bad = append(bad, field.Required(at.Child("name"), ""))
		} else {
			bad = append(bad, dnsLabel(volume.Name, at.Child("name"))...)
		}
		if _, twice := c.volumes[volume.Name]; twice {
			bad = append(bad, field.Duplicate(at.Child("name"), volume.Name))
		}
		if len(bad) == 0 {
			c.volumes[volume.Name] = volume.VolumeSource
		}
		errs = append(errs, bad...)
		if claim := volume.PersistentVolumeClaim; claim != nil && c.makesClaim(claim.ClaimName) {
			errs = append(errs, field.Invalid(at.Child("persistentVolumeClaim", "claimName"), claim.ClaimName, "must not reference a PVC that gets created for an ephemeral volume"))
		}
	}
	return errs
}

// makesClaim says whether a claim will be made for one of the pod's ephemeral
// volumes.
func (c *checker) makesClaim(name string) bool {
	if c.pod == nil || c.pod.Name == "" {
		return false
	}
	for i := range c.spec.Volumes {
		if v := &c.spec.Volumes[i]; v.Ephemeral != nil && c.pod.Name+"-"+v.Name == name {
			return true
		}
	}
	return false
}

// volumeTypes is what the one set source of a volume is called. Sources after
// the first are refused.
func volumeTypes(source *corev1.VolumeSource, path *field.Path) (string, field.ErrorList) {
	first := ""
	var errs field.ErrorList
	value := reflect.ValueOf(source).Elem()
	for i := range value.NumField() {
		if value.Field(i).IsNil() {
			continue
		}
		name := jsonName(value.Type().Field(i))
		if first == "" {
			first = name
		} else {
			errs = append(errs, field.Forbidden(path.Child(name), "may not specify more than 1 volume type"))
		}
	}
	if first == "" {
		errs = append(errs, field.Required(path, "must specify a volume type"))
	}
	return first, errs
}

func (c *checker) validateVolume(volume *corev1.Volume, path *field.Path) field.ErrorList {
	name, errs := volumeTypes(&volume.VolumeSource, path)
	source, at := &volume.VolumeSource, path.Child(name)
	switch name {
	case "emptyDir":
		if limit := source.EmptyDir.SizeLimit; limit != nil && limit.Sign() < 0 {
			errs = append(errs, field.Forbidden(at.Child("sizeLimit"), "SizeLimit field must be a valid resource quantity"))
		}
	case "hostPath":
		errs = append(errs, ValidateHostPath(source.HostPath, at)...)
	case "gitRepo":
		errs = append(errs, required(source.GitRepo.Repository, at.Child("repository"))...)
		errs = append(errs, descending(source.GitRepo.Directory, at.Child("directory"))...)
	case "secret":
		errs = append(errs, required(source.Secret.SecretName, at.Child("secretName"))...)
		errs = append(errs, validMode(source.Secret.DefaultMode, at.Child("defaultMode"))...)
		errs = append(errs, validateItems(source.Secret.Items, at.Child("items"))...)
	case "configMap":
		errs = append(errs, required(source.ConfigMap.Name, at.Child("name"))...)
		errs = append(errs, validMode(source.ConfigMap.DefaultMode, at.Child("defaultMode"))...)
		errs = append(errs, validateItems(source.ConfigMap.Items, at.Child("items"))...)
	case "persistentVolumeClaim":
		errs = append(errs, required(source.PersistentVolumeClaim.ClaimName, at.Child("claimName"))...)
	case "downwardAPI":
		errs = append(errs, validMode(source.DownwardAPI.DefaultMode, at.Child("defaultMode"))...)
		for i := range source.DownwardAPI.Items {
			errs = append(errs, validateDownwardFile(&source.DownwardAPI.Items[i], at)...)
		}
	case "projected":
		errs = append(errs, c.validateProjected(source.Projected, at)...)
	case "ephemeral":
		errs = append(errs, c.validateEphemeralVolume(volume.Name, source.Ephemeral, path, at)...)
	case "image":
		if c.pod != nil {
			errs = append(errs, required(source.Image.Reference, at.Child("reference"))...)
		}
		errs = append(errs, validatePullPolicy(source.Image.PullPolicy, at.Child("pullPolicy"))...)
	default:
		errs = append(errs, validateNetworkVolume(volume.Name, source, path)...)
	}
	return errs
}

// ValidateHostPath checks a path on the node.
func ValidateHostPath(source *corev1.HostPathVolumeSource, path *field.Path) field.ErrorList {
	if source.Path == "" {
		return field.ErrorList{field.Required(path.Child("path"), "")}
	}
	errs := ValidateNoBacksteps(source.Path, path.Child("path"))
	if source.Type != nil {
		errs = append(errs, notSupported(*source.Type, path.Child("type"), corev1.HostPathUnset, corev1.HostPathDirectoryOrCreate,
			corev1.HostPathDirectory, corev1.HostPathFileOrCreate, corev1.HostPathFile, corev1.HostPathSocket, corev1.HostPathCharDev, corev1.HostPathBlockDev)...)
	}
	return errs
}

func validateItems(items []corev1.KeyToPath, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, item := range items {
		at := path.Index(i)
		errs = append(errs, required(item.Key, at.Child("key"))...)
		errs = append(errs, required(item.Path, at.Child("path"))...)
		errs = append(errs, fileName(item.Path, at.Child("path"))...)
		errs = append(errs, validMode(item.Mode, at.Child("mode"))...)
	}
	return errs
}

func validateDownwardFile(file *corev1.DownwardAPIVolumeFile, path *field.Path) field.ErrorList {
	errs := required(file.Path, path.Child("path"))
	errs = append(errs, fileName(file.Path, path.Child("path"))...)
	switch {
	case file.FieldRef != nil:
		errs = append(errs, validateFieldRef(file.FieldRef, volumeFields(), path.Child("fieldRef"))...)
		if file.ResourceFieldRef != nil {
			errs = append(errs, field.Invalid(path, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously"))
		}
	case file.ResourceFieldRef != nil:
		errs = append(errs, validateResourceRef(file.ResourceFieldRef, true, path.Child("resourceFieldRef"))...)
	default:
		errs = append(errs, field.Required(path, "one of fieldRef and resourceFieldRef is required"))
	}
	return append(errs, validMode(file.Mode, path.Child("mode"))...)
}

func (c *checker) validateEphemeralVolume(name string, source *corev1.EphemeralVolumeSource, path, at *field.Path) field.ErrorList {
	template := source.VolumeClaimTemplate
	if template == nil {
		return field.ErrorList{field.Required(at.Child("volumeClaimTemplate"), "")}
	}
	at = at.Child("volumeClaimTemplate")
	errs := ValidateClaimSpec(&template.Spec, at.Child("spec"))
	errs = append(errs, apivalidation.ValidateAnnotations(template.Annotations, at.Child("metadata", "annotations"))...)
	if c.pod != nil && c.pod.Name != "" && name != "" {
		claim := c.pod.Name + "-" + name
		for _, msg := range apivalidation.NameIsDNSSubdomain(claim, false) {
			errs = append(errs, field.Invalid(path.Child("name"), name, fmt.Sprintf("PVC name %q: %v", claim, msg)))
		}
	}
	return errs
}

// validateNoTokens refuses projected tokens of a pod without service account.
func validateNoTokens(volumes []corev1.Volume, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range volumes {
		if volumes[i].Projected == nil {
			continue
		}
		for j, source := range volumes[i].Projected.Sources {
			if source.ServiceAccountToken != nil {
				at := path.Index(i).Child("projected", "sources").Index(j).Child("serviceAccountToken")
				errs = append(errs, field.Forbidden(at, "must not be specified when serviceAccountName is not set"))
			}
		}
	}
	return errs
}
