package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/internal/testenv"
)

// mountsAt are the mounts at a path or, where it ends with a slash, below it.
func mountsAt(path string) []string {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	var found []string
	for line := range strings.Lines(string(text)) {
		const pointField = 4
		if fields := strings.Fields(line); len(fields) > pointField && (fields[pointField] == path || strings.HasSuffix(path, "/") && strings.HasPrefix(fields[pointField], path)) {
			found = append(found, fields[pointField])
		}
	}
	return found
}

// attachmentsOf are the attachments of a driver's volumes.
func attachmentsOf(ctx context.Context, driver string) ([]storagev1.VolumeAttachment, error) {
	list, err := cluster.Client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var of []storagev1.VolumeAttachment
	for _, a := range list.Items {
		if a.Spec.Attacher == driver {
			of = append(of, a)
		}
	}
	return of, nil
}

// awaitNothingOf waits until nothing of a driver's volumes is left on the nodes.
func awaitNothingOf(t *testing.T, driver string) {
	t.Helper()
	testenv.Eventually(t, 90*time.Second, "nothing is left of "+driver, func(ctx context.Context) error {
		attached, err := attachmentsOf(ctx, driver)
		if err != nil || len(attached) > 0 {
			return fmt.Errorf("%d attachments, %v", len(attached), err)
		}
		for _, pattern := range []string{"pods/*/volumes/kubernetes.io~csi/*", "plugins/kubernetes.io/csi/" + driver + "/*"} {
			if left, err := filepath.Glob(filepath.Join(cluster.Dir, "nodes", "*", pattern)); err != nil || len(left) > 0 {
				return fmt.Errorf("left are %v, %v", left, err)
			}
		}
		return nil
	})
}

func TestCSIVolumeIsProvisionedAttachedKeptAndExpanded(t *testing.T) {
	const driver = "disks.e2e.example.com"
	d := startDriver(t, driver)
	namespace := newNamespace(t)
	newClaim(t, namespace, "data", driver)
	writer := usesClaim(newPod("writer", "echo kept > /data/file; sleep 3600"), "data")
	writer.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "node-1"}
	mustCreatePod(t, namespace, writer)
	awaitReady(t, namespace, "writer")
	attached, err := attachmentsOf(t.Context(), driver)
	if err != nil || len(attached) != 1 || attached[0].Spec.NodeName != "node-1" || !attached[0].Status.Attached {
		t.Errorf("attached are %+v, %v", attached, err)
	}
	testenv.Eventually(t, 60*time.Second, "the node tells of its volume", func(ctx context.Context) error {
		node, err := cluster.Client.CoreV1().Nodes().Get(ctx, "node-1", metav1.GetOptions{})
		if err == nil && (len(node.Status.VolumesAttached) != 1 || len(node.Status.VolumesInUse) != 1) {
			err = fmt.Errorf("attached are %v, in use %v", node.Status.VolumesAttached, node.Status.VolumesInUse)
		}
		return err
	})
	cluster.MustKubectl(t, "-n", namespace, "delete", "pod", "writer")
	reader := usesClaim(newPod("reader", "sleep 3600"), "data")
	reader.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "node-2"}
	mustCreatePod(t, namespace, reader)
	awaitReady(t, namespace, "reader")
	if text := cluster.MustKubectl(t, "-n", namespace, "exec", "reader", "--", "cat", "/data/file"); text != "kept\n" {
		t.Errorf("the pod on the other node reads %q", text)
	}

	cluster.MustKubectl(t, "-n", namespace, "patch", "pvc", "data", "-p", `{"spec":{"resources":{"requests":{"storage":"200Mi"}}}}`)
	var claim *corev1.PersistentVolumeClaim
	want := resource.MustParse("200Mi")
	testenv.Eventually(t, 90*time.Second, "the claim grows", func(ctx context.Context) error {
		var err error
		claim, err = cluster.Client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, "data", metav1.GetOptions{})
		if err == nil && claim.Status.Capacity.Storage().Cmp(want) != 0 {
			err = fmt.Errorf("it has %s", claim.Status.Capacity.Storage())
		}
		return err
	})
	if got := d.expandedTo(claim.Spec.VolumeName); got != want.Value() {
		t.Errorf("the driver was told to make it %d bytes large", got)
	}
	cluster.MustKubectl(t, "-n", namespace, "delete", "pod/reader", "pvc/data")
	awaitNothingOf(t, driver)
}

