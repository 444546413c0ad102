package podspec

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// pod is a valid pod with its defaults, changed.
func pod(changes ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec:       corev1.PodSpec{ServiceAccountName: "default", Containers: []corev1.Container{{Name: "c", Image: "web:1"}}},
	}
	for _, change := range changes {
		change(p)
	}
	DefaultPod(p)
	return p
}

func container(change func(*corev1.Container)) func(*corev1.Pod) {
	return func(p *corev1.Pod) { change(&p.Spec.Containers[0]) }
}

func volume(source corev1.VolumeSource) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "v", VolumeSource: source})
	}
}

func amounts(pairs ...string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		list[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return list
}

func TestValidPods(t *testing.T) {
	for name, p := range map[string]*corev1.Pod{
		"plain": pod(),
		"all kinds of things": pod(
			volume(corev1.VolumeSource{}),
			func(p *corev1.Pod) {
				p.Spec.Volumes = append(p.Spec.Volumes,
					corev1.Volume{Name: "token", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
						{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: ptr.To(int64(3607))}},
						{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "ca"}, Items: []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}}}},
						{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.namespace"}}}}},
					}}}})
				p.Spec.InitContainers = []corev1.Container{{Name: "i", Image: "i"}, {Name: "s", Image: "s", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways), ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("http")}}}}}
				p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
				p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: "kubernetes.io/hostname", LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}}}}
			},
			container(func(c *corev1.Container) {
				c.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/data"}}
				c.Env = []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "CPU", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.cpu", Divisor: resource.MustParse("1m")}}}, {Name: "L", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels['app']"}}}}
				c.Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 80}}
				c.LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(80)}}}
				c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 5}}}
				c.Resources = corev1.ResourceRequirements{Requests: amounts("cpu", "100m"), Limits: amounts("cpu", "1", "memory", "64Mi", "example.com/gpu", "1")}
			})),
		"host network": pod(func(p *corev1.Pod) { p.Spec.HostNetwork = true }, container(func(c *corev1.Container) { c.Ports = []corev1.ContainerPort{{ContainerPort: 8080}} })),
	} {
		if errs := ValidatePod(p); len(errs) > 0 {
			t.Errorf("%s: %v", name, errs)
		}
	}
}

