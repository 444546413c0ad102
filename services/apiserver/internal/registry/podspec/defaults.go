// Package podspec defaults, validates and describes the parts that pods and pod
// templates share.
package podspec

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// roundUpScale is the precision that quantities are kept in: thousandths.
const roundUpScale = -3

// Default sets a pod spec's absent fields, for pods and templates alike.
func Default(spec *corev1.PodSpec) {
	if spec.DNSPolicy == "" {
		spec.DNSPolicy = corev1.DNSClusterFirst
	}
	if spec.RestartPolicy == "" {
		spec.RestartPolicy = corev1.RestartPolicyAlways
	}
	if spec.SecurityContext == nil {
		spec.SecurityContext = &corev1.PodSecurityContext{}
	}
	if spec.TerminationGracePeriodSeconds == nil {
		spec.TerminationGracePeriodSeconds = ptr.To(int64(corev1.DefaultTerminationGracePeriodSeconds))
	}
	if spec.SchedulerName == "" {
		spec.SchedulerName = corev1.DefaultSchedulerName
	}
	mirrorServiceAccount(spec)
	for i := range spec.Volumes {
		defaultVolume(&spec.Volumes[i])
	}
	for i := range spec.InitContainers {
		defaultContainer(&spec.InitContainers[i])
	}
	for i := range spec.Containers {
		defaultContainer(&spec.Containers[i])
	}
	for i := range spec.EphemeralContainers {
		c := corev1.Container(spec.EphemeralContainers[i].EphemeralContainerCommon)
		defaultContainer(&c)
		spec.EphemeralContainers[i].EphemeralContainerCommon = corev1.EphemeralContainerCommon(c)
	}
	if spec.Resources != nil {
		RoundQuantities(spec.Resources.Limits)
		RoundQuantities(spec.Resources.Requests)
	}
	RoundQuantities(spec.Overhead)
}

// mirrorServiceAccount keeps the deprecated name of the service account field
// equal to the current one.
func mirrorServiceAccount(spec *corev1.PodSpec) {
	if spec.ServiceAccountName == "" {
		spec.ServiceAccountName = spec.DeprecatedServiceAccount
	}
	spec.DeprecatedServiceAccount = spec.ServiceAccountName
}

// RoundQuantities rounds each quantity up to thousandths.
func RoundQuantities(list corev1.ResourceList) {
	for name, quantity := range list {
		quantity.RoundUp(roundUpScale)
		list[name] = quantity
	}
}

func defaultContainer(c *corev1.Container) {
	if c.ImagePullPolicy == "" {
		c.ImagePullPolicy = pullPolicyOf(c.Image)
	}
	if c.TerminationMessagePath == "" {
		c.TerminationMessagePath = corev1.TerminationMessagePathDefault
	}
	if c.TerminationMessagePolicy == "" {
		c.TerminationMessagePolicy = corev1.TerminationMessageReadFile
	}
	for i := range c.Ports {
		if c.Ports[i].Protocol == "" {
			c.Ports[i].Protocol = corev1.ProtocolTCP
		}
	}
	for i := range c.Env {
		defaultEnvSource(c.Env[i].ValueFrom)
	}
	RoundQuantities(c.Resources.Limits)
	RoundQuantities(c.Resources.Requests)
	for _, probe := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		defaultProbe(probe)
	}
	if c.Lifecycle != nil {
		for _, hook := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if hook != nil {
				defaultHTTPGet(hook.HTTPGet)
			}
		}
	}
}

// pullPolicyOf is Always for the tag latest, which an image without tag and
// digest has.
func pullPolicyOf(image string) corev1.PullPolicy {
	if imageTag(image) == "latest" {
		return corev1.PullAlways
	}
	return corev1.PullIfNotPresent
}

// imageTag is the tag of an image reference: "" with a digest alone, "latest"
// when the reference has neither.
func imageTag(image string) string {
	name, _, digested := strings.Cut(image, "@")
	last := name[strings.LastIndexByte(name, '/')+1:]
	_, tag, tagged := strings.Cut(last, ":")
	switch {
	case tagged:
		return tag
	case digested || image == "":
		return ""
	default:
		return "latest"
	}
}

func defaultEnvSource(source *corev1.EnvVarSource) {
	if source == nil {
		return
	}
	if ref := source.FieldRef; ref != nil && ref.APIVersion == "" {
		ref.APIVersion = "v1"
	}
	if ref := source.FileKeyRef; ref != nil && ref.Optional == nil {
		ref.Optional = ptr.To(false)
	}
}

func defaultProbe(p *corev1.Probe) {
	if p == nil {
		return
	}
	if p.TimeoutSeconds == 0 {
		p.TimeoutSeconds = 1
	}
	if p.PeriodSeconds == 0 {
		p.PeriodSeconds = 10
	}
	if p.SuccessThreshold == 0 {
		p.SuccessThreshold = 1
	}
	if p.FailureThreshold == 0 {
		p.FailureThreshold = 3
	}
	defaultHTTPGet(p.HTTPGet)
	if p.GRPC != nil && p.GRPC.Service == nil {
		p.GRPC.Service = ptr.To("")
	}
}

func defaultHTTPGet(get *corev1.HTTPGetAction) {
	if get == nil {
		return
	}
	if get.Path == "" {
		get.Path = "/"
	}
	if get.Scheme == "" {
		get.Scheme = corev1.URISchemeHTTP
	}
}
