package plugins

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
)

// alwaysPullImages has every image pulled with the pod's own credentials, so that
// no pod runs a private image that another one left on the node.
type alwaysPullImages struct{ plugin }

func newAlwaysPullImages(Config) admission.Plugin {
	return &alwaysPullImages{plugin{"AlwaysPullImages", []admission.Operation{admission.Create, admission.Update}}}
}

// Admit implements admission.Mutator.
func (p *alwaysPullImages) Admit(_ context.Context, a *admission.Attributes) error {
	pod := p.pod(a)
	if pod == nil {
		return nil
	}
	for i := range pod.Spec.InitContainers {
		pod.Spec.InitContainers[i].ImagePullPolicy = corev1.PullAlways
	}
	for i := range pod.Spec.Containers {
		pod.Spec.Containers[i].ImagePullPolicy = corev1.PullAlways
	}
	for i := range pod.Spec.EphemeralContainers {
		pod.Spec.EphemeralContainers[i].ImagePullPolicy = corev1.PullAlways
	}
	for i := range pod.Spec.Volumes {
		if image := pod.Spec.Volumes[i].Image; image != nil {
			image.PullPolicy = corev1.PullAlways
		}
	}
	return nil
}

// Validate implements admission.Validator, for a later mutator may have changed the
// policy.
func (p *alwaysPullImages) Validate(_ context.Context, a *admission.Attributes) error {
	pod := p.pod(a)
	if pod == nil {
		return nil
	}
	for _, container := range containersOf(pod) {
		if container.ImagePullPolicy != corev1.PullAlways {
			return fmt.Errorf("container %s: imagePullPolicy must be Always, not %q", container.Name, container.ImagePullPolicy)
		}
	}
	return nil
}

// pod is the pod whose images may be new.
func (p *alwaysPullImages) pod(a *admission.Attributes) *corev1.Pod {
	if a.Resource.GroupResource() != corev1.Resource("pods") || a.Subresource != "" && a.Subresource != "ephemeralcontainers" {
		return nil
	}
	pod, _ := a.Object.(*corev1.Pod)
	return pod
}
