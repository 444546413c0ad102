package volumes

import (
	"context"

	corev1 "k8s.io/api/core/v1"
)

// imageKind is made by the runtime for each container that mounts it; here is nothing
// to do but to name the image.
type imageKind struct{}

func (imageKind) name() string { return "kubernetes.io~image" }

func (imageKind) owns(volume *corev1.Volume) bool { return volume.Image != nil }

func (imageKind) setUp(_ context.Context, r *request) (result, error) {
	return result{image: r.volume.Image.Reference, readOnly: true}, nil
}
