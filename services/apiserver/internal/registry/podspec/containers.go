package podspec

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func (c *checker) validateContainers(path *field.Path) field.ErrorList {
	containers := c.spec.Containers
	if len(containers) == 0 {
		return field.ErrorList{field.Required(path, "")}
	}
	var errs field.ErrorList
	names := map[string]bool{}
	for i := range containers {
		container, at := &containers[i], path.Index(i)
		errs = append(errs, c.validateContainer(container, at)...)
		if names[container.Name] {
			errs = append(errs, field.Duplicate(at.Child("name"), container.Name))
		}
		names[container.Name] = true
		errs = append(errs, c.validateRunning(container, at)...)
		errs = append(errs, validateRestart(container, at)...)
	}
	return append(errs, validateUniqueHostPorts(containers, path)...)
}

// validateRunning checks what only containers that go on running have.
func (c *checker) validateRunning(container *corev1.Container, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if container.Lifecycle != nil {
		errs = append(errs, c.validateLifecycle(container.Lifecycle, path.Child("lifecycle"))...)
	}
	errs = append(errs, validateProbe(container.LivenessProbe, path.Child("livenessProbe"))...)
	errs = append(errs, validateOneSuccess(container.LivenessProbe, path.Child("livenessProbe"))...)
	errs = append(errs, validateProbe(container.ReadinessProbe, path.Child("readinessProbe"))...)
	if p := container.ReadinessProbe; p != nil && p.TerminationGracePeriodSeconds != nil {
		errs = append(errs, field.Invalid(path.Child("readinessProbe", "terminationGracePeriodSeconds"), p.TerminationGracePeriodSeconds, "must not be set for readinessProbes"))
	}
	errs = append(errs, validateProbe(container.StartupProbe, path.Child("startupProbe"))...)
	return append(errs, validateOneSuccess(container.StartupProbe, path.Child("startupProbe"))...)
}

func (c *checker) validateInitContainers(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := map[string]bool{}
	for i := range c.spec.Containers {
		names[c.spec.Containers[i].Name] = true
	}
	for i := range c.spec.InitContainers {
		container, at := &c.spec.InitContainers[i], path.Index(i)
		errs = append(errs, c.validateContainer(container, at)...)
		errs = append(errs, validateRestart(container, at)...)
		if names[container.Name] {
			errs = append(errs, field.Duplicate(at.Child("name"), container.Name))
		} else if container.Name != "" {
			names[container.Name] = true
		}
		errs = append(errs, validateUniqueHostPorts(c.spec.InitContainers[i:i+1], path)...)
		if isSidecar(container) {
			errs = append(errs, c.validateRunning(container, at)...)
			continue
		}
		const onlySidecars = "may not be set for init containers without restartPolicy=Always"
		for name, set := range map[string]bool{
			"lifecycle": container.Lifecycle != nil, "livenessProbe": container.LivenessProbe != nil,
			"readinessProbe": container.ReadinessProbe != nil, "startupProbe": container.StartupProbe != nil,
		} {
			if set {
				errs = append(errs, field.Forbidden(at.Child(name), onlySidecars))
			}
		}
	}
	return errs
}

// ephemeralFields are the fields that an ephemeral container may have.
func ephemeralFields() []string {
	return []string{
		"Name", "Image", "Command", "Args", "WorkingDir", "EnvFrom", "Env", "VolumeMounts", "VolumeDevices", "TerminationMessagePath",
		"TerminationMessagePolicy", "ImagePullPolicy", "SecurityContext", "Stdin", "StdinOnce", "TTY",
	}
}

func (c *checker) validateEphemeralContainers(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	others, all := map[string]bool{}, map[string]bool{}
	for i := range c.spec.Containers {
		others[c.spec.Containers[i].Name], all[c.spec.Containers[i].Name] = true, true
	}
	for i := range c.spec.InitContainers {
		others[c.spec.InitContainers[i].Name], all[c.spec.InitContainers[i].Name] = true, true
	}
	for i := range c.spec.EphemeralContainers {
		e, at := &c.spec.EphemeralContainers[i], path.Index(i)
		container := corev1.Container(e.EphemeralContainerCommon)
		errs = append(errs, c.validateContainer(&container, at)...)
		errs = append(errs, validateTrimmedImage(&container, at)...)
		if all[e.Name] {
			errs = append(errs, field.Duplicate(at.Child("name"), e.Name))
		}
		all[e.Name] = true
		if e.TargetContainerName != "" && !others[e.TargetContainerName] {
			errs = append(errs, field.NotFound(at.Child("targetContainerName"), e.TargetContainerName))
		}
		errs = append(errs, validateEphemeralFields(e, at)...)
	}
	return errs
}