func TestInvalidPods(t *testing.T) {
	for _, test := range []struct {
		want string
		pod  *corev1.Pod
	}{
		{`spec.containers: Required value`, pod(func(p *corev1.Pod) { p.Spec.Containers = nil })},
		{`spec.containers[0].image: Required value`, pod(container(func(c *corev1.Container) { c.Image = "" }))},
		{`spec.containers[0].image: Invalid value: " web": must not have leading or trailing whitespace`, pod(container(func(c *corev1.Container) { c.Image = " web" }))},
		{`spec.containers[0].name: Invalid value: "C": a lowercase RFC 1123 label must consist of`, pod(container(func(c *corev1.Container) { c.Name = "C" }))},
		{`spec.containers[1].name: Duplicate value: "c"`, pod(func(p *corev1.Pod) { p.Spec.Containers = append(p.Spec.Containers, p.Spec.Containers[0]) })},
		{`spec.initContainers[0].livenessProbe: Forbidden: may not be set for init containers without restartPolicy=Always`, pod(func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "i", Image: "i", LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}}}}
		})},
		{`spec.containers[0].env[0].name: Required value`, pod(container(func(c *corev1.Container) { c.Env = []corev1.EnvVar{{}} }))},
		{`spec.containers[0].env[0].valueFrom: Invalid value: "": may not be specified when ` + "`value`" + ` is not empty`, pod(container(func(c *corev1.Container) {
			c.Env = []corev1.EnvVar{{Name: "A", Value: "x", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}}
		}))},
		{`spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Invalid value: "metadata.nope": error converting fieldPath: field label not supported: metadata.nope`, pod(container(func(c *corev1.Container) {
			c.Env = []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.nope"}}}}
		}))},
		{`spec.containers[0].envFrom: Invalid value: "": must specify one of: ` + "`configMapRef` or `secretRef`", pod(container(func(c *corev1.Container) { c.EnvFrom = []corev1.EnvFromSource{{}} }))},
		{`spec.containers[0].volumeMounts[0].name: Not found: "nope"`, pod(container(func(c *corev1.Container) { c.VolumeMounts = []corev1.VolumeMount{{Name: "nope", MountPath: "/x"}} }))},
		{`spec.containers[0].volumeMounts[1].mountPath: Invalid value: "/x": must be unique`, pod(volume(corev1.VolumeSource{}), container(func(c *corev1.Container) {
			c.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/x"}, {Name: "v", MountPath: "/x"}}
		}))},
		{`spec.containers[0].volumeMounts.subPath: Invalid value: "../x": must not contain '..'`, pod(volume(corev1.VolumeSource{}), container(func(c *corev1.Container) {
			c.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/x", SubPath: "../x"}}
		}))},
		{`spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive`, pod(container(func(c *corev1.Container) { c.Ports = []corev1.ContainerPort{{ContainerPort: 70000}} }))},
		{`spec.containers[0].ports[1].hostPort: Duplicate value: "TCP//80"`, pod(container(func(c *corev1.Container) {
			c.Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80}, {ContainerPort: 81, HostPort: 80}}
		}))},
		{`spec.containers[0].ports[0].hostPort: Invalid value: 81: must match ` + "`containerPort` when `hostNetwork` is true", pod(func(p *corev1.Pod) { p.Spec.HostNetwork = true }, container(func(c *corev1.Container) { c.Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 81}} }))},
		{`spec.containers[0].imagePullPolicy: Unsupported value: "Sometimes": supported values: "Always", "IfNotPresent", "Never"`, pod(container(func(c *corev1.Container) { c.ImagePullPolicy = "Sometimes" }))},
		{`spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1`, pod(container(func(c *corev1.Container) {
			c.LivenessProbe = &corev1.Probe{SuccessThreshold: 2, ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}}
		}))},
		{`spec.containers[0].readinessProbe: Required value: must specify a handler type`, pod(container(func(c *corev1.Container) { c.ReadinessProbe = &corev1.Probe{} }))},
		{`spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1`, pod(container(func(c *corev1.Container) {
			c.Resources = corev1.ResourceRequirements{Requests: amounts("cpu", "2"), Limits: amounts("cpu", "1")}
		}))},
		{`spec.containers[0].resources.limits[foo]: Invalid value: "foo": must be a standard resource for containers`, pod(container(func(c *corev1.Container) { c.Resources.Limits = amounts("foo", "1") }))},
		{`spec.containers[0].resources.requests[memory]: Invalid value: "-1": must be greater than or equal to 0`, pod(container(func(c *corev1.Container) { c.Resources.Requests = amounts("memory", "-1") }))},
		{`spec.containers[0].resources.limits[example.com/gpu]: Invalid value: "500m": must be an integer`, pod(container(func(c *corev1.Container) { c.Resources.Limits = amounts("example.com/gpu", "500m") }))},
		{`spec.containers[0].securityContext: Invalid value`, pod(container(func(c *corev1.Container) {
			c.SecurityContext = &corev1.SecurityContext{Privileged: ptr.To(true), AllowPrivilegeEscalation: ptr.To(false)}
		}))},
		{`spec.containers[0].securityContext.runAsUser: Invalid value: -1: must be between 0 and 2147483647, inclusive`, pod(container(func(c *corev1.Container) { c.SecurityContext = &corev1.SecurityContext{RunAsUser: ptr.To(int64(-1))} }))},
		{`spec.containers[0].securityContext.seccompProfile.localhostProfile: Required value: must be set when seccomp type is Localhost`, pod(container(func(c *corev1.Container) {
			c.SecurityContext = &corev1.SecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: "Localhost"}}
		}))},
		{`spec.containers[0].restartPolicyRules: `, pod(container(func(c *corev1.Container) { c.RestartPolicyRules = make([]corev1.ContainerRestartRule, 21) }))},
		{`spec.volumes[0].hostPath.path: Required value`, pod(volume(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{}}))},
		{`spec.volumes[0].emptyDir: Forbidden: may not specify more than 1 volume type`, pod(volume(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/x"}, EmptyDir: &corev1.EmptyDirVolumeSource{}}))},
		{`spec.volumes[1].name: Duplicate value: "v"`, pod(volume(corev1.VolumeSource{}), volume(corev1.VolumeSource{}))},
		{`spec.volumes[0].secret.secretName: Required value`, pod(volume(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}))},
		{`spec.volumes[0].configMap.items[0].path: Invalid value: "../x": must not contain '..'`, pod(volume(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "c"}, Items: []corev1.KeyToPath{{Key: "k", Path: "../x"}}}}))},
		{`spec.volumes[0].projected: Invalid value: "b": conflicting duplicate paths`, pod(volume(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "a"}, Items: []corev1.KeyToPath{{Key: "k", Path: "x"}}}},
			{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "b"}, Items: []corev1.KeyToPath{{Key: "k", Path: "x"}}}},
		}}}))},
		{`spec.volumes[0].projected.sources[0].serviceAccountToken: Forbidden: must not be specified when serviceAccountName is not set`, pod(func(p *corev1.Pod) { p.Spec.ServiceAccountName = "" }, volume(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "t"}}}}}))},
		{`spec.restartPolicy: Unsupported value: "Maybe": supported values: "Always", "OnFailure", "Never"`, pod(func(p *corev1.Pod) { p.Spec.RestartPolicy = "Maybe" })},
		{`spec.dnsConfig: Required value: must provide ` + "`dnsConfig` when `dnsPolicy`" + ` is None`, pod(func(p *corev1.Pod) { p.Spec.DNSPolicy = corev1.DNSNone })},
		{`spec.tolerations[0].operator: Invalid value: "": operator must be Exists when ` + "`key`" + ` is empty`, pod(func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{}} })},
		{`spec.tolerations[0].effect: Invalid value: "NoSchedule": effect must be 'NoExecute' when ` + "`tolerationSeconds`" + ` is set`, pod(func(p *corev1.Pod) {
			p.Spec.Tolerations = []corev1.Toleration{{Key: "a", Effect: "NoSchedule", TolerationSeconds: ptr.To(int64(1))}}
		})},
		{`spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey: Required value: can not be empty`, pod(func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{}}}}
		})},
		{`spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].values: Required value: must be specified when ` + "`operator`" + ` is 'In' or 'NotIn'`, pod(func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "a", Operator: "In"}}}}}}}
		})},
		{`spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than zero`, pod(func(p *corev1.Pod) {
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{TopologyKey: "z", WhenUnsatisfiable: "DoNotSchedule"}}
		})},
		{`spec.securityContext.sysctls[0].name: Invalid value: "net.core.somaxconn": may not be specified when 'hostNetwork' is true`, pod(func(p *corev1.Pod) {
			p.Spec.HostNetwork = true
			p.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "net.core.somaxconn"}}}
		})},
		{`spec.ephemeralContainers: Forbidden: cannot be set on create`, pod(func(p *corev1.Pod) {
			p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e", Image: "e"}}}
		})},
		{`spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared`, pod(func(p *corev1.Pod) {
			p.Spec.NodeName, p.Spec.SchedulingGates = "node-1", []corev1.PodSchedulingGate{{Name: "a/b"}}
		})},
		{`metadata.annotations[kubernetes.io/config.mirror]: Invalid value: "x": must set spec.nodeName if mirror pod annotation is set`, pod(func(p *corev1.Pod) { p.Annotations = map[string]string{"kubernetes.io/config.mirror": "x"} })},
		{`spec.securityContext.windowsOptions: Forbidden: windows options cannot be set for a linux pod`, pod(func(p *corev1.Pod) {
			p.Spec.OS = &corev1.PodOS{Name: corev1.Linux}
			p.Spec.SecurityContext = &corev1.PodSecurityContext{WindowsOptions: &corev1.WindowsSecurityContextOptions{}}
		})},
		{`spec.resources.requests[cpu]: Invalid value: "1": must be greater than or equal to aggregate container requests of 2`, pod(container(func(c *corev1.Container) { c.Resources.Requests = amounts("cpu", "2") }), func(p *corev1.Pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{Requests: amounts("cpu", "1")}
		})},
	} {
		errs := ValidatePod(test.pod)
		if !slices.ContainsFunc(errs.ToAggregate().Errors(), func(err error) bool { return strings.HasPrefix(err.Error(), test.want) }) {
			t.Errorf("got %v, want %s", errs, test.want)
		}
	}
}

