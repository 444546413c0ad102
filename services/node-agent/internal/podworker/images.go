package podworker

import (
	"context"

	"github.com/sampan-io/sampan/services/node-agent/internal/criconfig"
	"github.com/sampan-io/sampan/services/node-agent/internal/pulling"
	podstatus "github.com/sampan-io/sampan/services/node-agent/internal/status"
)

// pull makes sure of an image that the container needs, and tells in the container's
// status how far it is.
func (s *starter) pull(ctx context.Context, st start, request pulling.Request) (criconfig.Image, error) {
	reason := podstatus.ReasonContainerCreating
	if st.role == initial || st.role == sidecar {
		reason = podstatus.ReasonPodInitializing
	}
	request.Sandbox, request.State = s.config, s.pulls
	request.Report = func(message string) {
		s.finish(func() { s.failures[st.spec.Name] = hold{why: podstatus.Waiting{Reason: reason, Message: message}} })
	}
	return s.cfg.Puller.Ensure(ctx, request)
}

// pullVolumes makes sure of the images that the container mounts as volumes.
func (s *starter) pullVolumes(ctx context.Context, st start) error {
	for i := range s.pod.Spec.Volumes {
		volume := &s.pod.Spec.Volumes[i]
		if volume.Image == nil || s.volumeImages[volume.Name] != "" || !mountsVolume(st.spec, volume.Name) {
			continue
		}
		image, err := s.pull(ctx, st, pulling.Request{Pod: s.pod, Image: volume.Image.Reference, Policy: volume.Image.PullPolicy})
		if err != nil {
			return err
		}
		s.volumeImages[volume.Name] = image.ID
	}
	return nil
}
