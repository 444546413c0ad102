package podspec

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// checker is what the parts of a pod spec's validation look up elsewhere in the
// spec.
type checker struct {
	spec *corev1.PodSpec
	// pod is the metadata of the pod; nil for a template, whose pods are not named
	// yet and of which less is asked.
	pod     *metav1.ObjectMeta
	volumes map[string]corev1.VolumeSource // those that are valid, by name
	claims  map[string]bool                // names of resource claims
}

// ValidatePod checks a new pod.
func ValidatePod(pod *corev1.Pod) field.ErrorList {
	path := field.NewPath("spec")
	errs := validatePod(pod)
	if len(pod.Spec.EphemeralContainers) > 0 {
		errs = append(errs, field.Forbidden(path.Child("ephemeralContainers"), "cannot be set on create"))
	}
	if pod.Spec.NodeName != "" && len(pod.Spec.SchedulingGates) != 0 {
		errs = append(errs, field.Forbidden(path.Child("nodeName"), "cannot be set until all schedulingGates have been cleared"))
	}
	return append(errs, validateProfilesMatch(pod.Annotations, &pod.Spec, path)...)
}

// validatePod checks a pod's annotations and spec, new or not.
func validatePod(pod *corev1.Pod) field.ErrorList {
	path := field.NewPath("spec")
	errs := validateAnnotations(pod.Annotations, &pod.Spec, field.NewPath("metadata", "annotations"))
	errs = append(errs, validateSpec(&pod.Spec, &pod.ObjectMeta, path)...)
	if pod.Spec.ServiceAccountName == "" {
		errs = append(errs, validateNoTokens(pod.Spec.Volumes, path.Child("volumes"))...)
	}
	errs = append(errs, validateTrimmedImages(pod.Spec.Containers, path.Child("containers"))...)
	return append(errs, validateTrimmedImages(pod.Spec.InitContainers, path.Child("initContainers"))...)
}

// ValidateTemplate checks a pod template.
func ValidateTemplate(template *corev1.PodTemplateSpec, path *field.Path) field.ErrorList {
	errs := metav1validation.ValidateLabels(template.Labels, path.Child("labels"))
	annotations, spec := path.Child("annotations"), path.Child("spec")
	errs = append(errs, apivalidation.ValidateAnnotations(template.Annotations, annotations)...)
	errs = append(errs, validateAnnotations(template.Annotations, &template.Spec, annotations)...)
	errs = append(errs, validateSpec(&template.Spec, nil, spec)...)
	errs = append(errs, validateProfilesMatch(template.Annotations, &template.Spec, spec)...)
	if len(template.Spec.EphemeralContainers) > 0 {
		errs = append(errs, field.Forbidden(spec.Child("ephemeralContainers"), "ephemeral containers not allowed in pod template"))
	}
	return errs
}

func validateSpec(spec *corev1.PodSpec, pod *metav1.ObjectMeta, path *field.Path) field.ErrorList {
	c := &checker{spec: spec, pod: pod, claims: map[string]bool{}}
	var errs field.ErrorList
	if spec.TerminationGracePeriodSeconds == nil {
		errs = append(errs, field.Required(path.Child("terminationGracePeriodSeconds"), ""))
	}
	errs = append(errs, c.validateVolumes(path.Child("volumes"))...)
	errs = append(errs, c.validateResourceClaims(path.Child("resourceClaims"))...)
	errs = append(errs, c.validateContainers(path.Child("containers"))...)
	errs = append(errs, c.validateInitContainers(path.Child("initContainers"))...)
	errs = append(errs, c.validateEphemeralContainers(path.Child("ephemeralContainers"))...)
	errs = append(errs, c.validatePodResources(path.Child("resources"))...)
	errs = append(errs, c.validateHostPorts(path.Child("containers"))...)
	errs = append(errs, validateEnum(spec.RestartPolicy, path.Child("restartPolicy"),
		corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever)...)
	errs = append(errs, validateEnum(spec.DNSPolicy, path.Child("dnsPolicy"),
		corev1.DNSClusterFirstWithHostNet, corev1.DNSClusterFirst, corev1.DNSDefault, corev1.DNSNone)...)
	errs = append(errs, metav1validation.ValidateLabels(spec.NodeSelector, path.Child("nodeSelector"))...)
	errs = append(errs, c.validatePodSecurity(path.Child("securityContext"))...)
	errs = append(errs, validateAffinity(spec.Affinity, path.Child("affinity"))...)
	errs = append(errs, validateDNSConfig(spec, path.Child("dnsConfig"))...)
	errs = append(errs, validateGates(spec, path)...)
	errs = append(errs, validateSpread(spec.TopologySpreadConstraints, path.Child("topologySpreadConstraints"))...)
	errs = append(errs, c.validateHostProcess(path)...)
	errs = append(errs, validateHostUsers(spec, path)...)
	errs = append(errs, validateNames(spec, path)...)
	errs = append(errs, validateHostname(spec, path)...)
	if spec.ActiveDeadlineSeconds != nil {
		if v := *spec.ActiveDeadlineSeconds; v < 1 || v > math.MaxInt32 {
			errs = append(errs, field.Invalid(path.Child("activeDeadlineSeconds"), v, utilvalidation.InclusiveRangeError(1, math.MaxInt32)))
		}
	}
	errs = append(errs, ValidateTolerations(spec.Tolerations, path.Child("tolerations"))...)
	errs = append(errs, validateHostAliases(spec.HostAliases, path.Child("hostAliases"))...)
	if spec.PreemptionPolicy != nil {
		errs = append(errs, validateEnum(*spec.PreemptionPolicy, path.Child("preemptionPolicy"), corev1.PreemptLowerPriority, corev1.PreemptNever)...)
	}
	if spec.Overhead != nil {
		errs = append(errs, validateRequirements(&corev1.ResourceRequirements{Limits: spec.Overhead}, containerResourceName, path.Child("overhead"))...)
	}
	return append(errs, validateOS(spec, path)...)
}

