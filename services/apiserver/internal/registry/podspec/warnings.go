package podspec

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Warnings tells of what is valid in a pod or template and yet does not do what
// its author will expect. Path is that of the template, nil for a pod.
func Warnings(meta *metav1.ObjectMeta, spec *corev1.PodSpec, path *field.Path) []string {
	w := &warner{spec: path.Child("spec"), annotations: path.Child("metadata", "annotations")}
	w.nodeLabels(spec)
	w.deprecatedAnnotations(meta, spec, path != nil)
	w.volumes(spec)
	w.duplicates(spec)
	for _, name := range []corev1.ResourceName{corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		w.fraction(spec.Overhead, name, w.spec.Child("overhead"))
	}
	eachContainer(spec, w.spec, w.container)
	w.ports(spec)
	if s := spec.TerminationGracePeriodSeconds; s != nil && *s < 0 {
		w.addf("%s: must be >= 0; negative values are invalid and will be treated as 1", w.spec.Child("terminationGracePeriodSeconds"))
	}
	if a := spec.Affinity; a != nil {
		if p := a.PodAffinity; p != nil {
			w.podTerms(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution, w.spec.Child("affinity", "podAffinity"))
		}
		if p := a.PodAntiAffinity; p != nil {
			w.podTerms(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution, w.spec.Child("affinity", "podAntiAffinity"))
		}
	}
	return w.list
}

// TemplateWarnings is Warnings for a template that is new or has changed.
func TemplateWarnings(template, old *corev1.PodTemplateSpec, path *field.Path) []string {
	if old != nil && equalTemplates(template, old) {
		return nil
	}
	return Warnings(&template.ObjectMeta, &template.Spec, path)
}

type warner struct {
	spec, annotations *field.Path
	list              []string
}

func (w *warner) addf(format string, args ...any) {
	w.list = append(w.list, fmt.Sprintf(format, args...))
}

// deprecatedLabel says what replaced a well-known label of nodes, "" if
// nothing.
func deprecatedLabel(key string) string {
	switch key {
	case "beta.kubernetes.io/arch":
		return `deprecated since v1.14; use "kubernetes.io/arch" instead`
	case "beta.kubernetes.io/os":
		return `deprecated since v1.14; use "kubernetes.io/os" instead`
	case "failure-domain.beta.kubernetes.io/region":
		return `deprecated since v1.17; use "topology.kubernetes.io/region" instead`
	case "failure-domain.beta.kubernetes.io/zone":
		return `deprecated since v1.17; use "topology.kubernetes.io/zone" instead`
	case "beta.kubernetes.io/instance-type":
		return `deprecated since v1.17; use "node.kubernetes.io/instance-type" instead`
	}
	return ""
}

const matchesNoPod = "a null labelSelector results in matching no pod"

func (w *warner) nodeLabels(spec *corev1.PodSpec) {
	for _, key := range slices.Sorted(maps.Keys(spec.NodeSelector)) {
		if msg := deprecatedLabel(key); msg != "" {
			w.addf("%s: %s", w.spec.Child("nodeSelector").Key(key), msg)
		}
	}
	if spec.Affinity != nil && spec.Affinity.NodeAffinity != nil {
		n, at := spec.Affinity.NodeAffinity, w.spec.Child("affinity", "nodeAffinity")
		if r := n.RequiredDuringSchedulingIgnoredDuringExecution; r != nil {
			for i := range r.NodeSelectorTerms {
				w.nodeTerm(&r.NodeSelectorTerms[i], at.Child(requiredTerms, "nodeSelectorTerms").Index(i))
			}
		}
		for i := range n.PreferredDuringSchedulingIgnoredDuringExecution {
			w.nodeTerm(&n.PreferredDuringSchedulingIgnoredDuringExecution[i].Preference, at.Child(preferredTerms).Index(i).Child("preference"))
		}
	}
	for i, c := range spec.TopologySpreadConstraints {
		at := w.spec.Child("topologySpreadConstraints").Index(i)
		if msg := deprecatedLabel(c.TopologyKey); msg != "" {
			w.addf("%s: %s is %s", at.Child("topologyKey"), c.TopologyKey, msg)
		}
		if c.LabelSelector == nil {
			w.addf("%s: %s", at.Child("labelSelector"), matchesNoPod)
		}
	}
}