func TestPodDefaults(t *testing.T) {
	p := pod(container(func(c *corev1.Container) {
		c.Image = "registry.example.com:5000/web"
		c.Ports = []corev1.ContainerPort{{ContainerPort: 80}}
		c.Resources.Limits = amounts("cpu", "100u", "memory", "1Gi")
		c.LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(80)}}}
	}), volume(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}), func(p *corev1.Pod) { p.Spec.HostNetwork = true })
	c := p.Spec.Containers[0]
	if c.ImagePullPolicy != corev1.PullAlways || c.TerminationMessagePath != "/dev/termination-log" || c.TerminationMessagePolicy != "File" {
		t.Errorf("container is %+v", c)
	}
	if c.Ports[0].Protocol != "TCP" || c.Ports[0].HostPort != 80 {
		t.Errorf("port is %+v", c.Ports[0])
	}
	if cpu := c.Resources.Requests["cpu"]; cpu.String() != "1m" {
		t.Errorf("CPU request is %s, want the limit rounded up to 1m", cpu.String())
	}
	if g := c.LivenessProbe; g.HTTPGet.Path != "/" || g.HTTPGet.Scheme != "HTTP" || g.TimeoutSeconds != 1 || g.PeriodSeconds != 10 || g.SuccessThreshold != 1 || g.FailureThreshold != 3 {
		t.Errorf("probe is %+v", g)
	}
	if *p.Spec.Volumes[0].Secret.DefaultMode != 0o644 || *p.Spec.TerminationGracePeriodSeconds != 30 || !*p.Spec.EnableServiceLinks ||
		p.Spec.DeprecatedServiceAccount != "default" || p.Spec.SchedulerName != "default-scheduler" || p.Spec.DNSPolicy != "ClusterFirst" || p.Spec.RestartPolicy != "Always" {
		t.Errorf("spec is %+v", p.Spec)
	}
}

