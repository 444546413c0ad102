package pulling

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/backoff"
	"github.com/sampan-io/sampan/services/node-agent/internal/criconfig"
	"github.com/sampan-io/sampan/services/node-agent/internal/images"
)

// Reasons why a container waits for its image, upstream's.
const (
	ReasonErrImagePull      = "ErrImagePull"
	ReasonImagePullBackOff  = "ImagePullBackOff"
	ReasonErrImageNeverPull = "ErrImageNeverPull"
	ReasonInvalidImageName  = "InvalidImageName"
	ReasonImageInspectError = "ImageInspectError"
)

// Error is why an image is not on the node.
type Error struct {
	Reason  string
	Message string
	Retry   time.Time // when another try makes sense
}

func (e *Error) Error() string { return e.Reason + ": " + e.Message }

// Service is what pulling needs of the runtime.
type Service interface {
	Image(ctx context.Context, image string) (*runtimeapi.Image, error) // nil when it is not there
	Pull(ctx context.Context, image string, auth *runtimeapi.AuthConfig, sandbox *runtimeapi.PodSandboxConfig) (id string, err error)
}

// Secrets finds a pod's pull secrets.
type Secrets interface {
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
}

// Puller pulls images. All its state is in what it is given for each pod.
type Puller struct {
	Service Service
	Secrets Secrets
	// Event tells the pod's author; warning is false for what is normal.
	Event func(pod *corev1.Pod, container *corev1.Container, warning bool, reason, message string)
}

// State is what of a pod's pulls is remembered between tries.
type State struct {
	backoff backoff.Map
	last    map[string]*Error
}

// NewState has upstream's pauses, from 10 s to 5 min.
func NewState() *State {
	const base, most = 10 * time.Second, 5 * time.Minute
	return &State{backoff: backoff.Map{Base: base, Max: most}, last: map[string]*Error{}}
}

// Ensure returns the container's image, pulled if it must be. The error is an
// *Error.
func (p *Puller) Ensure(ctx context.Context, pod *corev1.Pod, container *corev1.Container, sandbox *runtimeapi.PodSandboxConfig, state *State) (criconfig.Image, error) {
	image := container.Image
	if _, err := images.Normalize(image); err != nil {
		message := fmt.Sprintf("Failed to apply default image tag %q: %v", image, err)
		p.Event(pod, container, true, "InspectFailed", message)
		return criconfig.Image{}, &Error{Reason: ReasonInvalidImageName, Message: message, Retry: time.Now().Add(state.backoff.Max)}
	}
	name := withTag(image)
	found, err := p.Service.Image(ctx, name)
	if err != nil {
		message := fmt.Sprintf("Failed to inspect image %q: %v", image, status.Convert(err).Message())
		p.Event(pod, container, true, "InspectFailed", message)
		return criconfig.Image{}, &Error{Reason: ReasonImageInspectError, Message: message, Retry: time.Now().Add(state.backoff.Base)}
	}
	if found != nil && !mustPull(container) {
		p.Event(pod, container, false, "Pulled", fmt.Sprintf("Container image %q already present on machine and can be accessed by the pod", image))
		return describe(found), nil
	}
	if container.ImagePullPolicy == corev1.PullNever {
		message := fmt.Sprintf("Container image %q is not present with pull policy of Never", image)
		p.Event(pod, container, true, ReasonErrImageNeverPull, message)
		return criconfig.Image{}, &Error{Reason: ReasonErrImageNeverPull, Message: message, Retry: time.Now().Add(state.backoff.Base)}
	}
	return p.pull(ctx, pod, container, name, sandbox, state)
}

func mustPull(container *corev1.Container) bool {
	return container.ImagePullPolicy == corev1.PullAlways
}

func withTag(image string) string {
	if strings.Contains(image, "@") || strings.LastIndexByte(image, ':') > strings.LastIndexByte(image, '/') {
		return image
	}
	return image + ":latest"
}

func (p *Puller) pull(ctx context.Context, pod *corev1.Pod, container *corev1.Container, name string, sandbox *runtimeapi.PodSandboxConfig, state *State) (criconfig.Image, error) {
	image := container.Image
	if last := state.last[image]; last != nil && time.Now().Before(last.Retry) {
		message := fmt.Sprintf("Back-off pulling image %q: %s", image, last.Error())
		p.Event(pod, container, false, "BackOff", fmt.Sprintf("Back-off pulling image %q", image))
		return criconfig.Image{}, &Error{Reason: ReasonImagePullBackOff, Message: message, Retry: last.Retry}
	}
	p.Event(pod, container, false, "Pulling", fmt.Sprintf("Pulling image %q", image))
	start := time.Now()
	err := p.try(ctx, pod, name, sandbox)
	if err == nil {
		var found *runtimeapi.Image
		if found, err = p.Service.Image(ctx, name); err == nil && found == nil {
			err = errors.New("the image is not there after it was pulled")
		}
		if err == nil {
			delete(state.last, image)
			state.backoff.Reset(image)
			took := time.Since(start).Truncate(time.Millisecond)
			p.Event(pod, container, false, "Pulled",
				fmt.Sprintf("Successfully pulled image %q in %v (%v including waiting). Image size: %v bytes.", image, took, took, found.GetSize()))
			return describe(found), nil
		}
	}
	if ctx.Err() != nil {
		return criconfig.Image{}, ctx.Err()
	}
	message := fmt.Sprintf("failed to pull image %q: %s", image, status.Convert(err).Message())
	p.Event(pod, container, true, "Failed", "F"+message[1:])
	state.backoff.Next(image, time.Now())
	failure := &Error{Reason: ReasonErrImagePull, Message: message, Retry: time.Now().Add(state.backoff.Pause(image, time.Now()))}
	state.last[image] = failure
	return criconfig.Image{}, failure
}

// try pulls with each of the credentials that may be meant, or with none.
func (p *Puller) try(ctx context.Context, pod *corev1.Pod, name string, sandbox *runtimeapi.PodSandboxConfig) error {
	var secrets []*corev1.Secret
	for _, ref := range pod.Spec.ImagePullSecrets {
		// A secret that is missing may not be needed; the pull will tell.
		if secret, err := p.Secrets.Secret(ctx, pod.Namespace, ref.Name); err == nil {
			secrets = append(secrets, secret)
		}
	}
	ring, badSecret := newKeyring(secrets)
	auths := ring.lookup(name)
	if len(auths) == 0 {
		_, err := p.Service.Pull(ctx, name, nil, sandbox)
		if err != nil && badSecret != nil {
			return fmt.Errorf("%w (%w)", err, badSecret)
		}
		return err
	}
	var errs []error
	for _, auth := range auths {
		_, err := p.Service.Pull(ctx, name, auth, sandbox)
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func describe(image *runtimeapi.Image) criconfig.Image {
	out := criconfig.Image{ID: image.GetId(), Username: image.GetUsername()}
	if uid := image.GetUid(); uid != nil {
		value := uid.GetValue()
		out.UID = &value
	}
	return out
}