func (w *warner) nodeTerm(term *corev1.NodeSelectorTerm, path *field.Path) {
	for i, e := range term.MatchExpressions {
		if msg := deprecatedLabel(e.Key); msg != "" {
			w.addf("%s: %s is %s", path.Child("matchExpressions").Index(i).Child("key"), e.Key, msg)
		}
	}
}

func (w *warner) podTerms(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm, path *field.Path) {
	for i := range required {
		if required[i].LabelSelector == nil {
			w.addf("%s: %s", path.Child(requiredTerms).Index(i).Child("labelSelector"), matchesNoPod)
		}
	}
	for i := range preferred {
		if preferred[i].PodAffinityTerm.LabelSelector == nil {
			w.addf("%s: %s", path.Child(preferredTerms).Index(i).Child("podAffinityTerm", "labelSelector"), matchesNoPod)
		}
	}
}

// deprecatedAnnotations tells of AppArmor annotations in templates only: in
// pods they become fields when the pod is made.
func (w *warner) deprecatedAnnotations(meta *metav1.ObjectMeta, spec *corev1.PodSpec, template bool) {
	const (
		seccompGone = `%s: non-functional in v1.27+; use the "seccompProfile" field instead`
		appArmorOld = `%s: deprecated since v1.30; use the "appArmorProfile" field instead`
	)
	for _, d := range []struct{ key, message string }{
		{"scheduler.alpha.kubernetes.io/critical-pod", `non-functional in v1.16+; use the "priorityClassName" field instead`},
		{"security.alpha.kubernetes.io/sysctls", `non-functional in v1.11+; use the "sysctls" field instead`},
		{"security.alpha.kubernetes.io/unsafe-sysctls", `non-functional in v1.11+; use the "sysctls" field instead`},
	} {
		if _, set := meta.Annotations[d.key]; set {
			w.addf("%s: %s", w.annotations.Key(d.key), d.message)
		}
	}
	if _, set := meta.Annotations[seccompPodAnnotation]; set && (spec.SecurityContext == nil || spec.SecurityContext.SeccompProfile == nil) {
		w.addf(seccompGone, w.annotations.Key(seccompPodAnnotation))
	}
	eachContainer(spec, w.spec, func(c *corev1.Container, _ *field.Path) {
		if _, set := meta.Annotations[seccompContainerPrefix+c.Name]; set && (c.SecurityContext == nil || c.SecurityContext.SeccompProfile == nil) {
			w.addf(seccompGone, w.annotations.Key(seccompContainerPrefix+c.Name))
		}
		if _, set := meta.Annotations[appArmorPrefix+c.Name]; set && template && appArmorOf(spec, c) == nil {
			w.addf(appArmorOld, w.annotations.Key(appArmorPrefix+c.Name))
		}
	})
}

func (w *warner) volumes(spec *corev1.PodSpec) {
	for i := range spec.Volumes {
		v, at := &spec.Volumes[i], w.spec.Child("volumes").Index(i)
		for _, d := range []struct {
			set           bool
			name, message string
		}{
			{v.PhotonPersistentDisk != nil, "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"},
			{v.GitRepo != nil, "gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"},
			{v.ScaleIO != nil, "scaleIO", "deprecated in v1.16, non-functional in v1.22+"},
			{v.Flocker != nil, "flocker", "deprecated in v1.22, non-functional in v1.25+"},
			{v.StorageOS != nil, "storageOS", "deprecated in v1.22, non-functional in v1.25+"},
			{v.Quobyte != nil, "quobyte", "deprecated in v1.22, non-functional in v1.25+"},
			{v.Glusterfs != nil, "glusterfs", "deprecated in v1.25, non-functional in v1.26+"},
			{v.CephFS != nil, "cephfs", "deprecated in v1.28, non-functional in v1.31+"},
			{v.RBD != nil, "rbd", "deprecated in v1.28, non-functional in v1.31+"},
		} {
			if d.set {
				w.addf("%s: %s", at.Child(d.name), d.message)
			}
		}
		if v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil {
			w.list = append(w.list, ClaimWarnings(&v.Ephemeral.VolumeClaimTemplate.Spec, at.Child("ephemeral", "volumeClaimTemplate", "spec"))...)
		}
	}
}

