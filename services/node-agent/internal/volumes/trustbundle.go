package volumes

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// TrustBundles tells of the cluster's trust anchors.
type TrustBundles interface {
	TrustBundles(ctx context.Context) ([]*certificatesv1.ClusterTrustBundle, error)
}

// trustBundleFiles is one file with the certificates of a bundle, or of all bundles of a
// signer that the selector matches, each once. It is empty if there are none and that is
// allowed (KEP-3257).
func trustBundleFiles(ctx context.Context, r *request, source *corev1.ClusterTrustBundleProjection, mode int32) (fileSet, error) {
	wanted, err := bundleFilter(source)
	if err != nil {
		return nil, err
	}
	var all []*certificatesv1.ClusterTrustBundle
	if r.cfg.Bundles != nil {
		if all, err = r.cfg.Bundles.TrustBundles(ctx); err != nil {
			return nil, err
		}
	}
	found := slices.DeleteFunc(slices.Clone(all), func(b *certificatesv1.ClusterTrustBundle) bool { return !wanted(b) })
	if len(found) == 0 && (source.Optional == nil || !*source.Optional) {
		return nil, fmt.Errorf("no cluster trust bundle is %s", describe(source))
	}
	return fileSet{source.Path: file{data: anchors(found), mode: mode, uid: -1}}, nil
}

func bundleFilter(source *corev1.ClusterTrustBundleProjection) (func(*certificatesv1.ClusterTrustBundle) bool, error) {
	if source.Name != nil {
		return func(b *certificatesv1.ClusterTrustBundle) bool { return b.Name == *source.Name }, nil
	}
	// No selector matches nothing, an empty one everything.
	selector, err := metav1.LabelSelectorAsSelector(source.LabelSelector)
	if err != nil {
		return nil, fmt.Errorf("the label selector of a cluster trust bundle: %w", err)
	}
	return func(b *certificatesv1.ClusterTrustBundle) bool {
		return source.SignerName != nil && b.Spec.SignerName == *source.SignerName && selector.Matches(labels.Set(b.Labels))
	}, nil
}

func describe(source *corev1.ClusterTrustBundleProjection) string {
	if source.Name != nil {
		return fmt.Sprintf("named %q", *source.Name)
	}
	signer := ""
	if source.SignerName != nil {
		signer = *source.SignerName
	}
	return fmt.Sprintf("of signer %q with labels %s", signer, metav1.FormatLabelSelector(source.LabelSelector))
}

// anchors are the certificates without what is between them, in the same order each time.
func anchors(bundles []*certificatesv1.ClusterTrustBundle) []byte {
	var list [][]byte
	for _, bundle := range bundles {
		for rest := []byte(bundle.Spec.TrustBundle); ; {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				break
			}
			if block.Type == "CERTIFICATE" {
				list = append(list, pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes}))
			}
		}
	}
	slices.SortFunc(list, bytes.Compare)
	return bytes.Join(slices.CompactFunc(list, bytes.Equal), nil)
}
