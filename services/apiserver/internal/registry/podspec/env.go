package podspec

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func (c *checker) validateEnv(vars []corev1.EnvVar, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range vars {
		at := path.Index(i)
		if vars[i].Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		} else {
			errs = append(errs, invalid(at.Child("name"), vars[i].Name, utilvalidation.IsRelaxedEnvVarName(vars[i].Name))...)
		}
		errs = append(errs, c.validateValueFrom(&vars[i], at.Child("valueFrom"))...)
	}
	return errs
}

func (c *checker) validateValueFrom(v *corev1.EnvVar, path *field.Path) field.ErrorList {
	from := v.ValueFrom
	if from == nil {
		return nil
	}
	var errs field.ErrorList
	sources := 0
	if from.FieldRef != nil {
		sources++
		errs = append(errs, validateFieldRef(from.FieldRef, envFields(), path.Child("fieldRef"))...)
	}
	if from.ResourceFieldRef != nil {
		sources++
		errs = append(errs, validateResourceRef(from.ResourceFieldRef, false, path.Child("resourceFieldRef"))...)
	}
	if ref := from.ConfigMapKeyRef; ref != nil {
		sources++
		errs = append(errs, validateKeyRef(ref.Name, ref.Key, path.Child("configMapKeyRef"))...)
	}
	if ref := from.SecretKeyRef; ref != nil {
		sources++
		errs = append(errs, validateKeyRef(ref.Name, ref.Key, path.Child("secretKeyRef"))...)
	}
	if from.FileKeyRef != nil {
		sources++
		errs = append(errs, c.validateFileRef(from.FileKeyRef, path.Child("fileKeyRef"))...)
	}
	switch {
	case sources == 0:
		errs = append(errs, field.Invalid(path, "", "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"))
	case v.Value != "":
		errs = append(errs, field.Invalid(path, "", "may not be specified when `value` is not empty"))
	case sources > 1:
		errs = append(errs, field.Invalid(path, "", "may not have more than one field specified at a time"))
	}
	return errs
}

// validateFileRef checks a reference into a file of an emptyDir volume
// (KEP-3721).
func (c *checker) validateFileRef(ref *corev1.FileKeySelector, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if ref.Key == "" {
		errs = append(errs, field.Required(path.Child("key"), ""))
	} else {
		errs = append(errs, invalid(path.Child("key"), ref.Key, utilvalidation.IsEnvVarName(ref.Key))...)
	}
	volume, known := c.volumes[ref.VolumeName]
	switch {
	case ref.VolumeName == "":
		errs = append(errs, field.Required(path.Child("volumeName"), ""))
	case !known:
		errs = append(errs, field.NotFound(path.Child("volumeName"), ref.VolumeName))
	case volume.EmptyDir == nil:
		errs = append(errs, field.Invalid(path.Child("volumeName"), ref.VolumeName, "referenced volume must be of type emptyDir"))
	}
	if ref.Path == "" {
		return append(errs, field.Required(path.Child("path"), ""))
	}
	return append(errs, fileName(ref.Path, path.Child("path"))...)
}

func validateEnvFrom(sources []corev1.EnvFromSource, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, source := range sources {
		at := path.Index(i)
		if source.Prefix != "" {
			errs = append(errs, invalid(at.Child("prefix"), source.Prefix, utilvalidation.IsRelaxedEnvVarName(source.Prefix))...)
		}
		count := 0
		if source.ConfigMapRef != nil {
			count++
			errs = append(errs, validateRef(source.ConfigMapRef.Name, at.Child("configMapRef", "name"))...)
		}
		if source.SecretRef != nil {
			count++
			errs = append(errs, validateRef(source.SecretRef.Name, at.Child("secretRef", "name"))...)
		}
		switch {
		case count == 0:
			errs = append(errs, field.Invalid(path, "", "must specify one of: `configMapRef` or `secretRef`"))
		case count > 1:
			errs = append(errs, field.Invalid(path, "", "may not have more than one field specified at a time"))
		}
	}
	return errs
}

func validateRef(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return invalid(path, name, apivalidation.NameIsDNSSubdomain(name, true))
}

func validateKeyRef(name, key string, path *field.Path) field.ErrorList {
	errs := invalid(path.Child("name"), name, apivalidation.NameIsDNSSubdomain(name, false))
	if key == "" {
		return append(errs, field.Required(path.Child("key"), ""))
	}
	return append(errs, invalid(path.Child("key"), key, utilvalidation.IsConfigMapKey(key))...)
}