// ClaimWarnings tells of a claim for a fraction of a byte.
func ClaimWarnings(spec *corev1.PersistentVolumeClaimSpec, path *field.Path) []string {
	storage := spec.Resources.Requests[corev1.ResourceStorage]
	if storage.MilliValue()%1000 == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s: fractional byte value %q is invalid, must be an integer", path.Child("resources", "requests").Key(string(corev1.ResourceStorage)), storage.String())}
}

func (w *warner) duplicates(spec *corev1.PodSpec) {
	seen := map[string]bool{}
	for i, alias := range spec.HostAliases {
		if seen[alias.IP] {
			w.addf("%s: duplicate ip %q", w.spec.Child("hostAliases").Index(i).Child("ip"), alias.IP)
		}
		seen[alias.IP] = true
	}
	seen = map[string]bool{}
	for i, secret := range spec.ImagePullSecrets {
		at := w.spec.Child("imagePullSecrets").Index(i).Child("name")
		if seen[secret.Name] {
			w.addf("%s: duplicate name %q", at, secret.Name)
		}
		if secret.Name == "" {
			w.addf("%s: invalid empty name %q", at, secret.Name)
		}
		seen[secret.Name] = true
	}
}

func (w *warner) fraction(list corev1.ResourceList, name corev1.ResourceName, path *field.Path) {
	if value, set := list[name]; set && value.MilliValue()%1000 != 0 {
		w.addf("%s: fractional byte value %q is invalid, must be an integer", path.Key(string(name)), value.String())
	}
}

func (w *warner) container(c *corev1.Container, path *field.Path) {
	for _, name := range []corev1.ResourceName{corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		w.fraction(c.Resources.Limits, name, path.Child("resources", "limits"))
		w.fraction(c.Resources.Requests, name, path.Child("resources", "requests"))
	}
	seen := map[string]bool{}
	for i, v := range c.Env {
		ref := "$(" + v.Name + ")" // a value may be made of the one before
		if seen[v.Name] && (v.ValueFrom != nil || v.Value == ref || !strings.Contains(v.Value, ref)) {
			w.addf("%s: hides previous definition of %q, which may be dropped when using apply", path.Child("env").Index(i), v.Name)
		}
		seen[v.Name] = true
	}
}

// ports tells of ports that are defined twice, in one container or two.
func (w *warner) ports(spec *corev1.PodSpec) {
	type definition struct {
		path *field.Path
		port corev1.ContainerPort
	}
	all := map[string][]definition{}
	eachContainer(spec, w.spec, func(c *corev1.Container, path *field.Path) {
		for i, port := range c.Ports {
			at := path.Child("ports").Index(i)
			if port.HostIP != "" && port.HostPort == 0 {
				w.addf("%s: hostIP set without hostPort: %+v", at, port)
			}
			key := fmt.Sprintf("%d/%s", port.ContainerPort, port.Protocol)
			for _, other := range all[key] {
				switch {
				case port.HostIP == other.port.HostIP && port.HostPort == other.port.HostPort:
					w.addf("%s: duplicate port definition with %s", at, other.path)
				case port.HostPort == 0 || other.port.HostPort == 0:
					w.addf("%s: overlapping port definition with %s", at, other.path)
				case port.HostPort == other.port.HostPort && (port.HostIP == "") != (other.port.HostIP == ""):
					w.addf("%s: dangerously ambiguous port definition with %s", at, other.path)
				}
			}
			all[key] = append(all[key], definition{at, port})
		}
	})
}
