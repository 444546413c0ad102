package conformance

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// downwardVolume is a kind of volume that shows the pod's own fields.
type downwardVolume func(mode *int32, files ...corev1.DownwardAPIVolumeFile) corev1.VolumeSource

var plainDownward downwardVolume = func(mode *int32, files ...corev1.DownwardAPIVolumeFile) corev1.VolumeSource {
	return corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: files, DefaultMode: mode}}
}

var projectedDownward downwardVolume = func(mode *int32, files ...corev1.DownwardAPIVolumeFile) corev1.VolumeSource {
	return projected(mode, corev1.VolumeProjection{DownwardAPI: &corev1.DownwardAPIProjection{Items: files}})
}

func fieldFile(path, field string) corev1.DownwardAPIVolumeFile {
	return corev1.DownwardAPIVolumeFile{Path: path, FieldRef: &corev1.ObjectFieldSelector{FieldPath: field}}
}

func resourceFile(path, name string) corev1.DownwardAPIVolumeFile {
	file := corev1.DownwardAPIVolumeFile{Path: path, ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "c", Resource: name}}
	if strings.HasSuffix(name, "cpu") {
		file.ResourceFieldRef.Divisor = resource.MustParse("1m")
	}
	return file
}

// requirements are what the downward tests ask for.
func requirements() corev1.ResourceRequirements {
	return corev1.ResourceRequirements{
		Requests: hard("cpu", "250m", "memory", "32Mi"), Limits: hard("cpu", "1250m", "memory", "64Mi"),
	}
}

func (v downwardVolume) behaviours() map[string]func(*testing.T) {
	withMode := fieldFile("podname", "metadata.name")
	withMode.Mode = new(int32(0o400))
	return map[string]func(*testing.T){
		"should provide podname only [NodeConformance]":                                                              v.shows(nil, fieldFile("podname", "metadata.name"), "644 reader"),
		"should set DefaultMode on files [LinuxOnly] [NodeConformance]":                                              v.shows(new(int32(0o400)), fieldFile("podname", "metadata.name"), "400 reader"),
		"should set mode on item file [LinuxOnly] [NodeConformance]":                                                 v.shows(nil, withMode, "400 reader"),
		"should provide container's cpu limit [NodeConformance]":                                                     v.shows(nil, resourceFile("cpu_limit", "limits.cpu"), "644 1250"),
		"should provide container's memory limit [NodeConformance]":                                                  v.shows(nil, resourceFile("memory_limit", "limits.memory"), "644 67108864"),
		"should provide container's cpu request [NodeConformance]":                                                   v.shows(nil, resourceFile("cpu_request", "requests.cpu"), "644 250"),
		"should provide container's memory request [NodeConformance]":                                                v.shows(nil, resourceFile("memory_request", "requests.memory"), "644 33554432"),
		"should update labels on modification [NodeConformance]":                                                     v.updates("labels"),
		"should update annotations on modification [NodeConformance]":                                                v.updates("annotations"),
		"should provide node allocatable (cpu) as default cpu limit if the limit is not set [NodeConformance]":       v.allocatable("cpu"),
		"should provide node allocatable (memory) as default memory limit if the limit is not set [NodeConformance]": v.allocatable("memory"),
	}
}

func (v downwardVolume) shows(mode *int32, file corev1.DownwardAPIVolumeFile, want string) func(*testing.T) {
	return func(t *testing.T) {
		path := "/etc/vol/" + file.Path
		made := withVolume(pod("reader", fmt.Sprintf("stat -L -c %%a %s; cat %s", path, path)), v(mode, file))
		made.Spec.Containers[0].Resources = requirements()
		if got := output(t, newNamespace(t), made); got != strings.ReplaceAll(want, " ", "\n") {
			t.Errorf("the pod prints %q, not %q", got, want)
		}
	}
}

func (v downwardVolume) updates(field string) func(*testing.T) {
	return func(t *testing.T) {
		namespace := newNamespace(t)
		made := withVolume(pod("reader", "sleep 3600"), v(nil, fieldFile(field, "metadata."+field)))
		made.Labels, made.Annotations = map[string]string{"key1": "value1"}, map[string]string{"key1": "value1"}
		create(t, namespace, made)
		awaitRunning(t, namespace, "reader")
		eventuallyShell(t, namespace, "reader", "cat /etc/vol/"+field, `key1="value1"`)
		patch := fmt.Sprintf(`{"metadata":{%q:{"key3":"value3"}}}`, field)
		got(client.CoreV1().Pods(namespace).Patch(t.Context(), "reader", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}))(t)
		eventuallyShell(t, namespace, "reader", "cat /etc/vol/"+field, `key3="value3"`)
	}
}

