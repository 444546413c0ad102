package objects

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Claim is the persistent volume claim of that name, as it is now.
func (s *Store) Claim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	return s.client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
}

// Volume is the persistent volume of that name, as it is now.
func (s *Store) Volume(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
	return s.client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
}
