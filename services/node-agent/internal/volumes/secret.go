package volumes

import (
	"context"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// secretKind keeps secrets in memory, never on the disk.
type secretKind struct{}

func (secretKind) name() string               { return "kubernetes.io~secret" }
func (secretKind) owns(v *corev1.Volume) bool { return v.Secret != nil }

func (secretKind) setUp(ctx context.Context, r *request) (result, error) {
	source := r.volume.Secret
	files, err := secretFiles(ctx, r, source.SecretName, source.Items, source.Optional, mode(source.DefaultMode))
	if err != nil {
		return result{}, err
	}
	if err := mountMemory(filepath.Clean(r.dir), 0); err != nil {
		return result{}, err
	}
	return r.write(files)
}

func secretFiles(ctx context.Context, r *request, name string, items []corev1.KeyToPath, optional *bool, mode int32) (fileSet, error) {
	optionally := optional != nil && *optional
	object, err := r.cfg.Objects.Secret(ctx, r.pod.Namespace, name)
	if apierrors.IsNotFound(err) && optionally {
		return fileSet{}, nil
	}
	if err != nil {
		return nil, err
	}
	return project(object.Data, items, optionally, mode, "secret")
}
