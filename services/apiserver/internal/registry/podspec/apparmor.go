package podspec

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// SyncAppArmor writes the deprecated AppArmor annotations of a new pod into its
// containers' fields, and returns a warning for each that was used.
func SyncAppArmor(pod *corev1.Pod) []string {
	if pod.Spec.OS != nil && pod.Spec.OS.Name == corev1.Windows {
		return nil
	}
	var warnings []string
	sync := func(c *corev1.Container) {
		key := appArmorPrefix + c.Name
		annotation, set := pod.Annotations[key]
		if !set || (c.SecurityContext != nil && c.SecurityContext.AppArmorProfile != nil) {
			return
		}
		profile := appArmorFromAnnotation(annotation)
		if profile != nil && len(validateAppArmor(profile, &field.Path{})) > 0 {
			profile = nil
		}
		var whole *corev1.AppArmorProfile
		if pod.Spec.SecurityContext != nil {
			whole = pod.Spec.SecurityContext.AppArmorProfile
		}
		if profile != nil && apiequality.Semantic.DeepEqual(profile, whole) {
			return
		}
		if profile != nil {
			if c.SecurityContext == nil {
				c.SecurityContext = &corev1.SecurityContext{}
			}
			c.SecurityContext.AppArmorProfile = profile
		}
		warnings = append(warnings, fmt.Sprintf(`%s: deprecated since v1.30; use the "appArmorProfile" field instead`, field.NewPath("metadata", "annotations").Key(key)))
	}
	for i := range pod.Spec.InitContainers {
		sync(&pod.Spec.InitContainers[i])
	}
	for i := range pod.Spec.Containers {
		sync(&pod.Spec.Containers[i])
	}
	return warnings
}

func appArmorFromAnnotation(annotation string) *corev1.AppArmorProfile {
	switch {
	case annotation == unconfined:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
	case annotation == runtimeDefault:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}
	}
	if name, ok := strings.CutPrefix(annotation, localhostPrefix); ok && name != "" {
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}
	}
	return nil
}
