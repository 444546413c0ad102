package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/internal/testenv"
)

// newPersistentVolume is a volume of a class, a gigabyte large, deleted at the
// test's end.
func newPersistentVolume(t *testing.T, name, class string, source corev1.PersistentVolumeSource, node string) {
	t.Helper()
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			StorageClassName: class, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain, PersistentVolumeSource: source,
		},
	}
	if node != "" {
		volume.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
		}}}}
	}
	if _, err := cluster.Client.CoreV1().PersistentVolumes().Create(t.Context(), volume, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Client.CoreV1().PersistentVolumes().Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

func newClaim(t *testing.T, namespace, name, class string) {
	t.Helper()
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("100Mi")}},
		},
	}
	if _, err := cluster.Client.CoreV1().PersistentVolumeClaims(namespace).Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func usesClaim(pod *corev1.Pod, claim string) *corev1.Pod {
	pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	return pod
}

func TestHostPathVolumeKeepsDataFromPodToPod(t *testing.T) {
	namespace := newNamespace(t)
	folder := t.TempDir() // the nodes share the host's files
	newPersistentVolume(t, namespace, "manual", corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: folder}}, "")
	newClaim(t, namespace, "data", "manual")
	mustCreatePod(t, namespace, usesClaim(newPod("writer", "echo kept > /data/file; sleep 3600"), "data"))
	awaitReady(t, namespace, "writer")
	cluster.MustKubectl(t, "-n", namespace, "delete", "pod", "writer")
	mustCreatePod(t, namespace, usesClaim(newPod("reader", "sleep 3600"), "data"))
	awaitReady(t, namespace, "reader")
	if text := cluster.MustKubectl(t, "-n", namespace, "exec", "reader", "--", "cat", "/data/file"); text != "kept\n" {
		t.Errorf("the next pod reads %q", text)
	}
	// A claim in use is protected; then its volume is released.
	cluster.MustKubectl(t, "-n", namespace, "delete", "pvc", "data", "--wait=false")
	if out := cluster.MustKubectl(t, "-n", namespace, "get", "pvc", "data", "-o", "jsonpath={.metadata.deletionTimestamp}"); out == "" {
		t.Error("the claim is gone under its pod, or not being deleted")
	}
	cluster.MustKubectl(t, "-n", namespace, "delete", "pod", "reader")
	awaitVolume(t, namespace, corev1.VolumeReleased)
}

func awaitVolume(t *testing.T, name string, phase corev1.PersistentVolumePhase) {
	t.Helper()
	testenv.Eventually(t, 30*time.Second, "volume "+name+" is "+string(phase), func(ctx context.Context) error {
		volume, err := cluster.Client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
		if err == nil && volume.Status.Phase != phase {
			err = fmt.Errorf("it is %s", volume.Status.Phase)
		}
		return err
	})
}

func TestPodGoesToItsLocalVolume(t *testing.T) {
	namespace := newNamespace(t)
	late := storagev1.VolumeBindingWaitForFirstConsumer
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: namespace}, Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: &late}
	if _, err := cluster.Client.StorageV1().StorageClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cluster.Client.StorageV1().StorageClasses().Delete(context.WithoutCancel(t.Context()), namespace, metav1.DeleteOptions{})
	})
	newClaim(t, namespace, "data", namespace)
	pod := usesClaim(newPod("local", "echo here > /data/file; sleep 3600"), "data")
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: ptr.To(int64(1000)), FSGroup: ptr.To(int64(2000))}
	mustCreatePod(t, namespace, pod)
	testenv.Eventually(t, 30*time.Second, "the pod is told that there is no volume", func(ctx context.Context) error {
		out, err := cluster.Kubectl("-n", namespace, "get", "pod", "local", "-o", "jsonpath={.status.conditions[0].message}")
		if err == nil && !strings.Contains(out, "didn't find available persistent volumes to bind") {
			err = fmt.Errorf("its condition says %q", out)
		}
		return err
	})
	newPersistentVolume(t, namespace, namespace, corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: t.TempDir()}}, "node-2")
	awaitReady(t, namespace, "local")
	if node := cluster.MustKubectl(t, "-n", namespace, "get", "pod", "local", "-o", "jsonpath={.spec.nodeName}"); node != "node-2" {
		t.Errorf("the pod is on %s, its volume on node-2", node)
	}
	if text := cluster.MustKubectl(t, "-n", namespace, "exec", "local", "--", "stat", "-c", "%g", "/data/file"); text != "2000\n" {
		t.Errorf("the file's group is %q", text)
	}
}
