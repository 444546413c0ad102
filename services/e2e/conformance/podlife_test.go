package conformance

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
)

func intPort(port int32) intstr.IntOrString { return intstr.FromInt32(port) }

var podLife = map[string]func(*testing.T){
	"should be submitted and removed [NodeConformance]":                                   podSubmitted,
	"should be updated [NodeConformance]":                                                 podUpdated,
	"should get a host IP [NodeConformance]":                                              podHostIP,
	"should allow activeDeadlineSeconds to be updated [NodeConformance]":                  podDeadline,
	"should contain environment variables for services [NodeConformance]":                 serviceVariables,
	"should delete a collection of pods":                                                  podCollection,
	"should patch a pod status":                                                           podStatus,
	"should run through the lifecycle of Pods and PodStatus":                              podLifecycle,
	"should support remote command execution over websockets [NodeConformance]":           execOverWebSocket,
	"should support retrieving logs from the container over websockets [NodeConformance]": logsOverWebSocket,
}

func podSubmitted(t *testing.T) {
	namespace, test := newNamespace(t), unique("submitted")
	api := client.CoreV1().Pods(namespace)
	w := got(api.Watch(t.Context(), labelled(test)))(t)
	defer w.Stop()
	made := pod("submitted", "sleep 3600")
	made.Labels = testLabels(test)
	create(t, namespace, made)
	awaitEvent(t, w, watch.Added, nil)
	awaitRunning(t, namespace, "submitted")
	must(t, api.Delete(t.Context(), "submitted", metav1.DeleteOptions{GracePeriodSeconds: new(int64(1))}))
	last := awaitEvent(t, w, watch.Deleted, nil).Object.(*corev1.Pod)
	if last.DeletionTimestamp == nil || last.Spec.TerminationGracePeriodSeconds == nil {
		t.Errorf("the last state has no time of deletion: %+v", last.ObjectMeta)
	}
	if list := got(api.List(t.Context(), labelled(test)))(t); len(list.Items) != 0 {
		t.Errorf("%d pods are left", len(list.Items))
	}
}

// changePod updates the pod, again on a conflict.
func changePod(t *testing.T, namespace, name string, change func(*corev1.Pod)) {
	t.Helper()
	api := client.CoreV1().Pods(namespace)
	must(t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		read, err := api.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(read)
		_, err = api.Update(t.Context(), read, metav1.UpdateOptions{})
		return err
	}))
}

func podUpdated(t *testing.T) {
	namespace := newNamespace(t)
	create(t, namespace, pod("updated", "sleep 3600"))
	awaitRunning(t, namespace, "updated")
	changePod(t, namespace, "updated", func(pod *corev1.Pod) { pod.Labels = testLabels("changed") })
	if list := got(client.CoreV1().Pods(namespace).List(t.Context(), labelled("changed")))(t); len(list.Items) != 1 {
		t.Errorf("%d pods have the new label", len(list.Items))
	}
}

func podHostIP(t *testing.T) {
	namespace := newNamespace(t)
	create(t, namespace, pod("hosted", "sleep 3600"))
	running := awaitRunning(t, namespace, "hosted")
	node := got(client.CoreV1().Nodes().Get(t.Context(), running.Spec.NodeName, metav1.GetOptions{}))(t)
	if running.Status.HostIP == "" || running.Status.HostIP != node.Status.Addresses[0].Address {
		t.Errorf("the host IP is %q, the node has %v", running.Status.HostIP, node.Status.Addresses)
	}
}

func podDeadline(t *testing.T) {
	namespace := newNamespace(t)
	create(t, namespace, pod("bounded", "sleep 3600"))
	awaitRunning(t, namespace, "bounded")
	changePod(t, namespace, "bounded", func(pod *corev1.Pod) { pod.Spec.ActiveDeadlineSeconds = new(int64(1)) })
	ended := awaitPod(t, namespace, "bounded", "failed", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodFailed })
	if ended.Status.Reason != "DeadlineExceeded" {
		t.Errorf("the reason is %q", ended.Status.Reason)
	}
}

func serviceVariables(t *testing.T) {
	namespace := newNamespace(t)
	made := got(client.CoreV1().Services(namespace).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "fooservice"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 8765, TargetPort: intPort(8080)}}},
	}, metav1.CreateOptions{}))(t)
	name := 0
	eventuallyHas(t, func() string {
		// The agent may start the first pod before it knows of the service.
		name++
		return output(t, namespace, pod(fmt.Sprint("reader-", name), "env"))
	}, "FOOSERVICE_SERVICE_HOST="+made.Spec.ClusterIP, "FOOSERVICE_SERVICE_PORT=8765", "FOOSERVICE_PORT=tcp://", "FOOSERVICE_PORT_8765_TCP=tcp://",
		"FOOSERVICE_PORT_8765_TCP_PROTO=tcp", "FOOSERVICE_PORT_8765_TCP_PORT=8765", "FOOSERVICE_PORT_8765_TCP_ADDR="+made.Spec.ClusterIP)
}

