package volumes

import (
	"context"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

type bundles []*certificatesv1.ClusterTrustBundle

func (b bundles) TrustBundles(context.Context) ([]*certificatesv1.ClusterTrustBundle, error) {
	return b, nil
}

// anchor is a certificate as far as its envelope goes.
func anchor(text string) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(text)}))
}

func bundle(name, signer string, labels map[string]string, anchors ...string) *certificatesv1.ClusterTrustBundle {
	return &certificatesv1.ClusterTrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: "# said of it\n" + strings.Join(anchors, "between\n")},
	}
}

func TestTrustBundlesAreProjected(t *testing.T) {
	requireRoot(t)
	signer, live := ptr.To("example.com/ca"), map[string]string{"live": "yes"}
	all := bundles{
		bundle("alone", "", nil, anchor("a"), anchor("b")),
		bundle("example.com:ca:1", *signer, live, anchor("b"), anchor("c")),
		bundle("example.com:ca:2", *signer, nil, anchor("c"), anchor("d")),
		bundle("example.com:other:1", "example.com/other", live, anchor("e")),
	}
	for _, c := range []struct {
		name   string
		source corev1.ClusterTrustBundleProjection
		want   string // the anchors
		err    string
	}{
		{"by name", corev1.ClusterTrustBundleProjection{Name: ptr.To("alone")}, "a b", ""},
		{"by signer and labels", corev1.ClusterTrustBundleProjection{SignerName: signer, LabelSelector: &metav1.LabelSelector{MatchLabels: live}}, "b c", ""},
		{"all of a signer, each once", corev1.ClusterTrustBundleProjection{SignerName: signer, LabelSelector: &metav1.LabelSelector{}}, "b c d", ""},
		{"no selector selects none", corev1.ClusterTrustBundleProjection{SignerName: signer}, "", `no cluster trust bundle is of signer "example.com/ca" with labels <none>`},
		{"one that is not there", corev1.ClusterTrustBundleProjection{Name: ptr.To("gone")}, "", `no cluster trust bundle is named "gone"`},
		{"and need not be", corev1.ClusterTrustBundleProjection{Name: ptr.To("gone"), Optional: ptr.To(true)}, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			failure := make(chan error, 1)
			m := newManager(t, &fakeObjects{}, func(_ string, err error) {
				select {
				case failure <- err:
				default:
				}
				cancel() // else it is tried again for as long as the pod is there
			})
			m.cfg.Bundles = all
			c.source.Path = "ca.pem"
			pod := podWith(corev1.Volume{Name: "trust", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{ClusterTrustBundle: &c.source}}}}})
			volumes, err := m.Mount(ctx, pod)
			defer func() { _ = m.Remove(context.Background(), pod.UID) }()
			if c.err != "" {
				if err == nil {
					t.Fatal("it was mounted")
				}
				if err := <-failure; !strings.Contains(err.Error(), c.err) {
					t.Errorf("error %v, want %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(filepath.Join(volumes["trust"].HostPath, "ca.pem"))
			if err != nil {
				t.Fatal(err)
			}
			want := ""
			for _, text := range strings.Fields(c.want) {
				want += anchor(text)
			}
			if string(got) != want {
				t.Errorf("the file has\n%s\nwant\n%s", got, want)
			}
		})
	}
}
