package podworker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/cri"
	"github.com/sampan-io/sampan/services/node-agent/internal/criconfig"
	"github.com/sampan-io/sampan/services/node-agent/internal/env"
	"github.com/sampan-io/sampan/services/node-agent/internal/lifecycle"
	"github.com/sampan-io/sampan/services/node-agent/internal/pulling"
	podstatus "github.com/sampan-io/sampan/services/node-agent/internal/status"
	"github.com/sampan-io/sampan/services/node-agent/internal/volumes"
)

// starter does what a plan says has to be started. It runs beside the worker and
// works on copies.
type starter struct {
	*worker
	pod     *corev1.Pod
	plan    *plan
	runtime cri.Pod
	grace   int64 // seconds that a container gets whose hook fails

	sandbox string
	config  *runtimeapi.PodSandboxConfig
	podIPs  []string
	mounted map[string]volumes.Mounted
	failed  map[string]hold
	resized map[string]bool // containers that start anew for other resources
	// volumeImages are the ids of images that are mounted, by the volume's name.
	volumeImages map[string]string
}

func (w *worker) startJob(ctx context.Context, pod *corev1.Pod, p *plan) {
	ctx, cancel := context.WithCancel(ctx)
	w.job = &job{began: time.Now(), starts: map[string]bool{}, cancel: cancel}
	for _, st := range p.starts {
		w.job.starts[st.spec.Name] = true
	}
	s := &starter{worker: w, pod: pod, plan: p, runtime: w.runtime, grace: w.graceOf(pod, false), failed: map[string]hold{}, resized: map[string]bool{}, volumeImages: map[string]string{}}
	for _, st := range p.starts {
		s.resized[st.spec.Name] = w.forResize(st.spec.Name)
	}
	w.running.Go(func() {
		defer cancel()
		err := s.run(ctx)
		cancelled := ctx.Err() != nil
		w.finish(func() {
			w.job = nil
			for _, st := range p.starts {
				delete(w.failures, st.spec.Name)
			}
			if cancelled {
				return
			}
			for name, failure := range s.failed {
				w.failures[name] = failure
			}
			if err != nil {
				w.cfg.Log.Warn("Starting a pod", "pod", name(pod), "err", err)
				w.backOff()
				return
			}
			w.pause, w.retryAt = 0, time.Time{}
		})
	})
}

func (s *starter) run(ctx context.Context) error {
	if err := s.cfg.Cgroups.EnsurePod(s.pod); err != nil {
		return err
	}
	for _, c := range s.plan.discard {
		if _, err := s.cfg.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: c.GetId()}); err != nil {
			return fmt.Errorf("removing container %s: %w", c.GetId(), err)
		}
	}
	var err error
	if s.config, err = s.cfg.Node.Sandbox(s.pod, s.plan.attempt); err != nil {
		return err
	}
	// The volumes do not need the sandbox, nor the sandbox the volumes.
	var volumesErr, sandboxErr error
	var group sync.WaitGroup
	group.Go(func() { s.mounted, volumesErr = s.cfg.Volumes.Mount(ctx, s.pod) })
	sandboxErr = s.ensureSandbox(ctx)
	group.Wait()
	if err := errors.Join(sandboxErr, volumesErr); err != nil {
		return err
	}
	for _, st := range s.plan.starts {
		failure := s.start(ctx, st)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if failure != nil {
			s.failed[st.spec.Name] = *failure
			if st.role == initial || st.role == sidecar {
				break
			}
		}
	}
	s.removeOld(ctx)
	return nil
}