func podCollection(t *testing.T) {
	namespace := newNamespace(t)
	api := client.CoreV1().Pods(namespace)
	for _, name := range []string{"one", "two", "three"} {
		made := pod(name, "sleep 3600")
		made.Labels = testLabels("collection")
		create(t, namespace, made)
	}
	must(t, api.DeleteCollection(t.Context(), metav1.DeleteOptions{}, labelled("collection")))
	eventually(t, "the pods to be gone", func(ctx context.Context) (bool, error) {
		list, err := api.List(ctx, labelled("collection"))
		return err == nil && len(list.Items) == 0, err
	})
}

func podStatus(t *testing.T) {
	namespace := newNamespace(t)
	create(t, namespace, pod("status", "sleep 3600"))
	awaitRunning(t, namespace, "status")
	patch := []byte(`{"metadata":{"annotations":{"patched":"yes"}},"status":{"message":"Patched by a test","reason":"E2E"}}`)
	patched := got(client.CoreV1().Pods(namespace).Patch(t.Context(), "status", types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"))(t)
	if patched.Status.Message != "Patched by a test" || patched.Status.Reason != "E2E" {
		t.Errorf("status after the patch is %+v", patched.Status)
	}
}

func podLifecycle(t *testing.T) {
	namespace, test := newNamespace(t), unique("lifecycle")
	api := client.CoreV1().Pods(namespace)
	w := got(api.Watch(t.Context(), labelled(test)))(t)
	defer w.Stop()
	made := pod("lifecycle", "sleep 3600")
	made.Labels = testLabels(test)
	create(t, namespace, made)
	awaitEvent(t, w, watch.Added, nil)
	awaitEvent(t, w, watch.Modified, func(event watch.Event) bool { return ready(event.Object.(*corev1.Pod)) })
	got(api.Patch(t.Context(), "lifecycle", types.StrategicMergePatchType, labelPatch("test-pod", "patched"), metav1.PatchOptions{}))(t)
	awaitEvent(t, w, watch.Modified, func(event watch.Event) bool { return event.Object.(*corev1.Pod).Labels["test-pod"] == "patched" })
	// The agent may put the condition right at once; the answer shows that it was taken.
	var updated *corev1.Pod
	must(t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		read, err := api.Get(t.Context(), "lifecycle", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for i := range read.Status.Conditions {
			if read.Status.Conditions[i].Type == corev1.PodReady {
				read.Status.Conditions[i].Status = corev1.ConditionFalse
			}
		}
		updated, err = api.UpdateStatus(t.Context(), read, metav1.UpdateOptions{})
		return err
	}))
	if ready(updated) {
		t.Error("the status update was not taken")
	}
	must(t, api.DeleteCollection(t.Context(), metav1.DeleteOptions{GracePeriodSeconds: new(int64(1))}, labelled(test)))
	awaitEvent(t, w, watch.Deleted, nil)
}

// webSocket opens a streaming path of the API server.
func webSocket(t *testing.T, path, protocol string) *websocket.Conn {
	t.Helper()
	tlsConfig := got(rest.TLSConfigFor(cluster.Config))(t)
	dialer := websocket.Dialer{TLSClientConfig: tlsConfig, Subprotocols: []string{protocol}, HandshakeTimeout: 10 * time.Second}
	connection, _, err := dialer.DialContext(t.Context(), strings.Replace(cluster.Config.Host, "https://", "wss://", 1)+path, nil)
	must(t, err)
	t.Cleanup(func() { _ = connection.Close() })
	return connection
}

func execOverWebSocket(t *testing.T) {
	namespace := newNamespace(t)
	create(t, namespace, pod("exec", "sleep 3600"))
	awaitRunning(t, namespace, "exec")
	connection := webSocket(t, fmt.Sprintf("/api/v1/namespaces/%s/pods/exec/exec?stdout=1&stderr=1&container=c&command=echo&command=remote+execution+test", namespace), "v4.channel.k8s.io")
	text := ""
	for {
		_, message, err := connection.ReadMessage()
		if err != nil {
			break
		}
		if len(message) > 1 && message[0] == 1 {
			text += string(message[1:])
		}
	}
	if text != "remote execution test\n" {
		t.Errorf("the command prints %q", text)
	}
}

func logsOverWebSocket(t *testing.T) {
	namespace := newNamespace(t)
	create(t, namespace, pod("logs", "echo container is alive; sleep 3600"))
	awaitRunning(t, namespace, "logs")
	connection := webSocket(t, fmt.Sprintf("/api/v1/namespaces/%s/pods/logs/log?container=c", namespace), "binary.k8s.io")
	text := ""
	for {
		_, message, err := connection.ReadMessage()
		if err != nil {
			if !websocket.IsCloseError(err, websocket.CloseNormalClosure) && err != io.EOF && text == "" {
				t.Errorf("reading: %v", err)
			}
			break
		}
		text += string(message)
	}
	if text != "container is alive\n" {
		t.Errorf("the log reads %q", text)
	}
}

var kubelet = map[string]func(*testing.T){
	"when scheduling a busybox command in a pod should print the output to logs [NodeConformance]": func(t *testing.T) {
		if printed := output(t, newNamespace(t), pod("busybox", "echo Hello World")); printed != "Hello World\n" {
			t.Errorf("the log reads %q", printed)
		}
	},
	"when scheduling a busybox command that always fails in a pod should have an terminated reason [NodeConformance]": func(t *testing.T) {
		namespace := newNamespace(t)
		create(t, namespace, pod("failing", "exit 1"))
		awaitPod(t, namespace, "failing", "ended with a reason", func(pod *corev1.Pod) bool {
			if len(pod.Status.ContainerStatuses) != 1 {
				return false
			}
			terminated := pod.Status.ContainerStatuses[0].State.Terminated
			return terminated != nil && terminated.ExitCode == 1 && terminated.Reason != ""
		})
	},
	"when scheduling a busybox command that always fails in a pod should be possible to delete [NodeConformance]": func(t *testing.T) {
		namespace := newNamespace(t)
		create(t, namespace, pod("failing", "exit 1"))
		must(t, client.CoreV1().Pods(namespace).Delete(t.Context(), "failing", metav1.DeleteOptions{}))
		awaitNoPod(t, namespace, "failing")
	},
	"when scheduling a read only busybox container should not write to root filesystem [LinuxOnly] [NodeConformance]": func(t *testing.T) {
		made := pod("readonly", "(echo test > /file) 2>/dev/null; cat /file 2>/dev/null; true")
		made.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{ReadOnlyRootFilesystem: new(true)}
		if printed := output(t, newNamespace(t), made); printed != "" {
			t.Errorf("the file reads %q", printed)
		}
	},
	"when scheduling an agnhost Pod with hostAliases should write entries to /etc/hosts [NodeConformance]": func(t *testing.T) {
		made := pod("aliases", "cat /etc/hosts")
		made.Spec.HostAliases = []corev1.HostAlias{{IP: "123.45.67.89", Hostnames: []string{"foo", "bar"}}}
		contains(t, output(t, newNamespace(t), made), "# Entries added by HostAliases.", "123.45.67.89\tfoo\tbar")
	},
}

var managedHosts = map[string]func(*testing.T){
	"should test kubelet managed /etc/hosts file [NodeConformance]": func(t *testing.T) {
		namespace := newNamespace(t)
		const header = "# Kubernetes-managed hosts file."
		made := pod("managed", "cat /etc/hosts")
		other := *made.Spec.Containers[0].DeepCopy()
		other.Name, other.Command = "own", []string{"/bin/sh", "-c", "cat /etc/hosts"}
		other.VolumeMounts = []corev1.VolumeMount{{Name: "hosts", MountPath: "/etc/hosts"}}
		made.Spec.Containers = append(made.Spec.Containers, other)
		made.Spec.Volumes = []corev1.Volume{{Name: "hosts", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/etc/hosts"}}}}
		contains(t, output(t, namespace, made), header)
		if own := logs(t, namespace, "managed", "own"); strings.Contains(own, header) {
			t.Errorf("a container with its own hosts file reads %q", own)
		}
		host := pod("host", "cat /etc/hosts")
		host.Spec.HostNetwork = true
		if printed := output(t, namespace, host); strings.Contains(printed, header+"\n") {
			t.Errorf("a pod in the host's network reads %q", printed)
		}
	},
}

var securityContexts = map[string]func(*testing.T){
	"When creating a container with runAsUser should run the container with uid 65534 [LinuxOnly] [NodeConformance]": func(t *testing.T) {
		made := pod("user", "id -u")
		made.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsUser: new(int64(65534))}
		if printed := output(t, newNamespace(t), made); printed != "65534\n" {
			t.Errorf("the user is %q", printed)
		}
	},
	"When creating a pod with privileged should run the container as unprivileged when false [LinuxOnly] [NodeConformance]": func(t *testing.T) {
		made := pod("unprivileged", "ip link add link0 type veth 2>&1 || true")
		made.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: new(false)}
		contains(t, output(t, newNamespace(t), made), "Operation not permitted")
	},
	"When creating a pod with readOnlyRootFilesystem should run the container with writable rootfs when readOnlyRootFilesystem=false [NodeConformance]": func(t *testing.T) {
		made := pod("writable", "echo checking > /tmp/file && cat /tmp/file")
		made.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{ReadOnlyRootFilesystem: new(false)}
		if printed := output(t, newNamespace(t), made); printed != "checking\n" {
			t.Errorf("the file reads %q", printed)
		}
	},
	"when creating containers with AllowPrivilegeEscalation should not allow privilege escalation when false [LinuxOnly] [NodeConformance]": func(t *testing.T) {
		made := pod("confined", "grep NoNewPrivs /proc/self/status; id -u")
		made.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsUser: new(int64(1000)), AllowPrivilegeEscalation: new(false)}
		if printed := output(t, newNamespace(t), made); printed != "NoNewPrivs:\t1\n1000\n" {
			t.Errorf("the pod prints %q", printed)
		}
	},
	"should support container.SecurityContext.RunAsUser And container.SecurityContext.RunAsGroup [LinuxOnly]": func(t *testing.T) {
		made := pod("ids", "id -u; id -g")
		made.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsUser: new(int64(1001)), RunAsGroup: new(int64(2002))}
		if printed := output(t, newNamespace(t), made); printed != "1001\n2002\n" {
			t.Errorf("the ids are %q", printed)
		}
	},
	"should support pod.Spec.SecurityContext.RunAsUser And pod.Spec.SecurityContext.RunAsGroup [LinuxOnly]": func(t *testing.T) {
		made := pod("ids", "id -u; id -g")
		made.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: new(int64(1001)), RunAsGroup: new(int64(2002))}
		if printed := output(t, newNamespace(t), made); printed != "1001\n2002\n" {
			t.Errorf("the ids are %q", printed)
		}
	},
}

