package podspec

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func privileged(sc *corev1.SecurityContext) bool {
	return sc != nil && sc.Privileged != nil && *sc.Privileged
}

func validUser(id *int64, path *field.Path) field.ErrorList {
	if id == nil {
		return nil
	}
	return invalid(path, *id, utilvalidation.IsValidUserID(*id))
}

func validGroup(id *int64, path *field.Path) field.ErrorList {
	if id == nil {
		return nil
	}
	return invalid(path, *id, utilvalidation.IsValidGroupID(*id))
}

// validateSecurity checks a container's security context.
func validateSecurity(sc *corev1.SecurityContext, hostUsers bool, path *field.Path) field.ErrorList {
	if sc == nil {
		return nil
	}
	errs := validUser(sc.RunAsUser, path.Child("runAsUser"))
	errs = append(errs, validGroup(sc.RunAsGroup, path.Child("runAsGroup"))...)
	if sc.ProcMount != nil {
		errs = append(errs, notSupported(*sc.ProcMount, path.Child("procMount"), corev1.DefaultProcMount, corev1.UnmaskedProcMount)...)
		if hostUsers && *sc.ProcMount == corev1.UnmaskedProcMount {
			errs = append(errs, field.Invalid(path.Child("procMount"), sc.ProcMount, "`hostUsers` must be false to use `Unmasked`"))
		}
	}
	errs = append(errs, validateSeccomp(sc.SeccompProfile, path.Child("seccompProfile"))...)
	if sc.AllowPrivilegeEscalation != nil && !*sc.AllowPrivilegeEscalation {
		if privileged(sc) {
			errs = append(errs, field.Invalid(path, sc, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"))
		}
		if sc.Capabilities != nil && slices.Contains(sc.Capabilities.Add, "CAP_SYS_ADMIN") {
			errs = append(errs, field.Invalid(path, sc, "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"))
		}
	}
	errs = append(errs, validateWindowsOptions(sc.WindowsOptions, path.Child("windowsOptions"))...)
	return append(errs, validateAppArmor(sc.AppArmorProfile, path.Child("appArmorProfile"))...)
}

func (c *checker) validatePodSecurity(path *field.Path) field.ErrorList {
	sc := c.spec.SecurityContext
	var errs field.ErrorList
	if share := c.spec.ShareProcessNamespace; share != nil && *share && c.spec.HostPID {
		errs = append(errs, field.Invalid(path.Child("shareProcessNamespace"), *share, "ShareProcessNamespace and HostPID cannot both be enabled"))
	}
	if sc == nil {
		return errs
	}
	errs = append(errs, validGroup(sc.FSGroup, path.Child("fsGroup"))...)
	errs = append(errs, validUser(sc.RunAsUser, path.Child("runAsUser"))...)
	errs = append(errs, validGroup(sc.RunAsGroup, path.Child("runAsGroup"))...)
	for i := range sc.SupplementalGroups {
		errs = append(errs, validGroup(&sc.SupplementalGroups[i], path.Child("supplementalGroups").Index(i))...)
	}
	errs = append(errs, c.validateSysctls(sc.Sysctls, path.Child("sysctls"))...)
	if p := sc.FSGroupChangePolicy; p != nil {
		errs = append(errs, notSupported(*p, path.Child("fsGroupChangePolicy"), corev1.FSGroupChangeAlways, corev1.FSGroupChangeOnRootMismatch)...)
	}
	errs = append(errs, validateSeccomp(sc.SeccompProfile, path.Child("seccompProfile"))...)
	errs = append(errs, validateWindowsOptions(sc.WindowsOptions, path.Child("windowsOptions"))...)
	errs = append(errs, validateAppArmor(sc.AppArmorProfile, path.Child("appArmorProfile"))...)
	if p := sc.SupplementalGroupsPolicy; p != nil {
		errs = append(errs, notSupported(*p, path.Child("supplementalGroupsPolicy"), corev1.SupplementalGroupsPolicyMerge, corev1.SupplementalGroupsPolicyStrict)...)
	}
	if p := sc.SELinuxChangePolicy; p != nil {
		errs = append(errs, notSupported(*p, path.Child("seLinuxChangePolicy"), corev1.SELinuxChangePolicyMountOption, corev1.SELinuxChangePolicyRecursive)...)
	}
	return errs
}

const (
	sysctlSegment = "[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
	sysctlName    = "^(" + sysctlSegment + "[\\./])*" + sysctlSegment + "$"
	maxSysctl     = 253
)

func (c *checker) validateSysctls(sysctls []corev1.Sysctl, path *field.Path) field.ErrorList {
	if len(sysctls) == 0 {
		return nil
	}
	var errs field.ErrorList
	pattern := regexp.MustCompile(sysctlName)
	seen := map[string]bool{}
	for i, s := range sysctls {
		at := path.Index(i).Child("name")
		switch {
		case s.Name == "":
			errs = append(errs, field.Required(at, ""))
		case len(s.Name) > maxSysctl || !pattern.MatchString(s.Name):
			errs = append(errs, field.Invalid(at, s.Name, fmt.Sprintf("must have at most %d characters and match regex %s", maxSysctl, pattern)))
		case seen[s.Name]:
			errs = append(errs, field.Duplicate(at, s.Name))
		}
		seen[s.Name] = true
		name := strings.ReplaceAll(s.Name, "/", ".")
		switch {
		case c.spec.HostNetwork && strings.HasPrefix(name, "net."):
			errs = append(errs, field.Invalid(at, s.Name, "may not be specified when 'hostNetwork' is true"))
		case c.spec.HostIPC && isIPCSysctl(name):
			errs = append(errs, field.Invalid(at, s.Name, "may not be specified when 'hostIPC' is true"))
		}
	}
	return errs
}

// isIPCSysctl says that a sysctl belongs to the IPC namespace.
func isIPCSysctl(name string) bool {
	return strings.HasPrefix(name, "kernel.shm") || strings.HasPrefix(name, "kernel.msg") || strings.HasPrefix(name, "fs.mqueue.") || name == "kernel.sem"
}

func validateSeccomp(p *corev1.SeccompProfile, path *field.Path) field.ErrorList {
	if p == nil {
		return nil
	}
	var errs field.ErrorList
	if p.Type == "" {
		errs = append(errs, field.Required(path.Child("type"), "type is required when seccompProfile is set"))
	} else {
		errs = append(errs, validateEnum(p.Type, path.Child("type"),
			corev1.SeccompProfileTypeLocalhost, corev1.SeccompProfileTypeRuntimeDefault, corev1.SeccompProfileTypeUnconfined)...)
	}
	at := path.Child("localhostProfile")
	switch {
	case p.Type != corev1.SeccompProfileTypeLocalhost:
		if p.LocalhostProfile != nil {
			errs = append(errs, field.Invalid(at, p, "can only be set when seccomp type is Localhost"))
		}
	case p.LocalhostProfile == nil:
		errs = append(errs, field.Required(at, "must be set when seccomp type is Localhost"))
	default:
		errs = append(errs, descending(*p.LocalhostProfile, at)...)
	}
	return errs
}

// maxProfilePath is the longest path of an AppArmor profile, in bytes.
const maxProfilePath = 4095

func validateAppArmor(p *corev1.AppArmorProfile, path *field.Path) field.ErrorList {
	if p == nil {
		return nil
	}
	const needed = "must be set when AppArmor type is Localhost"
	at := path.Child("localhostProfile")
	switch p.Type {
	case corev1.AppArmorProfileTypeLocalhost:
		if p.LocalhostProfile == nil {
			return field.ErrorList{field.Required(at, needed)}
		}
		var errs field.ErrorList
		if trimmed := strings.TrimSpace(*p.LocalhostProfile); trimmed != *p.LocalhostProfile {
			errs = append(errs, field.Invalid(at, *p.LocalhostProfile, "must not be padded with whitespace"))
		} else if trimmed == "" {
			errs = append(errs, field.Required(at, needed))
		}
		if len(*p.LocalhostProfile) > maxProfilePath {
			errs = append(errs, field.TooLong(at, "", maxProfilePath))
		}
		return errs
	case corev1.AppArmorProfileTypeRuntimeDefault, corev1.AppArmorProfileTypeUnconfined:
		if p.LocalhostProfile != nil {
			return field.ErrorList{field.Invalid(at, p.LocalhostProfile, "can only be set when AppArmor type is Localhost")}
		}
		return nil
	case "":
		return field.ErrorList{field.Required(path.Child("type"), "type is required when appArmorProfile is set")}
	default:
		return field.ErrorList{field.NotSupported(path.Child("type"), p.Type, []corev1.AppArmorProfileType{
			corev1.AppArmorProfileTypeLocalhost, corev1.AppArmorProfileTypeRuntimeDefault, corev1.AppArmorProfileTypeUnconfined,
		})}
	}
}
