package conformance

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// pod runs a shell script in one container, c, and is killed without delay.
func pod(name, script string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64),
			Containers:                    []corev1.Container{{Name: "c", Image: image, Command: []string{"/bin/sh", "-c", script}}},
		},
	}
}

// awaitPod waits until the pod is as wanted, and returns it.
func awaitPod(t *testing.T, namespace, name, what string, wanted func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	var read *corev1.Pod
	eventually(t, fmt.Sprintf("pod %s to be %s", name, what), func(ctx context.Context) (bool, error) {
		var err error
		read, err = client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		return err == nil && wanted(read), err
	})
	return read
}

func awaitRunning(t *testing.T, namespace, name string) *corev1.Pod {
	t.Helper()
	return awaitPod(t, namespace, name, "running", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning })
}

func awaitReady(t *testing.T, namespace, name string) *corev1.Pod {
	t.Helper()
	return awaitPod(t, namespace, name, "ready", ready)
}

func ready(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// create makes the pod.
func create(t *testing.T, namespace string, made *corev1.Pod) *corev1.Pod {
	t.Helper()
	return got(client.CoreV1().Pods(namespace).Create(t.Context(), made, metav1.CreateOptions{}))(t)
}

// output runs the pod to its end, which must be a success, and returns what its
// first container printed.
func output(t *testing.T, namespace string, made *corev1.Pod) string {
	t.Helper()
	if made.Spec.RestartPolicy == "" {
		made.Spec.RestartPolicy = corev1.RestartPolicyNever
	}
	created := create(t, namespace, made)
	awaitSucceeded(t, namespace, created.Name)
	return logs(t, namespace, created.Name, created.Spec.Containers[0].Name)
}

func awaitSucceeded(t *testing.T, namespace, name string) *corev1.Pod {
	t.Helper()
	ended := awaitPod(t, namespace, name, "at its end", func(pod *corev1.Pod) bool {
		return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	})
	if ended.Status.Phase != corev1.PodSucceeded {
		t.Fatalf("pod %s failed: %+v", name, ended.Status.ContainerStatuses)
	}
	return ended
}

func logs(t *testing.T, namespace, name, container string) string {
	t.Helper()
	return string(got(client.CoreV1().Pods(namespace).GetLogs(name, &corev1.PodLogOptions{Container: container}).DoRaw(t.Context()))(t))
}

// shell runs a script in the pod's first container and returns what it prints.
func shell(t *testing.T, namespace, name, script string) string {
	t.Helper()
	return cluster.MustKubectl(t, "-n", namespace, "exec", name, "--", "/bin/sh", "-c", script)
}

// eventuallyShell waits until the script, which may fail at first, prints the
// wanted text.
func eventuallyShell(t *testing.T, namespace, name, script, want string) {
	t.Helper()
	last := ""
	eventually(t, fmt.Sprintf("%q to print %q", script, want), func(context.Context) (bool, error) {
		last, _ = cluster.Kubectl("-n", namespace, "exec", name, "--", "/bin/sh", "-c", script)
		return strings.Contains(last, want), nil
	})
}

// withVolume mounts the volume at /etc/vol in all containers.
func withVolume(made *corev1.Pod, source corev1.VolumeSource) *corev1.Pod {
	return withVolumeAt(made, "volume", "/etc/vol", source)
}

func withVolumeAt(made *corev1.Pod, name, path string, source corev1.VolumeSource) *corev1.Pod {
	made.Spec.Volumes = append(made.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
	for i := range made.Spec.Containers {
		made.Spec.Containers[i].VolumeMounts = append(made.Spec.Containers[i].VolumeMounts, corev1.VolumeMount{Name: name, MountPath: path})
	}
	return made
}

func asUser(made *corev1.Pod, user int64) *corev1.Pod {
	made.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: &user}
	return made
}

// withEnv sets variables of the first container: name, value, name, value …
func withEnv(made *corev1.Pod, pairs ...string) *corev1.Pod {
	for i := 0; i < len(pairs); i += 2 {
		made.Spec.Containers[0].Env = append(made.Spec.Containers[0].Env, corev1.EnvVar{Name: pairs[i], Value: pairs[i+1]})
	}
	return made
}

func withFieldEnv(made *corev1.Pod, pairs ...string) *corev1.Pod {
	for i := 0; i < len(pairs); i += 2 {
		made.Spec.Containers[0].Env = append(made.Spec.Containers[0].Env, corev1.EnvVar{
			Name: pairs[i], ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: pairs[i+1]}},
		})
	}
	return made
}
