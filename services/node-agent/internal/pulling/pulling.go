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
	Plugins *Plugins // nil for none
	// Event tells the pod's author; warning is false for what is normal.
	Event func(pod *corev1.Pod, container *corev1.Container, warning bool, reason, message string)
	// Progress is how many bytes of how many a pull has read; nil, or false, when it is
	// not known.
	Progress func(image string) (done, total int64, ok bool)
}

// Request is for one image.
type Request struct {
	Pod       *corev1.Pod
	Container *corev1.Container // that it is for; nil for a volume's
	Image     string
	Policy    corev1.PullPolicy
	Sandbox   *runtimeapi.PodSandboxConfig
	State     *State // of the pod
	// Report is called now and then with how far a long pull is; it may be nil.
	Report func(message string)
}

// ForContainer asks for the container's image.
func ForContainer(pod *corev1.Pod, container *corev1.Container) Request {
	return Request{Pod: pod, Container: container, Image: container.Image, Policy: container.ImagePullPolicy}
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

// Ensure returns the image, pulled if it must be. The error is an *Error.
func (p *Puller) Ensure(ctx context.Context, r Request) (criconfig.Image, error) {
	event := func(warning bool, reason, message string) { p.Event(r.Pod, r.Container, warning, reason, message) }
	if _, err := images.Normalize(r.Image); err != nil {
		message := fmt.Sprintf("Failed to apply default image tag %q: %v", r.Image, err)
		event(true, "InspectFailed", message)
		return criconfig.Image{}, &Error{Reason: ReasonInvalidImageName, Message: message, Retry: time.Now().Add(r.State.backoff.Max)}
	}
	name := withTag(r.Image)
	found, err := p.Service.Image(ctx, name)
	if err != nil {
		message := fmt.Sprintf("Failed to inspect image %q: %v", r.Image, status.Convert(err).Message())
		event(true, "InspectFailed", message)
		return criconfig.Image{}, &Error{Reason: ReasonImageInspectError, Message: message, Retry: time.Now().Add(r.State.backoff.Base)}
	}
	if found != nil && r.Policy != corev1.PullAlways {
		event(false, "Pulled", fmt.Sprintf("Container image %q already present on machine and can be accessed by the pod", r.Image))
		return describe(found), nil
	}
	if r.Policy == corev1.PullNever {
		message := fmt.Sprintf("Container image %q is not present with pull policy of Never", r.Image)
		event(true, ReasonErrImageNeverPull, message)
		return criconfig.Image{}, &Error{Reason: ReasonErrImageNeverPull, Message: message, Retry: time.Now().Add(r.State.backoff.Base)}
	}
	return p.pull(ctx, r, name)
}

func withTag(image string) string {
	if strings.Contains(image, "@") || strings.LastIndexByte(image, ':') > strings.LastIndexByte(image, '/') {
		return image
	}
	return image + ":latest"
}

func (p *Puller) pull(ctx context.Context, r Request, name string) (criconfig.Image, error) {
	state := r.State
	if last := state.last[r.Image]; last != nil && time.Now().Before(last.Retry) {
		message := fmt.Sprintf("Back-off pulling image %q: %s", r.Image, last.Error())
		p.Event(r.Pod, r.Container, false, "BackOff", fmt.Sprintf("Back-off pulling image %q", r.Image))
		return criconfig.Image{}, &Error{Reason: ReasonImagePullBackOff, Message: message, Retry: last.Retry}
	}
	p.Event(r.Pod, r.Container, false, "Pulling", fmt.Sprintf("Pulling image %q", r.Image))
	start := time.Now()
	found, err := p.fetch(ctx, r, name)
	if err == nil {
		delete(state.last, r.Image)
		state.backoff.Reset(r.Image)
		took := time.Since(start).Truncate(time.Millisecond)
		p.Event(r.Pod, r.Container, false, "Pulled",
			fmt.Sprintf("Successfully pulled image %q in %v (%v including waiting). Image size: %v bytes.", r.Image, took, took, found.GetSize()))
		return describe(found), nil
	}
	if ctx.Err() != nil {
		return criconfig.Image{}, ctx.Err()
	}
	message := fmt.Sprintf("failed to pull image %q: %s", r.Image, status.Convert(err).Message())
	p.Event(r.Pod, r.Container, true, "Failed", "F"+message[1:])
	state.backoff.Next(r.Image, time.Now())
	failure := &Error{Reason: ReasonErrImagePull, Message: message, Retry: time.Now().Add(state.backoff.Pause(r.Image, time.Now()))}
	state.last[r.Image] = failure
	return criconfig.Image{}, failure
}

func (p *Puller) fetch(ctx context.Context, r Request, name string) (*runtimeapi.Image, error) {
	stop := p.follow(r, name)
	err := p.try(ctx, r, name)
	stop()
	if err != nil {
		return nil, err
	}
	found, err := p.Service.Image(ctx, name)
	if err == nil && found == nil {
		err = errors.New("the image is not there after it was pulled")
	}
	return found, err
}

// try pulls with each of the credentials that may be meant, or with none.
func (p *Puller) try(ctx context.Context, r Request, name string) error {
	var secrets []*corev1.Secret
	for _, ref := range r.Pod.Spec.ImagePullSecrets {
		// A secret that is missing may not be needed; the pull will tell.
		if secret, err := p.Secrets.Secret(ctx, r.Pod.Namespace, ref.Name); err == nil {
			secrets = append(secrets, secret)
		}
	}
	ring, badSecret := newKeyring(secrets)
	asked, badPlugin := p.Plugins.keyring(ctx, name, r.Pod)
	auths := append(ring.lookup(name), asked.lookup(name)...)
	if len(auths) == 0 {
		auths = []*runtimeapi.AuthConfig{nil}
	}
	var errs []error
	for _, auth := range auths {
		_, err := p.Service.Pull(ctx, name, auth, r.Sandbox)
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	err := errors.Join(errs...)
	if without := errors.Join(badSecret, badPlugin); without != nil {
		return fmt.Errorf("%w (%w)", err, without)
	}
	return err
}

func describe(image *runtimeapi.Image) criconfig.Image {
	out := criconfig.Image{ID: image.GetId(), Username: image.GetUsername()}
	if uid := image.GetUid(); uid != nil {
		value := uid.GetValue()
		out.UID = &value
	}
	return out
}

// FullName is the name that the runtime lists an image by; one that is no name stays as
// it is.
func FullName(image string) string {
	if name, err := images.Normalize(withTag(image)); err == nil {
		return name
	}
	return image
}