func (v downwardVolume) allocatable(name string) func(*testing.T) {
	return func(t *testing.T) {
		namespace := newNamespace(t)
		made := withVolume(pod("reader", "cat /etc/vol/limit"), v(nil, resourceFile("limit", "limits."+name)))
		printed := output(t, namespace, made)
		assertAllocatable(t, namespace, "reader", name, printed)
	}
}

// assertAllocatable asserts that the number is what the pod's node has to give:
// CPU in thousandths, memory in bytes.
func assertAllocatable(t *testing.T, namespace, name, resource, printed string) {
	t.Helper()
	placed := got(client.CoreV1().Pods(namespace).Get(t.Context(), name, metav1.GetOptions{}))(t)
	node := got(client.CoreV1().Nodes().Get(t.Context(), placed.Spec.NodeName, metav1.GetOptions{}))(t)
	want := node.Status.Allocatable.Memory().Value()
	if resource == "cpu" {
		want = node.Status.Allocatable.Cpu().MilliValue()
	}
	if strings.TrimSpace(printed) != strconv.FormatInt(want, 10) {
		t.Errorf("the pod prints %q, its node has %d", printed, want)
	}
}

var downwardEnvironment = map[string]func(*testing.T){
	"should provide pod name, namespace and IP address as env vars [NodeConformance]": func(t *testing.T) {
		namespace := newNamespace(t)
		made := withFieldEnv(pod("fields", "echo $NAME $NAMESPACE $IP"), "NAME", "metadata.name", "NAMESPACE", "metadata.namespace", "IP", "status.podIP")
		printed := output(t, namespace, made)
		read := got(client.CoreV1().Pods(namespace).Get(t.Context(), "fields", metav1.GetOptions{}))(t)
		if want := fmt.Sprintf("fields %s %s\n", namespace, read.Status.PodIP); printed != want {
			t.Errorf("the pod prints %q, not %q", printed, want)
		}
	},
	"should provide host IP as an env var [NodeConformance]": func(t *testing.T) {
		namespace := newNamespace(t)
		printed := output(t, namespace, withFieldEnv(pod("fields", "echo $HOST"), "HOST", "status.hostIP"))
		if read := got(client.CoreV1().Pods(namespace).Get(t.Context(), "fields", metav1.GetOptions{}))(t); printed != read.Status.HostIP+"\n" {
			t.Errorf("the pod prints %q, its host is %s", printed, read.Status.HostIP)
		}
	},
	"should provide pod UID as env vars [NodeConformance]": func(t *testing.T) {
		namespace := newNamespace(t)
		printed := output(t, namespace, withFieldEnv(pod("fields", "echo $UID_OF_POD"), "UID_OF_POD", "metadata.uid"))
		if read := got(client.CoreV1().Pods(namespace).Get(t.Context(), "fields", metav1.GetOptions{}))(t); printed != string(read.UID)+"\n" {
			t.Errorf("the pod prints %q, its uid is %s", printed, read.UID)
		}
	},
	"should provide container's limits.cpu/memory and requests.cpu/memory as env vars [NodeConformance]": func(t *testing.T) {
		made := withResourceEnv(pod("resources", "echo $CPU_LIMIT $MEMORY_LIMIT $CPU_REQUEST $MEMORY_REQUEST"))
		made.Spec.Containers[0].Resources = requirements()
		if printed := output(t, newNamespace(t), made); printed != "2 67108864 1 33554432\n" {
			t.Errorf("the pod prints %q", printed)
		}
	},
	"should provide default limits.cpu/memory from node allocatable [NodeConformance]": func(t *testing.T) {
		namespace := newNamespace(t)
		printed := output(t, namespace, withResourceEnv(pod("resources", "echo $MEMORY_LIMIT")))
		assertAllocatable(t, namespace, "resources", "memory", printed)
	},
}

func withResourceEnv(made *corev1.Pod) *corev1.Pod {
	for name, resource := range map[string]string{"CPU_LIMIT": "limits.cpu", "MEMORY_LIMIT": "limits.memory", "CPU_REQUEST": "requests.cpu", "MEMORY_REQUEST": "requests.memory"} {
		made.Spec.Containers[0].Env = append(made.Spec.Containers[0].Env, corev1.EnvVar{
			Name: name, ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: resource}},
		})
	}
	return made
}