func validateEphemeralFields(e *corev1.EphemeralContainer, path *field.Path) field.ErrorList {
	const refused = "cannot be set for an Ephemeral Container"
	var errs field.ErrorList
	allowed := ephemeralFields()
	value := reflect.ValueOf(e.EphemeralContainerCommon)
	for i := range value.NumField() {
		name := value.Type().Field(i).Name
		if !slices.Contains(allowed, name) && !value.Field(i).IsZero() {
			errs = append(errs, field.Forbidden(path.Child(strings.ToLower(name[:1])+name[1:]), refused))
		}
	}
	for i, mount := range e.VolumeMounts {
		if mount.SubPath != "" {
			errs = append(errs, field.Forbidden(path.Child("volumeMounts").Index(i).Child("subPath"), refused))
		}
		if mount.SubPathExpr != "" {
			errs = append(errs, field.Forbidden(path.Child("volumeMounts").Index(i).Child("subPathExpr"), refused))
		}
	}
	return errs
}

// validateContainer checks what all kinds of containers have in common.
func (c *checker) validateContainer(container *corev1.Container, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if container.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), ""))
	} else {
		errs = append(errs, dnsLabel(container.Name, path.Child("name"))...)
	}
	errs = append(errs, required(container.Image, path.Child("image"))...)
	errs = append(errs, validateEnum(container.TerminationMessagePolicy, path.Child("terminationMessagePolicy"),
		corev1.TerminationMessageReadFile, corev1.TerminationMessageFallbackToLogsOnError)...)
	errs = append(errs, validatePorts(container.Ports, path.Child("ports"))...)
	errs = append(errs, c.validateEnv(container.Env, path.Child("env"))...)
	errs = append(errs, validateEnvFrom(container.EnvFrom, path.Child("envFrom"))...)
	errs = append(errs, c.validateMounts(container, path.Child("volumeMounts"))...)
	errs = append(errs, c.validateDevices(container, path.Child("volumeDevices"))...)
	errs = append(errs, validatePullPolicy(container.ImagePullPolicy, path.Child("imagePullPolicy"))...)
	errs = append(errs, validateRequirements(&container.Resources, containerResourceName, path.Child("resources"))...)
	errs = append(errs, c.validateClaims(container.Resources.Claims, path.Child("resources", "claims"))...)
	errs = append(errs, validateResizePolicy(container.ResizePolicy, c.spec.RestartPolicy, path.Child("resizePolicy"))...)
	return append(errs, validateSecurity(container.SecurityContext, hostUsers(c.spec), path.Child("securityContext"))...)
}

func validatePullPolicy(policy corev1.PullPolicy, path *field.Path) field.ErrorList {
	return validateEnum(policy, path, corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever)
}

// validateRestart checks a container's own restart policy and its rules
// (KEP-5307).
func validateRestart(container *corev1.Container, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if container.RestartPolicy != nil {
		errs = append(errs, notSupported(*container.RestartPolicy, path.Child("restartPolicy"),
			corev1.ContainerRestartPolicyAlways, corev1.ContainerRestartPolicyNever, corev1.ContainerRestartPolicyOnFailure)...)
	}
	rules := path.Child("restartPolicyRules")
	if len(container.RestartPolicyRules) > 0 && container.RestartPolicy == nil {
		errs = append(errs, field.Required(path.Child("restartPolicy"), "must specify restartPolicy when restart rules are used"))
	}
	if n := len(container.RestartPolicyRules); n > 20 {
		errs = append(errs, field.TooMany(rules, n, 20))
	}
	for i, rule := range container.RestartPolicyRules {
		at := rules.Index(i)
		errs = append(errs, validateEnum(rule.Action, at.Child("action"),
			corev1.ContainerRestartRuleActionRestart, corev1.ContainerRestartRuleActionRestartAllContainers)...)
		if rule.ExitCodes == nil {
			errs = append(errs, field.Required(at.Child("exitCodes"), "must be specified"))
			continue
		}
		errs = append(errs, validateEnum(rule.ExitCodes.Operator, at.Child("exitCodes", "operator"),
			corev1.ContainerRestartRuleOnExitCodesOpIn, corev1.ContainerRestartRuleOnExitCodesOpNotIn)...)
		if n := len(rule.ExitCodes.Values); n > 255 {
			errs = append(errs, field.TooMany(at.Child("exitCodes", "values"), n, 255))
		}
	}
	return errs
}