// validateNames checks the names of other objects.
func validateNames(spec *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	named := func(child, name string) {
		if name == "" {
			return
		}
		for _, msg := range apivalidation.NameIsDNSSubdomain(name, false) {
			errs = append(errs, field.Invalid(path.Child(child), name, msg))
		}
	}
	named("serviceAccountName", spec.ServiceAccountName)
	named("nodeName", spec.NodeName)
	named("priorityClassName", spec.PriorityClassName)
	if spec.RuntimeClassName != nil {
		for _, msg := range apivalidation.NameIsDNSSubdomain(*spec.RuntimeClassName, false) {
			errs = append(errs, field.Invalid(path.Child("runtimeClassName"), *spec.RuntimeClassName, msg))
		}
	}
	return errs
}

// maxHostname is the longest host name that Linux takes, in bytes.
const maxHostname = 64

func validateHostname(spec *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if spec.Hostname != "" {
		errs = append(errs, dnsLabel(spec.Hostname, path.Child("hostname"))...)
	}
	if spec.Subdomain != "" {
		errs = append(errs, dnsLabel(spec.Subdomain, path.Child("subdomain"))...)
	}
	if spec.HostnameOverride == nil {
		return errs
	}
	at, name := path.Child("hostnameOverride"), *spec.HostnameOverride
	if name == "" {
		return append(errs, field.Invalid(at, name, "must not be empty"))
	}
	for _, msg := range utilvalidation.IsDNS1123Subdomain(name) {
		errs = append(errs, field.Invalid(at, name, msg))
	}
	if len(name) > maxHostname {
		errs = append(errs, field.TooLong(at, name, maxHostname))
	}
	if spec.HostNetwork {
		errs = append(errs, field.Forbidden(at, "may not be specified when hostNetwork is true"))
	}
	if spec.SetHostnameAsFQDN != nil && *spec.SetHostnameAsFQDN {
		errs = append(errs, field.Forbidden(at, "may not be specified when setHostnameAsFQDN is true"))
	}
	return errs
}

func validateHostAliases(aliases []corev1.HostAlias, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, alias := range aliases {
		at := path.Index(i)
		errs = append(errs, utilvalidation.IsValidIPForLegacyField(at.Child("ip"), alias.IP, true, nil)...)
		for j, name := range alias.Hostnames {
			errs = append(errs, dnsSubdomain(name, at.Child("hostnames").Index(j))...)
		}
	}
	return errs
}

// validateHostUsers refuses host namespaces for a pod with users of its own.
func validateHostUsers(spec *corev1.PodSpec, path *field.Path) field.ErrorList {
	if hostUsers(spec) {
		return nil
	}
	const when = "when `hostUsers` is false"
	var errs field.ErrorList
	if spec.HostNetwork {
		errs = append(errs, field.Forbidden(path.Child("hostNetwork"), when))
	}
	if spec.HostPID {
		errs = append(errs, field.Forbidden(path.Child("hostPID"), when))
	}
	if spec.HostIPC {
		errs = append(errs, field.Forbidden(path.Child("hostIPC"), when))
	}
	return errs
}

func hostUsers(spec *corev1.PodSpec) bool { return spec.HostUsers == nil || *spec.HostUsers }

func validateGates(spec *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, gate := range spec.ReadinessGates {
		errs = append(errs, qualifiedName(string(gate.ConditionType), path.Child("readinessGates").Index(i).Child("conditionType"))...)
	}
	seen := map[string]bool{}
	for i, gate := range spec.SchedulingGates {
		at := path.Child("schedulingGates").Index(i)
		errs = append(errs, qualifiedName(gate.Name, at)...)
		if seen[gate.Name] {
			errs = append(errs, field.Duplicate(at, gate.Name))
		}
		seen[gate.Name] = true
	}
	return errs
}