// ensureSandbox makes the sandbox or reads the addresses of the one there is.
func (s *starter) ensureSandbox(ctx context.Context) error {
	if !s.plan.newSandbox {
		s.sandbox = s.plan.sandboxID
		s.podIPs = podstatus.PodIPs(s.pod, &s.runtime, s.cfg.Node.HostIPs)
		s.config.Metadata.Attempt = s.runtime.Sandbox().GetMetadata().GetAttempt()
		return nil
	}
	if len(s.runtime.Sandboxes) > 0 {
		s.cfg.Events.Event(s.pod, nil, false, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
	}
	for _, old := range s.runtime.Sandboxes {
		if err := s.stopSandbox(ctx, old.GetId()); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(s.config.GetLogDirectory(), 0o755); err != nil {
		return fmt.Errorf("making log directory: %w", err)
	}
	handler, err := s.handler(ctx)
	if err == nil {
		err = s.runSandbox(ctx, handler)
	}
	if err != nil && ctx.Err() == nil {
		s.cfg.Events.Event(s.pod, nil, true, "FailedCreatePodSandBox", "Failed to create pod sandbox: "+errorText(err))
	}
	return err
}

func (s *starter) handler(ctx context.Context) (string, error) {
	if s.pod.Spec.RuntimeClassName == nil || *s.pod.Spec.RuntimeClassName == "" {
		return "", nil
	}
	return s.cfg.Handler(ctx, *s.pod.Spec.RuntimeClassName)
}

func (s *starter) runSandbox(ctx context.Context, handler string) error {
	callCtx, cancel := context.WithTimeout(ctx, 2*s.cfg.RuntimeTimeout)
	defer cancel()
	made, err := s.cfg.Runtime.RunPodSandbox(callCtx, &runtimeapi.RunPodSandboxRequest{Config: s.config, RuntimeHandler: handler})
	if err != nil {
		return err
	}
	s.sandbox = made.GetPodSandboxId()
	if s.pod.Spec.HostNetwork {
		s.podIPs = s.cfg.Node.HostIPs
		return nil
	}
	now, err := s.cfg.Runtime.PodSandboxStatus(callCtx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: s.sandbox})
	if err != nil {
		return fmt.Errorf("reading status of sandbox %s: %w", s.sandbox, err)
	}
	state := cri.Pod{Sandboxes: []*runtimeapi.PodSandboxStatus{now.GetStatus()}}
	s.podIPs = podstatus.PodIPs(s.pod, &state, s.cfg.Node.HostIPs)
	return nil
}

func errorText(err error) string { return status.Convert(err).Message() }

// Reasons why containers do not start, upstream's.
const (
	reasonConfig    = "CreateContainerConfigError"
	reasonCreate    = "CreateContainerError"
	reasonRun       = "RunContainerError"
	reasonPostStart = "PostStartHookError"
)

// retryStart is when a container that could not be made is tried again, unless
// something that it uses changes before.
const retryStart = 10 * time.Second

func (s *starter) fail(ctx context.Context, st start, reason string, err error) *hold {
	text := errorText(err)
	if ctx.Err() == nil { // else it was only told to give up
		s.cfg.Events.Event(s.pod, st.spec, true, "Failed", "Error: "+text)
	}
	return &hold{until: time.Now().Add(retryStart), why: podstatus.Waiting{Reason: reason, Message: text}}
}

// start brings one container up. A nil result is success.
func (s *starter) start(ctx context.Context, st start) *hold {
	image, err := s.pull(ctx, st, pulling.ForContainer(s.pod, st.spec))
	if err == nil {
		err = s.pullVolumes(ctx, st)
	}
	var pullErr *pulling.Error
	switch {
	case errors.As(err, &pullErr):
		return s.failPull(st, pullErr)
	case err != nil:
		return s.fail(ctx, st, pulling.ReasonErrImagePull, err)
	}
	if st.restarts > 0 && !s.resized[st.spec.Name] {
		s.restarts.Next(st.spec.Name, time.Now())
	}
	config, err := s.containerConfig(ctx, st, image)
	if err != nil {
		return s.fail(ctx, st, reasonConfig, err)
	}
	callCtx, cancel := context.WithTimeout(ctx, s.cfg.RuntimeTimeout)
	defer cancel()
	created, err := s.cfg.Runtime.CreateContainer(callCtx, &runtimeapi.CreateContainerRequest{PodSandboxId: s.sandbox, Config: config, SandboxConfig: s.config})
	if err != nil {
		return s.fail(ctx, st, reasonCreate, err)
	}
	s.cfg.Events.Event(s.pod, st.spec, false, "Created", "Container created")
	if st.role != ephemeral {
		s.finish(func() { s.noteMade(ctx, s.pod, st.spec) })
	}
	id := created.GetContainerId()
	if st.spec.Lifecycle != nil && st.spec.Lifecycle.PostStart != nil {
		s.setStarting(id, true)
		defer s.setStarting(id, false)
	}
	if _, err := s.cfg.Runtime.StartContainer(callCtx, &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
		failure := s.fail(ctx, st, reasonRun, err)
		if st.restarts == 0 {
			s.restarts.Next(st.spec.Name, time.Now())
		}
		return failure
	}
	s.cfg.Events.Event(s.pod, st.spec, false, "Started", "Container started")
	return s.postStart(ctx, st, id)
}

func (s *starter) failPull(st start, err *pulling.Error) *hold {
	const showError = 2 * time.Second // before the back-off is told of
	s.cfg.Events.Event(s.pod, st.spec, true, "Failed", "Error: "+err.Reason)
	until := err.Retry
	if err.Reason == pulling.ReasonErrImagePull {
		until = time.Now().Add(showError)
	}
	return &hold{until: until, why: podstatus.Waiting{Reason: err.Reason, Message: err.Message}}
}

func (s *starter) postStart(ctx context.Context, st start, id string) *hold {
	if st.spec.Lifecycle == nil || st.spec.Lifecycle.PostStart == nil {
		return nil
	}
	ip := ""
	if len(s.podIPs) > 0 {
		ip = s.podIPs[0]
	}
	err := lifecycle.Handle(ctx, executor{s.cfg.Runtime}, st.spec.Lifecycle.PostStart, st.spec, id, ip)
	if err == nil || ctx.Err() != nil {
		return nil
	}
	s.cfg.Events.Event(s.pod, st.spec, true, "FailedPostStartHook", "PostStartHook failed")
	response, statusErr := s.cfg.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if statusErr == nil {
		c := cri.Container{ContainerStatus: response.GetStatus(), SandboxID: s.sandbox}
		if err := s.stopContainer(ctx, s.pod, c, ending{message: "FailedPostStartHook", grace: s.grace}); err != nil {
			s.cfg.Log.WarnContext(ctx, "Stopping a container whose hook failed", "pod", name(s.pod), "container", st.spec.Name, "err", err)
		}
	}
	if st.restarts == 0 {
		s.restarts.Next(st.spec.Name, time.Now())
	}
	return &hold{until: time.Now(), why: podstatus.Waiting{Reason: reasonPostStart, Message: errorText(err)}}
}

func (s *starter) containerConfig(ctx context.Context, st start, image criconfig.Image) (*runtimeapi.ContainerConfig, error) {
	vars, err := env.Make(ctx, env.Input{
		Pod: s.pod, PodIPs: s.podIPs, HostIPs: s.cfg.Node.HostIPs, Allocatable: s.cfg.Node.Allocatable(), Objects: s.cfg.Objects,
		Services: s.cfg.Services(), MasterNamespace: corev1.NamespaceDefault,
		Skipped: func(source string, keys []string) {
			s.cfg.Events.Event(s.pod, st.spec, true, "InvalidEnvironmentVariableNames",
				fmt.Sprintf("Keys [%s] from the EnvFrom %s were skipped since they are considered invalid environment variable names.", strings.Join(keys, ", "), source))
		},
	}, st.spec)
	if err != nil {
		return nil, err
	}
	mounts, err := s.mounts(st.spec, vars)
	if err != nil {
		return nil, err
	}
	message, err := s.messageFile(st.spec)
	if err != nil {
		return nil, err
	}
	target := ""
	if st.target != "" {
		of, found := s.runtime.Latest(st.target)
		if !found || !of.Running() {
			return nil, fmt.Errorf("unable to find target container %s", st.target)
		}
		target = of.GetId()
	}
	var assigned criconfig.Assigned
	if s.cfg.Assigner != nil {
		if err := s.cfg.Assigner.Prepare(ctx, s.uid, st.spec.Name); err != nil {
			return nil, err
		}
		assigned = s.cfg.Assigner.Assigned(s.uid, st.spec.Name)
	}
	return s.cfg.Node.Container(criconfig.Container{
		Assigned: assigned,
		Pod:      s.pod, Spec: st.spec, Image: image, Restarts: st.restarts, Env: vars, Mounts: mounts, TargetID: target, MessagePath: message,
	})
}

const hostsPath = "/etc/hosts"
