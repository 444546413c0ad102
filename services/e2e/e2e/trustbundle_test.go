package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/internal/pki"
	"github.com/sampan-io/sampan/services/internal/testenv"
)

func TestTrustBundlesReachPodsAndFollowChanges(t *testing.T) {
	namespace := newNamespace(t)
	anchor := func() string {
		authority, err := pki.NewAuthority("test", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return string(authority.PEM())
	}
	one, two := anchor(), anchor()
	bundles := cluster.Client.CertificatesV1().ClusterTrustBundles()
	bundle, err := bundles.Create(t.Context(), &certificatesv1.ClusterTrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: namespace}, Spec: certificatesv1.ClusterTrustBundleSpec{TrustBundle: one},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = cluster.Kubectl("delete", "clustertrustbundle", namespace) })
	pod := newPod("trusts", "exec sleep 3600")
	pod.Spec.Volumes = []corev1.Volume{{Name: "trust", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{Name: &namespace, Path: "ca.pem"}},
		{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{SignerName: ptr.To("example.com/none"), LabelSelector: &metav1.LabelSelector{}, Optional: ptr.To(true), Path: "none.pem"}},
	}}}}}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "trust", MountPath: "/trust"}}
	mustCreatePod(t, namespace, pod)
	awaitReady(t, namespace, "trusts")
	read := func(path string) string {
		return strings.TrimSpace(cluster.MustKubectl(t, "-n", namespace, "exec", "trusts", "--", "cat", path))
	}
	if got := read("/trust/ca.pem"); got != strings.TrimSpace(one) {
		t.Errorf("the pod trusts\n%s", got)
	}
	if got := read("/trust/none.pem"); got != "" {
		t.Errorf("of a signer without bundles it trusts\n%s", got)
	}
	bundle.Spec.TrustBundle = two
	if _, err := bundles.Update(t.Context(), bundle, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 30*time.Second, "the pod to trust the other", func(context.Context) error {
		if got := read("/trust/ca.pem"); got != strings.TrimSpace(two) {
			return fmt.Errorf("it trusts\n%s", got)
		}
		return nil
	})
}
