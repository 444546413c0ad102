package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/go-chi/chi/v5"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/cri"
	"github.com/sampan-io/sampan/services/node-agent/internal/logs"
	"github.com/sampan-io/sampan/services/node-agent/internal/podworker"
)

// logRequest is what of a log is asked for.
type logRequest struct {
	options  logs.Options
	follow   bool
	previous bool
}

func parseLogRequest(r *http.Request, now time.Time) (logRequest, *failure) {
	var request logRequest
	query := r.URL.Query()
	flag := func(name string) bool {
		value := query.Get(name)
		return value == "true" || value == "1" || (query.Has(name) && value == "")
	}
	request.follow, request.previous, request.options.Timestamps = flag("follow"), flag("previous"), flag("timestamps")
	var bad *failure
	number := func(name string, least int64) *int64 {
		if !query.Has(name) || query.Get(name) == "all" {
			return nil
		}
		n, err := strconv.ParseInt(query.Get(name), 10, 64)
		if err != nil || n < least {
			bad = fail(http.StatusUnprocessableEntity, "%s: Invalid value: %q: must be a number of at least %d", name, query.Get(name), least)
		}
		return &n
	}
	request.options.Tail = number("tailLines", 0)
	request.options.LimitBytes = number("limitBytes", 1)
	if seconds := number("sinceSeconds", 1); seconds != nil {
		request.options.Since = now.Add(-time.Duration(*seconds) * time.Second)
	}
	if text := query.Get("sinceTime"); text != "" {
		at, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			bad = fail(http.StatusBadRequest, "sinceTime: Invalid value: %q", text)
		}
		request.options.Since = at
	}
	switch stream := query.Get("stream"); stream {
	case "", corev1.LogStreamAll:
	case corev1.LogStreamStdout:
		request.options.Stream = logs.Stdout
	case corev1.LogStreamStderr:
		request.options.Stream = logs.Stderr
	default:
		bad = fail(http.StatusUnprocessableEntity, "stream: Unsupported value: %q", stream)
	}
	return request, bad
}

func (s *Server) containerLogs(w http.ResponseWriter, r *http.Request) {
	request, bad := parseLogRequest(r, time.Now())
	if bad != nil {
		bad.write(w)
		return
	}
	container, bad := s.logOf(r, request.previous)
	if bad != nil {
		bad.write(w)
		return
	}
	var follow *logs.Follow
	if request.follow && !container.Exited() {
		follow = &logs.Follow{Alive: func(ctx context.Context) bool { return s.alive(ctx, container.GetId()) }}
	}
	w.Header().Set("Content-Type", "text/plain")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	out := &flushing{writer: w, controller: http.NewResponseController(w)}
	if request.follow {
		out.flush() // the client learns at once that it is connected
	} else {
		out.controller = nil
	}
	err := logs.Read(r.Context(), s.LogsDir, container.GetLogPath(), request.options, follow, out, out)
	if err == nil || r.Context().Err() != nil {
		return
	}
	if errors.Is(err, fs.ErrNotExist) && !out.written {
		fail(http.StatusInternalServerError, "the log of container %q has not been found", container.Name()).write(w)
		return
	}
	s.Log.InfoContext(r.Context(), "Reading a log", "path", container.GetLogPath(), "err", err)
	if !out.written {
		fail(http.StatusInternalServerError, "the log of container %q could not be read", container.Name()).write(w)
	}
}

// logOf finds the container whose log is asked for.
func (s *Server) logOf(r *http.Request, previous bool) (cri.Container, *failure) {
	namespace, name, container := chi.URLParam(r, "namespace"), chi.URLParam(r, "pod"), chi.URLParam(r, "container")
	state, found := s.Pods.State(namespace, name, "")
	if !found {
		return cri.Container{}, fail(http.StatusNotFound, "pod does not exist: %s/%s", namespace, name)
	}
	if !hasContainer(state.Pod, container) {
		return cri.Container{}, fail(http.StatusBadRequest, "container %s is not valid for pod %s", container, name)
	}
	now := s.fresh(r.Context(), state.Runtime, state.Pod.UID)
	instances := now.Instances(container)
	if previous {
		for i, c := range instances {
			if c.Exited() && (i > 0 || isWaiting(state, container)) {
				return c, nil
			}
		}
		return cri.Container{}, fail(http.StatusBadRequest, "previous terminated container %q in pod %q not found", container, name)
	}
	for _, c := range instances {
		if c.Running() || c.Exited() {
			return c, nil
		}
	}
	return cri.Container{}, fail(http.StatusBadRequest, "container %q in pod %q is waiting to start: %s", container, name, waitingReason(state, container))
}

func hasContainer(pod *corev1.Pod, name string) bool {
	is := func(c corev1.Container) bool { return c.Name == name }
	ephemeral := func(c corev1.EphemeralContainer) bool { return c.Name == name }
	return slices.ContainsFunc(pod.Spec.Containers, is) || slices.ContainsFunc(pod.Spec.InitContainers, is) ||
		slices.ContainsFunc(pod.Spec.EphemeralContainers, ephemeral)
}

func statusOf(state podworker.State, name string) *corev1.ContainerStatus {
	for _, list := range [][]corev1.ContainerStatus{state.Pod.Status.ContainerStatuses, state.Pod.Status.InitContainerStatuses} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// isWaiting tells that the last instance has ended and another one is to come.
func isWaiting(state podworker.State, name string) bool {
	status := statusOf(state, name)
	return status != nil && status.State.Waiting != nil && status.LastTerminationState.Terminated != nil
}

func waitingReason(state podworker.State, name string) string {
	if status := statusOf(state, name); status != nil && status.State.Waiting != nil {
		return status.State.Waiting.Reason
	}
	return "ContainerCreating"
}

func (s *Server) alive(ctx context.Context, id string) bool {
	response, err := s.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return !cri.IsNotFound(err) && ctx.Err() == nil
	}
	return response.GetStatus().GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING
}

// flushing hands each write to the client at once.
type flushing struct {
	writer     io.Writer
	controller *http.ResponseController // nil does not flush
	written    bool
}

func (f *flushing) Write(data []byte) (int, error) {
	f.written = true
	n, err := f.writer.Write(data)
	if err != nil {
		return n, fmt.Errorf("writing to the client: %w", err)
	}
	f.flush()
	return n, nil
}

func (f *flushing) flush() {
	if f.controller != nil {
		_ = f.controller.Flush()
	}
}