func validatePorts(ports []corev1.ContainerPort, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := map[string]bool{}
	for i, port := range ports {
		at := path.Index(i)
		if port.Name != "" {
			if msgs := utilvalidation.IsValidPortName(port.Name); len(msgs) > 0 {
				errs = append(errs, invalid(at.Child("name"), port.Name, msgs)...)
			} else if names[port.Name] {
				errs = append(errs, field.Duplicate(at.Child("name"), port.Name))
			}
			names[port.Name] = true
		}
		if port.ContainerPort == 0 {
			errs = append(errs, field.Required(at.Child("containerPort"), ""))
		} else {
			errs = append(errs, invalid(at.Child("containerPort"), port.ContainerPort, utilvalidation.IsValidPortNum(int(port.ContainerPort)))...)
		}
		if port.HostPort != 0 {
			errs = append(errs, invalid(at.Child("hostPort"), port.HostPort, utilvalidation.IsValidPortNum(int(port.HostPort)))...)
		}
		errs = append(errs, ValidateProtocol(port.Protocol, at.Child("protocol"))...)
		if port.HostIP != "" {
			errs = append(errs, utilvalidation.IsValidIPForLegacyField(at.Child("hostIP"), port.HostIP, true, nil)...)
		}
	}
	return errs
}

func validateUniqueHostPorts(containers []corev1.Container, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]bool{}
	for i := range containers {
		for j, port := range containers[i].Ports {
			if port.HostPort == 0 {
				continue
			}
			key := fmt.Sprintf("%s/%s/%d", port.Protocol, port.HostIP, port.HostPort)
			if seen[key] {
				errs = append(errs, field.Duplicate(path.Index(i).Child("ports").Index(j).Child("hostPort"), key))
			}
			seen[key] = true
		}
	}
	return errs
}

// validateHostPorts checks that ports in the host's network are what they are.
// A template may leave them to be set when its pods are made.
func (c *checker) validateHostPorts(path *field.Path) field.ErrorList {
	if !c.spec.HostNetwork {
		return nil
	}
	var errs field.ErrorList
	for i := range c.spec.Containers {
		for j, port := range c.spec.Containers[i].Ports {
			if (c.pod != nil || port.HostPort != 0) && port.HostPort != port.ContainerPort {
				errs = append(errs, field.Invalid(path.Index(i).Child("ports").Index(j).Child("hostPort"), port.HostPort, "must match `containerPort` when `hostNetwork` is true"))
			}
		}
	}
	return errs
}

func validateResizePolicy(policies []corev1.ContainerResizePolicy, restart corev1.RestartPolicy, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[corev1.ResourceName]bool{}
	for i, policy := range policies {
		if seen[policy.ResourceName] {
			errs = append(errs, field.Duplicate(path.Index(i), policy.ResourceName))
		}
		seen[policy.ResourceName] = true
		errs = append(errs, validateEnum(policy.ResourceName, path, corev1.ResourceCPU, corev1.ResourceMemory)...)
		errs = append(errs, validateEnum(policy.RestartPolicy, path, corev1.NotRequired, corev1.RestartContainer)...)
		if restart == corev1.RestartPolicyNever && policy.RestartPolicy != corev1.NotRequired {
			errs = append(errs, field.Invalid(path, policy.RestartPolicy, "must be 'NotRequired' when `restartPolicy` is 'Never'"))
		}
	}
	return errs
}

func validateTrimmedImages(containers []corev1.Container, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range containers {
		errs = append(errs, validateTrimmedImage(&containers[i], path.Index(i))...)
	}
	return errs
}

func validateTrimmedImage(container *corev1.Container, path *field.Path) field.ErrorList {
	if strings.TrimSpace(container.Image) != container.Image {
		return field.ErrorList{field.Invalid(path.Child("image"), container.Image, "must not have leading or trailing whitespace")}
	}
	return nil
}