func TestTemplatesAreDefaultedLessThanPods(t *testing.T) {
	spec := corev1.PodSpec{HostNetwork: true, Containers: []corev1.Container{{Image: "web:1", Ports: []corev1.ContainerPort{{ContainerPort: 80}}, Resources: corev1.ResourceRequirements{Limits: amounts("cpu", "1")}}}}
	Default(&spec)
	if spec.EnableServiceLinks != nil || spec.Containers[0].Ports[0].HostPort != 0 || spec.Containers[0].Resources.Requests != nil {
		t.Errorf("template is %+v", spec)
	}
}

func TestPullPolicyFollowsTheTag(t *testing.T) {
	for image, want := range map[string]corev1.PullPolicy{
		"web": corev1.PullAlways, "web:latest": corev1.PullAlways, "host:5000/web": corev1.PullAlways,
		"web:1": corev1.PullIfNotPresent, "host:5000/web:1": corev1.PullIfNotPresent, "web@sha256:abc": corev1.PullIfNotPresent,
		"web:latest@sha256:abc": corev1.PullAlways,
	} {
		if got := pullPolicyOf(image); got != want {
			t.Errorf("%s is pulled %s, want %s", image, got, want)
		}
	}
}

func TestQOS(t *testing.T) {
	for _, test := range []struct {
		want             corev1.PodQOSClass
		requests, limits corev1.ResourceList
	}{
		{corev1.PodQOSBestEffort, nil, nil},
		{corev1.PodQOSBurstable, amounts("cpu", "1"), nil},
		{corev1.PodQOSBurstable, nil, amounts("cpu", "1")},
		{corev1.PodQOSGuaranteed, nil, amounts("cpu", "1", "memory", "1Gi")},
		{corev1.PodQOSBurstable, amounts("cpu", "500m"), amounts("cpu", "1", "memory", "1Gi")},
		{corev1.PodQOSBestEffort, amounts("ephemeral-storage", "1Gi"), nil},
	} {
		p := pod(container(func(c *corev1.Container) {
			c.Resources = corev1.ResourceRequirements{Requests: test.requests, Limits: test.limits}
		}))
		if got := QOS(&p.Spec); got != test.want {
			t.Errorf("%v and %v make %s, want %s", test.requests, test.limits, got, test.want)
		}
	}
}

