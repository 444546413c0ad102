package conformance

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func emptyDir(medium corev1.StorageMedium) corev1.VolumeSource {
	return corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: medium}}
}

// emptyDirs are the behaviours of scratch volumes: each file mode, as root and
// not, on disk and in memory.
func emptyDirs() map[string]func(*testing.T) {
	all := map[string]func(*testing.T){
		"volume on default medium should have the correct mode [LinuxOnly] [NodeConformance]": emptyDirMode(""),
		"volume on tmpfs should have the correct mode [LinuxOnly] [NodeConformance]":          emptyDirMode(corev1.StorageMediumMemory),
		"pod should support shared volumes between containers":                                sharedVolume,
	}
	for user, id := range map[string]int64{"root": 0, "non-root": 1001} {
		for _, mode := range []string{"0644", "0666", "0777"} {
			for name, medium := range map[string]corev1.StorageMedium{"default": "", "tmpfs": corev1.StorageMediumMemory} {
				all[fmt.Sprintf("should support (%s,%s,%s) [LinuxOnly] [NodeConformance]", user, mode, name)] = emptyDirFile(id, mode, medium)
			}
		}
	}
	return all
}

func emptyDirMode(medium corev1.StorageMedium) func(*testing.T) {
	return func(t *testing.T) {
		printed := output(t, newNamespace(t), withVolume(pod("reader", "stat -c %a /etc/vol; grep ' /etc/vol ' /proc/mounts"), emptyDir(medium)))
		if !strings.HasPrefix(printed, "777\n") || strings.Contains(printed, " tmpfs ") != (medium == corev1.StorageMediumMemory) {
			t.Errorf("the pod prints %q", printed)
		}
	}
}

func emptyDirFile(user int64, mode string, medium corev1.StorageMedium) func(*testing.T) {
	return func(t *testing.T) {
		script := fmt.Sprintf("echo mount-tester > /etc/vol/file && busybox chmod %s /etc/vol/file && stat -c '%%a %%u' /etc/vol/file && cat /etc/vol/file && grep ' /etc/vol ' /proc/mounts", mode)
		made := withVolume(pod("writer", script), emptyDir(medium))
		if user != 0 {
			asUser(made, user)
		}
		printed := output(t, newNamespace(t), made)
		if want := fmt.Sprintf("%s %d\nmount-tester\n", mode[1:], user); !strings.HasPrefix(printed, want) || strings.Contains(printed, " tmpfs ") != (medium == corev1.StorageMediumMemory) {
			t.Errorf("the pod prints %q", printed)
		}
	}
}

func sharedVolume(t *testing.T) {
	made := withVolume(pod("shared", "until [ -s /etc/vol/said ]; do sleep 0.05; done; cat /etc/vol/said"), emptyDir(corev1.StorageMediumMemory))
	other := *made.Spec.Containers[0].DeepCopy()
	other.Name, other.Command = "other", []string{"/bin/sh", "-c", "echo hello > /etc/vol/part; mv /etc/vol/part /etc/vol/said"}
	made.Spec.Containers = append(made.Spec.Containers, other)
	if printed := output(t, newNamespace(t), made); printed != "hello\n" {
		t.Errorf("the pod prints %q", printed)
	}
}

var wrapperVolumes = map[string]func(*testing.T){
	"should not conflict": func(t *testing.T) {
		namespace := newNamespace(t)
		storeSecret(t, namespace, "secret", threeValues)
		storeConfigMap(t, namespace, "config", threeValues)
		made := withVolumeAt(pod("wrapped", "cat /etc/secret/data-1 /etc/config/data-2"), "secret", "/etc/secret", secretVolume.source("secret", nil, false))
		if printed := output(t, namespace, withVolumeAt(made, "config", "/etc/config", configMapVolume.source("config", nil, false))); printed != "value-1value-2" {
			t.Errorf("the pod prints %q", printed)
		}
	},
	"should not cause race condition when used for configmaps [Serial]": manyWrappedConfigMaps,
}

// manyWrappedConfigMaps starts pods with fifty volumes each, all at once.
func manyWrappedConfigMaps(t *testing.T) {
	const volumes, pods = 50, 5
	namespace := newNamespace(t)
	for i := range volumes {
		storeConfigMap(t, namespace, fmt.Sprint("racey-", i), map[string]string{"data-1": "value-1"})
	}
	for i := range pods {
		made := pod(fmt.Sprint("racer-", i), "sleep 3600")
		for j := range volumes {
			name := fmt.Sprint("racey-", j)
			withVolumeAt(made, name, "/etc/config-"+fmt.Sprint(j), configMapVolume.source(name, nil, false))
		}
		create(t, namespace, made)
	}
	for i := range pods {
		awaitRunning(t, namespace, fmt.Sprint("racer-", i))
		eventuallyShell(t, namespace, fmt.Sprint("racer-", i), "cat /etc/config-*/data-1 | wc -c", fmt.Sprint(volumes*len("value-1")))
	}
}

// subpaths are volumes whose files are mounted one by one.
var subpaths = map[string]func(*testing.T){
	"should support subpaths with configmap pod":                                 subpathOf(configMapVolume, "configmap-key", "/etc/vol/file"),
	"should support subpaths with configmap pod with mountPath of existing file": subpathOf(configMapVolume, "configmap-key", "/etc/passwd"),
	"should support subpaths with secret pod":                                    subpathOf(secretVolume, "secret-key", "/etc/vol/file"),
	"should support subpaths with projected pod":                                 subpathOf(projectedConfigMapVolume, "projected-key", "/etc/vol/file"),
	"should support subpaths with downward pod": func(t *testing.T) {
		file := fieldFile("downward/podname", "metadata.name")
		assertSubpath(t, newNamespace(t), plainDownward(nil, file), "downward/podname", "/etc/vol/file", "subpath")
	},
}

func subpathOf(volume objectVolume, key, path string) func(*testing.T) {
	return func(t *testing.T) {
		namespace := newNamespace(t)
		volume.store(t, namespace, "object", map[string]string{key: "content of " + key})
		assertSubpath(t, namespace, volume.source("object", nil, false), key, path, "content of "+key)
	}
}

func assertSubpath(t *testing.T, namespace string, source corev1.VolumeSource, subpath, path, want string) {
	t.Helper()
	made := pod("subpath", "cat "+path)
	made.Spec.Volumes = []corev1.Volume{{Name: "volume", VolumeSource: source}}
	made.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "volume", MountPath: path, SubPath: subpath}}
	if printed := output(t, namespace, made); printed != want {
		t.Errorf("the pod prints %q, not %q", printed, want)
	}
}
