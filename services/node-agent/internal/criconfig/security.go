package criconfig

import (
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// security is the container's security context merged with its pod's.
func (n Node) security(c Container) (*runtimeapi.LinuxContainerSecurityContext, error) {
	context := effective(c.Pod, c.Spec)
	if err := verifyNonRoot(c, context); err != nil {
		return nil, err
	}
	namespaces, err := n.namespaces(c.Pod)
	if err != nil {
		return nil, err
	}
	out := &runtimeapi.LinuxContainerSecurityContext{
		NamespaceOptions:   namespaces,
		SupplementalGroups: supplementalGroups(c.Pod),
		MaskedPaths:        maskedPaths(),
		ReadonlyPaths:      readonlyPaths(),
	}
	if c.TargetID != "" {
		out.NamespaceOptions.Pid, out.NamespaceOptions.TargetId = runtimeapi.NamespaceMode_TARGET, c.TargetID
	}
	if pod := c.Pod.Spec.SecurityContext; pod != nil && pod.SupplementalGroupsPolicy != nil && *pod.SupplementalGroupsPolicy == corev1.SupplementalGroupsPolicyStrict {
		out.SupplementalGroupsPolicy = runtimeapi.SupplementalGroupsPolicy_Strict
	}
	runAs(out, context, c.Image)
	out.Privileged = isTrue(context.Privileged)
	out.ReadonlyRootfs = isTrue(context.ReadOnlyRootFilesystem)
	out.NoNewPrivs = context.AllowPrivilegeEscalation != nil && !*context.AllowPrivilegeEscalation
	if context.ProcMount != nil && *context.ProcMount == corev1.UnmaskedProcMount {
		out.MaskedPaths, out.ReadonlyPaths = nil, nil
	}
	if context.Capabilities != nil {
		out.Capabilities = &runtimeapi.Capability{AddCapabilities: names(context.Capabilities.Add), DropCapabilities: names(context.Capabilities.Drop)}
	}
	if out.Seccomp, err = n.seccomp(context, out.Privileged); err != nil {
		return nil, err
	}
	out.Apparmor = apparmor(context)
	if se := context.SELinuxOptions; se != nil {
		out.SelinuxOptions = &runtimeapi.SELinuxOption{User: se.User, Role: se.Role, Type: se.Type, Level: se.Level}
	}
	return out, nil
}

func isTrue(value *bool) bool { return value != nil && *value }

func names(list []corev1.Capability) []string {
	var out []string
	for _, capability := range list {
		out = append(out, string(capability))
	}
	return out
}

// effective lets the container's settings win over its pod's.
func effective(pod *corev1.Pod, spec *corev1.Container) *corev1.SecurityContext {
	merged := &corev1.SecurityContext{}
	if own := spec.SecurityContext; own != nil {
		merged = own.DeepCopy()
	}
	from := pod.Spec.SecurityContext
	if from == nil {
		return merged
	}
	if merged.RunAsUser == nil {
		merged.RunAsUser = from.RunAsUser
	}
	if merged.RunAsGroup == nil {
		merged.RunAsGroup = from.RunAsGroup
	}
	if merged.RunAsNonRoot == nil {
		merged.RunAsNonRoot = from.RunAsNonRoot
	}
	if merged.SeccompProfile == nil {
		merged.SeccompProfile = from.SeccompProfile
	}
	if merged.AppArmorProfile == nil {
		merged.AppArmorProfile = from.AppArmorProfile
	}
	if merged.SELinuxOptions == nil {
		merged.SELinuxOptions = from.SELinuxOptions
	}
	return merged
}

func verifyNonRoot(c Container, context *corev1.SecurityContext) error {
	if !isTrue(context.RunAsNonRoot) {
		return nil
	}
	where := fmt.Sprintf("(pod: %q, container: %s)", podFormat(c.Pod), c.Spec.Name)
	if context.RunAsUser != nil {
		if *context.RunAsUser == 0 {
			return fmt.Errorf("container's runAsUser breaks non-root policy %s", where)
		}
		return nil
	}
	switch {
	case c.Image.UID != nil && *c.Image.UID == 0:
		return fmt.Errorf("container has runAsNonRoot and image will run as root %s", where)
	case c.Image.UID == nil && c.Image.Username != "":
		return fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root %s", c.Image.Username, where)
	case c.Image.UID == nil:
		return fmt.Errorf("container has runAsNonRoot and image will run as root %s", where)
	}
	return nil
}

func podFormat(pod *corev1.Pod) string {
	return fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID)
}

func runAs(out *runtimeapi.LinuxContainerSecurityContext, context *corev1.SecurityContext, image Image) {
	switch {
	case context.RunAsUser != nil:
		out.RunAsUser = &runtimeapi.Int64Value{Value: *context.RunAsUser}
	case image.UID != nil:
		out.RunAsUser = &runtimeapi.Int64Value{Value: *image.UID}
	default:
		out.RunAsUsername = image.Username
	}
	if context.RunAsGroup != nil {
		out.RunAsGroup = &runtimeapi.Int64Value{Value: *context.RunAsGroup}
	}
}

func (n Node) seccomp(context *corev1.SecurityContext, privileged bool) (*runtimeapi.SecurityProfile, error) {
	unconfined := &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	runtimeDefault := &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	profile := context.SeccompProfile
	if profile == nil {
		if n.SeccompDefault && !privileged {
			return runtimeDefault, nil
		}
		return unconfined, nil
	}
	switch profile.Type {
	case corev1.SeccompProfileTypeRuntimeDefault:
		return runtimeDefault, nil
	case corev1.SeccompProfileTypeLocalhost:
		if profile.LocalhostProfile == nil || *profile.LocalhostProfile == "" {
			return nil, fmt.Errorf("localhostProfile must be set if seccompProfile type is Localhost")
		}
		if !filepath.IsLocal(*profile.LocalhostProfile) {
			return nil, fmt.Errorf("the seccomp profile %q leaves the folder of profiles", *profile.LocalhostProfile)
		}
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: filepath.Join(n.SeccompRoot, *profile.LocalhostProfile)}, nil
	}
	return unconfined, nil
}

func apparmor(context *corev1.SecurityContext) *runtimeapi.SecurityProfile {
	profile := context.AppArmorProfile
	if profile == nil {
		return nil
	}
	switch profile.Type {
	case corev1.AppArmorProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	case corev1.AppArmorProfileTypeLocalhost:
		if profile.LocalhostProfile != nil {
			return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: *profile.LocalhostProfile}
		}
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
}

func maskedPaths() []string {
	return []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
		"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
	}
}

func readonlyPaths() []string {
	return []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
}