func TestPodUpdates(t *testing.T) {
	for _, test := range []struct {
		name, want string // want is "" for an allowed update
		old        *corev1.Pod
		change     func(*corev1.Pod)
	}{
		{"image", "", pod(), container(func(c *corev1.Container) { c.Image = "web:2" })},
		{"labels", "", pod(), func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} }},
		{"added toleration", "", pod(), func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Key: "a", Operator: "Exists"}} }},
		{"deadline", "", pod(), func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To(int64(5)) }},
		{"longer deadline", "spec.activeDeadlineSeconds: Invalid value: 9: must be less than or equal to previous value", pod(func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To(int64(5)) }), func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To(int64(9)) }},
		{"removed toleration", "spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds", pod(func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Key: "a"}} }), func(p *corev1.Pod) { p.Spec.Tolerations = nil }},
		{"command", "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)", pod(), container(func(c *corev1.Container) { c.Command = []string{"x"} })},
		{"added container", "spec.containers: Forbidden: pod updates may not add or remove containers", pod(), func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "d", Image: "d"})
		}},
		{"new gate", "spec.schedulingGates[0].name: Forbidden: only deletion is allowed, but found new scheduling gate 'a/b'", pod(), func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "a/b"}} }},
		{"gated node selector", "", pod(func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "a/b"}} }), func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"a": "b"} }},
		{"node selector", "spec: Forbidden: pod updates may not change fields", pod(), func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"a": "b"} }},
		{"node name", "spec: Forbidden: pod updates may not change fields", pod(), func(p *corev1.Pod) { p.Spec.NodeName = "node-1" }},
	} {
		now := test.old.DeepCopy()
		test.change(now)
		DefaultPod(now)
		errs := ValidatePodUpdate(now, test.old)
		if test.want == "" {
			if len(errs) > 0 {
				t.Errorf("%s: %v", test.name, errs)
			}
			continue
		}
		if len(errs) == 0 || !strings.HasPrefix(errs[0].Error(), test.want) {
			t.Errorf("%s: got %v, want %s", test.name, errs, test.want)
		}
	}
}

func TestStatusUpdateKeepsEndedContainersEnded(t *testing.T) {
	old := pod(func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever })
	old.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}
	now := old.DeepCopy()
	now.Status.ContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	errs := ValidatePodStatusUpdate(now, old)
	if len(errs) != 1 || errs[0].Error() != "status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state" {
		t.Errorf("got %v", errs)
	}
	now.Spec.RestartPolicy, old.Spec.RestartPolicy = corev1.RestartPolicyAlways, corev1.RestartPolicyAlways
	if errs := ValidatePodStatusUpdate(now, old); len(errs) > 0 {
		t.Errorf("got %v", errs)
	}
}

