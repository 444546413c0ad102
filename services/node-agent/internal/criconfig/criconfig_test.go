package criconfig

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/cgroups"
	"github.com/sampan-io/sampan/services/node-agent/internal/qos"
)

func newNode(t *testing.T, resolv string) Node {
	t.Helper()
	path := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(path, []byte(resolv), 0o644); err != nil {
		t.Fatal(err)
	}
	return Node{
		Name: "n", ClusterDNS: []string{"10.96.0.10"}, ClusterDomain: "cluster.local", ResolvConf: path, LogsDir: "/logs", MemoryCapacity: 1 << 30,
		Cgroups: qos.Tree{Root: "/root", CFSQuota: true}, SeccompRoot: "/seccomp",
	}
}

func newPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "uid"},
		Spec:       corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
}

func show(config *runtimeapi.DNSConfig) string {
	return strings.Join(config.GetServers(), ",") + " | " + strings.Join(config.GetSearches(), ",") + " | " + strings.Join(config.GetOptions(), ",")
}

func TestDNSFollowsThePolicy(t *testing.T) {
	const host = "# comment\nnameserver 192.0.2.1\nsearch example.test.\noptions timeout:2 rotate\n"
	two := "2"
	for _, c := range []struct {
		name   string
		change func(spec *corev1.PodSpec)
		want   string
	}{
		{"cluster first", func(*corev1.PodSpec) {}, "10.96.0.10 | ns.svc.cluster.local,svc.cluster.local,cluster.local,example.test | ndots:5"},
		{"cluster first on the host's network is the host's", func(s *corev1.PodSpec) { s.HostNetwork = true }, "192.0.2.1 | example.test | timeout:2,rotate"},
		{"unless with host network", func(s *corev1.PodSpec) { s.HostNetwork, s.DNSPolicy = true, corev1.DNSClusterFirstWithHostNet },
			"10.96.0.10 | ns.svc.cluster.local,svc.cluster.local,cluster.local,example.test | ndots:5"},
		{"default", func(s *corev1.PodSpec) { s.DNSPolicy = corev1.DNSDefault }, "192.0.2.1 | example.test | timeout:2,rotate"},
		{"none", func(s *corev1.PodSpec) {
			s.DNSPolicy = corev1.DNSNone
			s.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{"198.51.100.1"}, Searches: []string{"a.test"}}
		}, "198.51.100.1 | a.test | "},
		{"options are replaced by name", func(s *corev1.PodSpec) {
			s.DNSConfig = &corev1.PodDNSConfig{Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: &two}, {Name: "edns0"}}}
		}, "10.96.0.10 | ns.svc.cluster.local,svc.cluster.local,cluster.local,example.test | ndots:2,edns0"},
		{"at most three servers", func(s *corev1.PodSpec) {
			s.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{"1.1.1.1", "2.2.2.2", "3.3.3.3"}}
		},
			"10.96.0.10,1.1.1.1,2.2.2.2 | ns.svc.cluster.local,svc.cluster.local,cluster.local,example.test | ndots:5"},
	} {
		t.Run(c.name, func(t *testing.T) {
			pod := newPod()
			c.change(&pod.Spec)
			config, err := newNode(t, host).DNS(pod)
			if err != nil {
				t.Fatal(err)
			}
			if got := show(config); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

func TestHostnames(t *testing.T) {
	yes, override := true, "other"
	long := strings.Repeat("a", 62) + "-b"
	for _, c := range []struct {
		name           string
		change         func(pod *corev1.Pod)
		want, wantZone string
	}{
		{"the pod's name", func(*corev1.Pod) {}, "p", ""},
		{"cut to what the kernel takes", func(pod *corev1.Pod) { pod.Name = long }, strings.Repeat("a", 62), ""},
		{"its own", func(pod *corev1.Pod) { pod.Spec.Hostname, pod.Spec.Subdomain = "web", "sub" }, "web", "sub.ns.svc.cluster.local"},
		{"whole", func(pod *corev1.Pod) {
			pod.Spec.Hostname, pod.Spec.Subdomain, pod.Spec.SetHostnameAsFQDN = "web", "sub", &yes
		}, "web.sub.ns.svc.cluster.local", "sub.ns.svc.cluster.local"},
		{"overridden", func(pod *corev1.Pod) { pod.Spec.Hostname, pod.Spec.HostnameOverride = "web", &override }, "other", ""},
	} {
		pod := newPod()
		c.change(pod)
		if got, zone := newNode(t, "").HostnameOf(pod); got != c.want || zone != c.wantZone {
			t.Errorf("%s: %q %q, want %q %q", c.name, got, zone, c.want, c.wantZone)
		}
	}
}

func TestNonRootIsVerified(t *testing.T) {
	yes, root, user := true, int64(0), int64(7)
	for _, c := range []struct {
		name  string
		user  *int64
		image Image
		want  string
	}{
		{"a user of its own", &user, Image{}, ""},
		{"root of its own", &root, Image{}, "container's runAsUser breaks non-root policy"},
		{"the image's user", nil, Image{UID: &user}, ""},
		{"the image's root", nil, Image{UID: &root}, "image will run as root"},
		{"the image says nothing", nil, Image{}, "image will run as root"},
		{"a name", nil, Image{Username: "web"}, "image has non-numeric user (web), cannot verify user is non-root"},
	} {
		pod := newPod()
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: &yes, RunAsUser: c.user}
		_, err := newNode(t, "").Container(Container{Pod: pod, Spec: &pod.Spec.Containers[0], Image: c.image})
		if (err == nil) != (c.want == "") || (err != nil && !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func TestContainersSettingsWinOverThePods(t *testing.T) {
	one, two, no := int64(1), int64(2), false
	pod := newPod()
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{
		RunAsUser: &one, RunAsGroup: &one, FSGroup: &two, SupplementalGroups: []int64{9}, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	spec := &pod.Spec.Containers[0]
	spec.SecurityContext = &corev1.SecurityContext{RunAsUser: &two, AllowPrivilegeEscalation: &no}
	config, err := newNode(t, "").Container(Container{Pod: pod, Spec: spec})
	if err != nil {
		t.Fatal(err)
	}
	got := config.GetLinux().GetSecurityContext()
	if got.GetRunAsUser().GetValue() != 2 || got.GetRunAsGroup().GetValue() != 1 || !got.GetNoNewPrivs() || len(got.GetSupplementalGroups()) != 2 ||
		got.GetSeccomp().GetProfileType() != runtimeapi.SecurityProfile_RuntimeDefault || len(got.GetMaskedPaths()) == 0 {
		t.Errorf("security context %+v", got)
	}
}

func TestLocalSeccompProfilesStayInTheirFolder(t *testing.T) {
	empty, up, own := "", "../../etc/passwd", "mine.json"
	for _, c := range []struct {
		profile *string
		fail    bool
	}{{nil, true}, {&empty, true}, {&up, true}, {&own, false}} {
		pod := newPod()
		spec := &pod.Spec.Containers[0]
		spec.SecurityContext = &corev1.SecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: c.profile}}
		config, err := newNode(t, "").Container(Container{Pod: pod, Spec: spec})
		if (err != nil) != c.fail {
			t.Errorf("profile %v: %v", c.profile, err)
		}
		if err == nil && config.GetLinux().GetSecurityContext().GetSeccomp().GetLocalhostRef() != "/seccomp/mine.json" {
			t.Errorf("reference %+v", config.GetLinux().GetSecurityContext().GetSeccomp())
		}
	}
}

func TestOutOfMemoryEndsWholeContainersWhereTheKernelCan(t *testing.T) {
	for _, unified := range []bool{true, false} {
		node := Node{Cgroups: qos.Tree{Hierarchy: cgroups.Like(t.TempDir(), unified)}}
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}}}
		got := node.UpdatedResources(pod, &pod.Spec.Containers[0]).GetUnified()["memory.oom.group"]
		if (got == "1") != unified {
			t.Errorf("version 2 is %v: memory.oom.group %q", unified, got)
		}
	}
}

func TestResourcesAndTheOrderOfDying(t *testing.T) {
	list := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	}
	for _, c := range []struct {
		name                  string
		resources             corev1.ResourceRequirements
		shares, quota, memory int64
		score                 int64
	}{
		{"nothing asked for", corev1.ResourceRequirements{}, 2, 0, 0, 1000},
		{"limits alone are requests too", corev1.ResourceRequirements{Limits: list("500m", "256Mi"), Requests: list("500m", "256Mi")}, 512, 50000, 256 << 20, -997},
		{"a quarter of the memory", corev1.ResourceRequirements{Requests: list("1", "256Mi")}, 1024, 0, 0, 750},
		{"nearly nothing", corev1.ResourceRequirements{Requests: list("1m", "1")}, 2, 0, 0, 999},
	} {
		pod := newPod()
		pod.Spec.Containers[0].Resources = c.resources
		got := newNode(t, "").resources(pod, &pod.Spec.Containers[0])
		if got.GetCpuShares() != c.shares || got.GetCpuQuota() != c.quota || got.GetMemoryLimitInBytes() != c.memory || got.GetOomScoreAdj() != c.score {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}
