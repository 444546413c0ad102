package server

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/go-chi/chi/v5"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	utilproxy "k8s.io/apimachinery/pkg/util/proxy"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/cri"
)

// failure is an answer that is not what was asked for.
type failure struct {
	code    int
	message string
}

func fail(code int, format string, args ...any) *failure {
	return &failure{code: code, message: fmt.Sprintf(format, args...)}
}

func (f *failure) write(w http.ResponseWriter) { http.Error(w, f.message, f.code) }

// running finds the container of the request's path, which must run.
func (s *Server) running(r *http.Request) (cri.Container, *failure) {
	namespace, name, container := chi.URLParam(r, "namespace"), chi.URLParam(r, "pod"), chi.URLParam(r, "container")
	state, found := s.Pods.State(namespace, name, types.UID(chi.URLParam(r, "uid")))
	if !found {
		return cri.Container{}, fail(http.StatusNotFound, "pod does not exist: %s/%s", namespace, name)
	}
	// The runtime is asked, for the worker may not have looked yet.
	for _, c := range s.fresh(r.Context(), state.Runtime, state.Pod.UID).Containers {
		if c.Name() == container && c.Running() {
			return c, nil
		}
	}
	return cri.Container{}, fail(http.StatusNotFound, "container not found (%q)", container)
}

func (s *Server) fresh(ctx context.Context, known cri.Pod, uid types.UID) cri.Pod {
	client := cri.Client{RuntimeServiceClient: s.Runtime}
	if now, err := client.Pod(ctx, uid); err == nil {
		return now
	}
	return known
}

// streams are what a client of exec or attach wants to be connected with.
type streams struct{ in, out, err, tty bool }

func wantedStreams(r *http.Request) (streams, *failure) {
	set := func(name string) bool { return r.FormValue(name) == "1" || r.FormValue(name) == "true" }
	wanted := streams{in: set("input"), out: set("output"), err: set("error"), tty: set("tty")}
	if wanted.tty {
		wanted.err = false // a terminal has one output
	}
	if !wanted.in && !wanted.out && !wanted.err {
		return wanted, fail(http.StatusBadRequest, "you must specify at least 1 of stdin, stdout, stderr")
	}
	return wanted, nil
}

func (s *Server) exec(w http.ResponseWriter, r *http.Request) {
	wanted, bad := wantedStreams(r)
	if bad != nil {
		bad.write(w)
		return
	}
	command := r.Form["command"]
	if len(command) == 0 {
		fail(http.StatusBadRequest, "you must specify a command").write(w)
		return
	}
	container, bad := s.running(r)
	if bad != nil {
		bad.write(w)
		return
	}
	response, err := s.Runtime.Exec(r.Context(), &runtimeapi.ExecRequest{
		ContainerId: container.GetId(), Cmd: command, Tty: wanted.tty, Stdin: wanted.in, Stdout: wanted.out, Stderr: wanted.err,
	})
	s.stream(w, r, response.GetUrl(), err)
}

func (s *Server) attach(w http.ResponseWriter, r *http.Request) {
	wanted, bad := wantedStreams(r)
	if bad != nil {
		bad.write(w)
		return
	}
	container, bad := s.running(r)
	if bad != nil {
		bad.write(w)
		return
	}
	// Whether there is a terminal is the container's to say.
	state, _ := s.Pods.State(chi.URLParam(r, "namespace"), chi.URLParam(r, "pod"), "")
	tty := wanted.tty
	for i := range state.Pod.Spec.Containers {
		if spec := &state.Pod.Spec.Containers[i]; spec.Name == container.Name() {
			tty = spec.TTY
		}
	}
	response, err := s.Runtime.Attach(r.Context(), &runtimeapi.AttachRequest{
		ContainerId: container.GetId(), Tty: tty, Stdin: wanted.in, Stdout: wanted.out, Stderr: wanted.err && !tty,
	})
	s.stream(w, r, response.GetUrl(), err)
}

func (s *Server) portForward(w http.ResponseWriter, r *http.Request) {
	namespace, name := chi.URLParam(r, "namespace"), chi.URLParam(r, "pod")
	ports, bad := forwardedPorts(r)
	if bad != nil {
		bad.write(w)
		return
	}
	state, found := s.Pods.State(namespace, name, types.UID(chi.URLParam(r, "uid")))
	if !found {
		fail(http.StatusNotFound, "pod does not exist: %s/%s", namespace, name).write(w)
		return
	}
	now := s.fresh(r.Context(), state.Runtime, state.Pod.UID)
	sandbox := now.Sandbox()
	if sandbox.GetState() != runtimeapi.PodSandboxState_SANDBOX_READY || sandbox == nil {
		fail(http.StatusNotFound, "not running: pod %s/%s has no running sandbox", namespace, name).write(w)
		return
	}
	response, err := s.Runtime.PortForward(r.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: sandbox.GetId(), Port: ports})
	s.stream(w, r, response.GetUrl(), err)
}

// forwardedPorts are those that WebSocket clients name at once; SPDY clients name
// one in each stream.
func forwardedPorts(r *http.Request) ([]int32, *failure) {
	if err := r.ParseForm(); err != nil {
		return nil, fail(http.StatusBadRequest, "malformed query")
	}
	var ports []int32
	for _, text := range r.Form["port"] {
		for part := range strings.SplitSeq(text, ",") {
			port, err := strconv.ParseUint(part, 10, 16)
			if err != nil || port == 0 {
				return nil, fail(http.StatusBadRequest, "port %q is not between 1 and 65535", part)
			}
			ports = append(ports, int32(port))
		}
	}
	return ports, nil
}

// stream joins the client's connection with the runtime's streaming server.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, location string, err error) {
	if err == nil {
		var target *url.URL
		if target, err = url.Parse(location); err == nil {
			responder := streamErrors{}
			handler := utilproxy.NewUpgradeAwareHandler(target, nil, false, true, responder)
			handler.ServeHTTP(w, r)
			return
		}
	}
	runtimeFailure(err).write(w)
}

func runtimeFailure(err error) *failure {
	code := http.StatusInternalServerError
	switch status.Code(err) {
	case codes.NotFound:
		code = http.StatusNotFound
	case codes.InvalidArgument:
		code = http.StatusBadRequest
	}
	return fail(code, "%s", status.Convert(err).Message())
}

type streamErrors struct{}

// Error implements utilproxy.ErrorResponder.
func (streamErrors) Error(w http.ResponseWriter, _ *http.Request, err error) {
	http.Error(w, "streaming failed: "+err.Error(), http.StatusInternalServerError)
}

// run executes a command and answers with its output.
func (s *Server) run(w http.ResponseWriter, r *http.Request) {
	container, bad := s.running(r)
	if bad != nil {
		bad.write(w)
		return
	}
	command := strings.Fields(r.FormValue("cmd"))
	if len(command) == 0 {
		fail(http.StatusBadRequest, "you must specify a command").write(w)
		return
	}
	response, err := s.Runtime.ExecSync(r.Context(), &runtimeapi.ExecSyncRequest{ContainerId: container.GetId(), Cmd: command})
	if err != nil {
		runtimeFailure(err).write(w)
		return
	}
	if code := response.GetExitCode(); code != 0 {
		w.WriteHeader(http.StatusInternalServerError)
	}
	_, _ = w.Write(append(response.GetStdout(), response.GetStderr()...))
}