func TestEphemeralContainersAreOnlyAdded(t *testing.T) {
	debug := func(name string) corev1.EphemeralContainer {
		return corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: name, Image: "debug"}, TargetContainerName: "c"}
	}
	old := pod(func(p *corev1.Pod) { p.Spec.EphemeralContainers = []corev1.EphemeralContainer{debug("a")} })
	now := pod(func(p *corev1.Pod) { p.Spec.EphemeralContainers = []corev1.EphemeralContainer{debug("b"), debug("a")} })
	if errs := ValidateEphemeralContainersUpdate(now, old); len(errs) > 0 {
		t.Errorf("adding: %v", errs)
	}
	if errs := ValidateEphemeralContainersUpdate(pod(), old); len(errs) != 1 || !strings.Contains(errs[0].Error(), `existing ephemeral containers "a" may not be removed`) {
		t.Errorf("removing: %v", errs)
	}
	now.Spec.EphemeralContainers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, Protocol: "TCP"}}
	if errs := ValidateEphemeralContainersUpdate(now, old); len(errs) != 1 || errs[0].Error() != "spec.ephemeralContainers[0].ports: Forbidden: cannot be set for an Ephemeral Container" {
		t.Errorf("ports: %v", errs)
	}
}

func TestResize(t *testing.T) {
	old := pod(container(func(c *corev1.Container) {
		c.Resources = corev1.ResourceRequirements{Requests: amounts("cpu", "1"), Limits: amounts("cpu", "2")}
	}))
	old.Status.QOSClass = QOS(&old.Spec)
	now := old.DeepCopy()
	now.Spec.Containers[0].Resources.Limits = amounts("cpu", "3")
	if errs := ValidateResize(now, old); len(errs) > 0 {
		t.Errorf("more CPU: %v", errs)
	}
	now.Spec.Containers[0].Resources.Limits = amounts("cpu", "1")
	now.Spec.Containers[0].Resources.Requests = nil
	if errs := ValidateResize(now, old); len(errs) == 0 || !strings.Contains(errs.ToAggregate().Error(), "spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed") {
		t.Errorf("removed request: %v", errs)
	}
	now = old.DeepCopy()
	now.Spec.Containers[0].Resources.Limits["ephemeral-storage"] = resource.MustParse("1Gi")
	if errs := ValidateResize(now, old); len(errs) == 0 || !strings.Contains(errs.ToAggregate().Error(), "only cpu and memory resources are mutable") {
		t.Errorf("storage: %v", errs)
	}
}

func TestWarnings(t *testing.T) {
	p := pod(container(func(c *corev1.Container) {
		c.Env = []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "A", Value: "2"}, {Name: "B", Value: "x"}, {Name: "B", Value: "$(B)y"}}
		c.Ports = []corev1.ContainerPort{{ContainerPort: 80, Protocol: "TCP"}, {ContainerPort: 80, Protocol: "TCP"}}
		c.Resources.Limits = amounts("memory", "100m")
	}), func(p *corev1.Pod) {
		p.Spec.NodeSelector = map[string]string{"beta.kubernetes.io/os": "linux"}
		p.Annotations = map[string]string{"scheduler.alpha.kubernetes.io/critical-pod": ""}
	})
	got := Warnings(&p.ObjectMeta, &p.Spec, nil)
	want := []string{
		`spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use "kubernetes.io/os" instead`,
		`metadata.annotations[scheduler.alpha.kubernetes.io/critical-pod]: non-functional in v1.16+; use the "priorityClassName" field instead`,
		`spec.containers[0].resources.limits[memory]: fractional byte value "100m" is invalid, must be an integer`,
		`spec.containers[0].resources.requests[memory]: fractional byte value "100m" is invalid, must be an integer`,
		`spec.containers[0].env[1]: hides previous definition of "A", which may be dropped when using apply`,
		`spec.containers[0].ports[1]: duplicate port definition with spec.containers[0].ports[0]`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("warned\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestAppArmorAnnotationsBecomeFields(t *testing.T) {
	p := pod(func(p *corev1.Pod) {
		p.Annotations = map[string]string{"container.apparmor.security.beta.kubernetes.io/c": "localhost/web"}
	})
	warnings := SyncAppArmor(p)
	profile := p.Spec.Containers[0].SecurityContext.AppArmorProfile
	if profile == nil || profile.Type != "Localhost" || *profile.LocalhostProfile != "web" || len(warnings) != 1 {
		t.Errorf("profile is %+v, warned %v", profile, warnings)
	}
}