func envFields() []string {
	return []string{
		"metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
		"status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs",
	}
}

func volumeFields() []string {
	return []string{"metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"}
}

// subscripted splits metadata.labels['key'] into its field and its key.
func subscripted(path string) (name, key string, ok bool) {
	match := regexp.MustCompile(`^(.+)\['(.*)'\]$`).FindStringSubmatch(path)
	if match == nil {
		return path, "", false
	}
	return match[1], match[2], true
}

func validateFieldRef(ref *corev1.ObjectFieldSelector, supported []string, path *field.Path) field.ErrorList {
	switch {
	case ref.APIVersion == "":
		return field.ErrorList{field.Required(path.Child("apiVersion"), "")}
	case ref.FieldPath == "":
		return field.ErrorList{field.Required(path.Child("fieldPath"), "")}
	case ref.APIVersion != "v1":
		return field.ErrorList{field.Invalid(path.Child("fieldPath"), ref.FieldPath, fmt.Sprintf("error converting fieldPath: unsupported pod version: %s", ref.APIVersion))}
	}
	name, key, ok := subscripted(ref.FieldPath)
	if ok {
		switch name {
		case "metadata.annotations":
			return invalid(path, key, utilvalidation.IsQualifiedName(strings.ToLower(key)))
		case "metadata.labels":
			return invalid(path, key, utilvalidation.IsQualifiedName(key))
		default:
			return field.ErrorList{field.Invalid(path.Child("fieldPath"), ref.FieldPath, fmt.Sprintf("error converting fieldPath: field label does not support subscript: %s", ref.FieldPath))}
		}
	}
	known := append(envFields(), "metadata.annotations", "metadata.labels", "spec.host", "spec.restartPolicy", "status.phase")
	if !slices.Contains(known, name) {
		return field.ErrorList{field.Invalid(path.Child("fieldPath"), ref.FieldPath, fmt.Sprintf("error converting fieldPath: field label not supported: %s", ref.FieldPath))}
	}
	if !slices.Contains(supported, name) {
		return field.ErrorList{field.NotSupported(path.Child("fieldPath"), name, supported)}
	}
	return nil
}

func resourceFields() []string {
	return []string{
		"limits.cpu", "limits.ephemeral-storage", "limits.memory", "requests.cpu", "requests.ephemeral-storage", "requests.memory",
	}
}

// validateResourceRef checks a reference to a container's request or limit; one
// in a volume must name the container.
func validateResourceRef(ref *corev1.ResourceFieldSelector, volume bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	huge := strings.HasPrefix(ref.Resource, "limits.hugepages-") || strings.HasPrefix(ref.Resource, "requests.hugepages-")
	switch {
	case volume && ref.ContainerName == "":
		errs = append(errs, field.Required(path.Child("containerName"), ""))
	case ref.Resource == "":
		errs = append(errs, field.Required(path.Child("resource"), ""))
	case !huge && !slices.Contains(resourceFields(), ref.Resource):
		errs = append(errs, field.NotSupported(path.Child("resource"), ref.Resource, resourceFields()))
	}
	return append(errs, validateDivisor(ref.Resource, ref.Divisor, huge, path.Child("divisor"))...)
}

func validateDivisor(name string, divisor resource.Quantity, huge bool, path *field.Path) field.ErrorList {
	if divisor.IsZero() {
		return nil
	}
	const bytes = "1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei"
	isBytes := slices.Contains(strings.Split(bytes, ", "), divisor.String())
	_, what, _ := strings.Cut(name, ".")
	detail := ""
	switch {
	case what == "cpu" && divisor.String() != "1m" && divisor.String() != "1":
		detail = "only divisor's values 1m and 1 are supported with the cpu resource"
	case what == "memory" && !isBytes:
		detail = "only divisor's values " + bytes + " are supported with the memory resource"
	case what == "ephemeral-storage" && !isBytes:
		detail = "only divisor's values " + bytes + " are supported with the local ephemeral storage resource"
	case huge && !isBytes:
		detail = "only divisor's values " + bytes + " are supported with the hugepages resource"
	}
	if detail == "" {
		return nil
	}
	return field.ErrorList{field.Invalid(path, name, detail)}
}