var podSysctls = map[string]func(*testing.T){
	"should support sysctls [MinimumKubeletVersion:1.21] [Environment:NotInUserNS]": func(t *testing.T) {
		made := pod("sysctls", "cat /proc/sys/kernel/shm_rmid_forced")
		made.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "kernel.shm_rmid_forced", Value: "1"}}}
		if printed := output(t, newNamespace(t), made); printed != "1\n" {
			t.Errorf("the parameter reads %q", printed)
		}
	},
}

// handler is the runtime handler that nodes have under no name.
func runtimeClass(t *testing.T, overhead *nodev1.Overhead) string {
	t.Helper()
	name := unique("class")
	got(client.NodeV1().RuntimeClasses().Create(t.Context(), &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Handler: "runc", Overhead: overhead}, metav1.CreateOptions{}))(t)
	deleteAfter(t, name, func(ctx context.Context) error {
		return client.NodeV1().RuntimeClasses().Delete(ctx, name, metav1.DeleteOptions{})
	})
	return name
}

var scheduledRuntimeClasses = map[string]func(*testing.T){
	"should schedule a Pod requesting a RuntimeClass without PodOverhead [NodeConformance]": func(t *testing.T) { schedulesClass(t, nil) },
	"should schedule a Pod requesting a RuntimeClass and initialize its Overhead [NodeConformance]": func(t *testing.T) {
		schedulesClass(t, &nodev1.Overhead{PodFixed: hard("cpu", "10m", "memory", "1Mi")})
	},
}

func schedulesClass(t *testing.T, overhead *nodev1.Overhead) {
	t.Helper()
	namespace := newNamespace(t)
	made := pod("classed", "sleep 3600")
	made.Spec.RuntimeClassName = new(runtimeClass(t, overhead))
	created := create(t, namespace, made)
	if overhead == nil && created.Spec.Overhead != nil || overhead != nil && !holds(created.Spec.Overhead, overhead.PodFixed) {
		t.Errorf("the overhead is %v", created.Spec.Overhead)
	}
	awaitPod(t, namespace, "classed", "scheduled", func(pod *corev1.Pod) bool { return pod.Spec.NodeName != "" })
}
