package podspec

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The annotations that are looked into.
const (
	mirrorAnnotation      = "kubernetes.io/config.mirror"
	tolerationsAnnotation = "scheduler.alpha.kubernetes.io/tolerations"
	deletionCost          = "controller.kubernetes.io/pod-deletion-cost"

	seccompPodAnnotation       = corev1.SeccompPodAnnotationKey
	seccompContainerPrefix     = corev1.SeccompContainerAnnotationKeyPrefix
	appArmorPrefix             = corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix
	localhostPrefix            = "localhost/"
	unconfined, runtimeDefault = "unconfined", "runtime/default"
	dockerDefault              = "docker/default"
	appArmorMismatch           = "apparmor type in annotation and field must match"
	seccompMismatch            = "seccomp type in annotation and field must match"
)

func validateAnnotations(annotations map[string]string, spec *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if value, mirror := annotations[mirrorAnnotation]; mirror && spec.NodeName == "" {
		errs = append(errs, field.Invalid(path.Key(mirrorAnnotation), value, "must set spec.nodeName if mirror pod annotation is set"))
	}
	if text := annotations[tolerationsAnnotation]; text != "" {
		var tolerations []corev1.Toleration
		if err := json.Unmarshal([]byte(text), &tolerations); err != nil {
			errs = append(errs, field.Invalid(path, tolerationsAnnotation, err.Error()))
		}
		errs = append(errs, ValidateTolerations(tolerations, path.Child(tolerationsAnnotation))...)
	}
	if cost, set := annotations[deletionCost]; set && !validCost(cost) {
		errs = append(errs, field.Invalid(path.Key(deletionCost), cost, "must be a 32bit integer"))
	}
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		value := annotations[key]
		switch {
		case key == seccompPodAnnotation || strings.HasPrefix(key, seccompContainerPrefix):
			errs = append(errs, validateSeccompAnnotation(value, path.Child(key))...)
		case strings.HasPrefix(key, appArmorPrefix):
			errs = append(errs, validateAppArmorAnnotation(strings.TrimPrefix(key, appArmorPrefix), value, spec, path.Key(key))...)
		}
	}
	return errs
}

// validCost says that a deletion cost is a number in its canonical form.
func validCost(cost string) bool {
	if cost != "" && (cost[0] == '+' || cost[0] == '0' && cost != "0") {
		return false
	}
	_, err := strconv.ParseInt(cost, 10, 32)
	return err == nil
}

func validateSeccompAnnotation(profile string, path *field.Path) field.ErrorList {
	switch profile {
	case runtimeDefault, dockerDefault, unconfined:
		return nil
	}
	if name, ok := strings.CutPrefix(profile, localhostPrefix); ok {
		return descending(name, path)
	}
	return field.ErrorList{field.Invalid(path, profile, "must be a valid seccomp profile")}
}

func validateAppArmorAnnotation(container, profile string, spec *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	found := false
	eachContainer(spec, path, func(c *corev1.Container, _ *field.Path) { found = found || c.Name == container })
	if !found {
		errs = append(errs, field.Invalid(path, container, "container not found"))
	}
	if profile != "" && profile != runtimeDefault && profile != unconfined && !strings.HasPrefix(profile, localhostPrefix) {
		errs = append(errs, field.Invalid(path, profile, fmt.Sprintf("invalid AppArmor profile name: %q", profile)))
	}
	return errs
}

// validateProfilesMatch wants the deprecated annotations of security profiles
// to say what the fields say.
func validateProfilesMatch(annotations map[string]string, spec *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if sc := spec.SecurityContext; sc != nil && sc.SeccompProfile != nil {
		if value, set := annotations[seccompPodAnnotation]; set {
			errs = append(errs, seccompMatches(value, sc.SeccompProfile, path.Child("securityContext", "seccompProfile"))...)
		}
	}
	eachContainer(spec, path, func(c *corev1.Container, at *field.Path) {
		if sc := c.SecurityContext; sc != nil && sc.SeccompProfile != nil {
			if value, set := annotations[seccompContainerPrefix+c.Name]; set {
				errs = append(errs, seccompMatches(value, sc.SeccompProfile, at.Child("securityContext", "seccompProfile"))...)
			}
		}
		if value, set := annotations[appArmorPrefix+c.Name]; set && (spec.OS == nil || spec.OS.Name != corev1.Windows) {
			errs = append(errs, appArmorMatches(value, appArmorOf(spec, c), at.Child("securityContext", "appArmorProfile"))...)
		}
	})
	return errs
}

func appArmorOf(spec *corev1.PodSpec, c *corev1.Container) *corev1.AppArmorProfile {
	if c.SecurityContext != nil && c.SecurityContext.AppArmorProfile != nil {
		return c.SecurityContext.AppArmorProfile
	}
	if spec.SecurityContext != nil {
		return spec.SecurityContext.AppArmorProfile
	}
	return nil
}

func seccompMatches(value string, p *corev1.SeccompProfile, path *field.Path) field.ErrorList {
	same := true
	switch p.Type {
	case corev1.SeccompProfileTypeUnconfined:
		same = value == unconfined
	case corev1.SeccompProfileTypeRuntimeDefault:
		same = value == runtimeDefault || value == dockerDefault
	case corev1.SeccompProfileTypeLocalhost:
		same = strings.HasPrefix(value, localhostPrefix)
		if same && value != localhostPrefix+deref(p.LocalhostProfile) {
			return field.ErrorList{field.Forbidden(path.Child("localhostProfile"), "seccomp profile in annotation and field must match")}
		}
	}
	if !same {
		return field.ErrorList{field.Forbidden(path.Child("type"), seccompMismatch)}
	}
	return nil
}

func appArmorMatches(value string, p *corev1.AppArmorProfile, path *field.Path) field.ErrorList {
	if p == nil {
		return nil
	}
	same := true
	switch p.Type {
	case corev1.AppArmorProfileTypeUnconfined:
		same = value == unconfined
	case corev1.AppArmorProfileTypeRuntimeDefault:
		same = value == runtimeDefault
	case corev1.AppArmorProfileTypeLocalhost:
		same = strings.HasPrefix(value, localhostPrefix)
		if same && value != localhostPrefix+deref(p.LocalhostProfile) {
			return field.ErrorList{field.Forbidden(path.Child("localhostProfile"), "apparmor profile in annotation and field must match")}
		}
	}
	if !same {
		return field.ErrorList{field.Forbidden(path.Child("type"), appArmorMismatch)}
	}
	return nil
}

// validateAnnotationUpdate keeps what marks a mirror pod and the deprecated
// AppArmor annotations as they are.
func validateAnnotationUpdate(pod, old *corev1.Pod, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, key := range slices.Sorted(maps.Keys(old.Annotations)) {
		if value, kept := pod.Annotations[key]; kept && value == old.Annotations[key] {
			continue
		}
		if strings.HasPrefix(key, appArmorPrefix) {
			errs = append(errs, field.Forbidden(path.Key(key), "may not remove or update AppArmor annotations"))
		}
		if key == mirrorAnnotation {
			errs = append(errs, field.Forbidden(path.Key(key), "may not remove or update mirror pod annotation"))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(pod.Annotations)) {
		if _, had := old.Annotations[key]; had {
			continue
		}
		if strings.HasPrefix(key, appArmorPrefix) {
			errs = append(errs, field.Forbidden(path.Key(key), "may not add AppArmor annotations"))
		}
		if key == mirrorAnnotation {
			errs = append(errs, field.Forbidden(path.Key(key), "may not add mirror pod annotation"))
		}
	}
	return errs
}