func TestCSIEphemeralVolumesGoWithTheirPod(t *testing.T) {
	const driver = "scratch.e2e.example.com"
	startDriver(t, driver)
	namespace := newNamespace(t)
	class := driver
	pod := newPod("scratch", "echo a > /inline/file && echo b > /generic/file && sleep 3600")
	pod.Spec.Volumes = []corev1.Volume{
		{Name: "inline", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: driver}}},
		{Name: "generic", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
			Spec: corev1.PersistentVolumeClaimSpec{
				StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("10Mi")}},
			},
		}}}},
	}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "inline", MountPath: "/inline"}, {Name: "generic", MountPath: "/generic"}}
	mustCreatePod(t, namespace, pod)
	ready := awaitReady(t, namespace, "scratch")
	claim, err := cluster.Client.CoreV1().PersistentVolumeClaims(namespace).Get(t.Context(), "scratch-generic", metav1.GetOptions{})
	if err != nil || !metav1.IsControlledBy(claim, ready) {
		t.Errorf("the claim is %+v, %v", claim, err)
	}
	cluster.MustKubectl(t, "-n", namespace, "delete", "pod", "scratch")
	testenv.Eventually(t, 60*time.Second, "the claim goes with its pod", func(ctx context.Context) error {
		_, err := cluster.Client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, "scratch-generic", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there: %v", err)
	})
	awaitNothingOf(t, driver)
}

func TestKilledAgentMountsNothingTwiceAndLeaksNothing(t *testing.T) {
	const driver = "killed.e2e.example.com"
	startDriver(t, driver)
	namespace := newNamespace(t)
	newClaim(t, namespace, "data", driver)
	pod := usesClaim(newPod("stays", "sleep 3600"), "data")
	pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "node-1"}
	mustCreatePod(t, namespace, pod)
	testenv.Eventually(t, 60*time.Second, "the volume is being mounted", func(context.Context) error {
		if staged, err := filepath.Glob(filepath.Join(cluster.Dir, "nodes", "*", "plugins/kubernetes.io/csi", driver, "*")); err != nil || len(staged) == 0 {
			return fmt.Errorf("nothing is staged, %v", err)
		}
		return nil
	})
	killAgents(t)()
	ready := awaitReady(t, namespace, "stays")
	volumes := filepath.Join(cluster.Dir, "nodes", "node-1", "pods", string(ready.UID), "volumes", "kubernetes.io~csi") + "/"
	if mounted := mountsAt(volumes); len(mounted) != 1 {
		t.Errorf("mounted are %v", mounted)
	}
	await := killAgents(t)
	cluster.MustKubectl(t, "-n", namespace, "delete", "pod", "stays", "--wait=false")
	await()
	testenv.Eventually(t, 90*time.Second, "the pod is gone", func(ctx context.Context) error {
		_, err := cluster.Client.CoreV1().Pods(namespace).Get(ctx, "stays", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there: %v", err)
	})
	awaitNothingOf(t, driver)
	if mounted := mountsAt(volumes); len(mounted) != 0 {
		t.Errorf("mounted are still %v", mounted)
	}
	cluster.MustKubectl(t, "-n", namespace, "delete", "pvc", "data")
}

func TestDriverThatHangsStallsNoOtherPod(t *testing.T) {
	const driver = "hung.e2e.example.com"
	d := startDriver(t, driver)
	release := d.hang()
	defer release()
	namespace := newNamespace(t)
	newClaim(t, namespace, "data", driver)
	onFirst := map[string]string{corev1.LabelHostname: "node-1"}
	waits := usesClaim(newPod("waits", "sleep 3600"), "data")
	waits.Spec.NodeSelector = onFirst
	mustCreatePod(t, namespace, waits)
	testenv.Eventually(t, 60*time.Second, "the volume is being mounted", func(context.Context) error {
		if staged, err := filepath.Glob(filepath.Join(cluster.Dir, "nodes", "*", "plugins/kubernetes.io/csi", driver, "*")); err != nil || len(staged) == 0 {
			return fmt.Errorf("nothing is staged, %v", err)
		}
		return nil
	})
	other := newPod("other", "sleep 3600")
	other.Spec.NodeSelector = onFirst
	mustCreatePod(t, namespace, other)
	awaitReady(t, namespace, "other")
	cluster.MustKubectl(t, "-n", namespace, "delete", "pod", "other")
	if pod, err := cluster.Client.CoreV1().Pods(namespace).Get(t.Context(), "waits", metav1.GetOptions{}); err != nil || pod.Status.Phase != corev1.PodPending {
		t.Errorf("the pod whose volume hangs is %s, %v", pod.Status.Phase, err)
	}
	release()
	awaitReady(t, namespace, "waits")
	cluster.MustKubectl(t, "-n", namespace, "delete", "pod/waits", "pvc/data")
	awaitNothingOf(t, driver)
}
