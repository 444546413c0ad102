package runtime_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	utilexec "k8s.io/client-go/util/exec"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// output collects a stream, and can be waited for.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) text() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

func (o *output) has(t testing.TB, want string) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("output so far: %q", o.text())
		}
	}()
	eventually(t, "output "+want, func() bool { return strings.Contains(o.text(), want) })
}

func stream(ctx context.Context, t testing.TB, target string, options remotecommand.StreamOptions) error {
	t.Helper()
	parsed, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	executor, err := remotecommand.NewSPDYExecutor(&rest.Config{}, http.MethodPost, parsed)
	if err != nil {
		t.Fatal(err)
	}
	return executor.StreamWithContext(ctx, options)
}

func TestExecStreamsAllThreeStreamsAndTheCode(t *testing.T) {
	n := newNode(t)
	c := n.runPod("exec").run([]string{"forever"})
	resp, err := n.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: c.id, Cmd: []string{"/tool", "cat"}, Stdin: true, Stdout: true, Stderr: true})
	if err != nil {
		t.Fatal(err)
	}
	big := strings.Repeat("0123456789abcdef", 64*1024)
	var stdout, stderr output
	err = stream(t.Context(), t, resp.GetUrl(), remotecommand.StreamOptions{Stdin: strings.NewReader(big), Stdout: &stdout, Stderr: &stderr})
	if err != nil {
		t.Fatal(err)
	}
	if stdout.text() != big {
		t.Errorf("%d bytes came back of %d", len(stdout.text()), len(big))
	}
	resp, err = n.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: c.id, Cmd: []string{"/tool", "exit", "9"}, Stdout: true, Stderr: true})
	if err != nil {
		t.Fatal(err)
	}
	err = stream(t.Context(), t, resp.GetUrl(), remotecommand.StreamOptions{Stdout: &stdout, Stderr: &stderr})
	var exit utilexec.CodeExitError
	if !errors.As(err, &exit) || exit.Code != 9 {
		t.Errorf("error %v", err)
	}
}

// sizes is a terminal whose size changes.
type sizes chan *remotecommand.TerminalSize

func (s sizes) Next() *remotecommand.TerminalSize { return <-s }

func TestExecTerminalFollowsTheClientsSize(t *testing.T) {
	n := newNode(t)
	c := n.runPod("tty").run([]string{"forever"})
	resp, err := n.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: c.id, Cmd: []string{"/tool", "size"}, Tty: true, Stdin: true, Stdout: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	queue := make(sizes, 2)
	stdin, keep := io.Pipe()
	defer keep.Close()
	var out output
	done := make(chan error, 1)
	go func() {
		done <- stream(ctx, t, resp.GetUrl(), remotecommand.StreamOptions{Stdin: stdin, Stdout: &out, Tty: true, TerminalSizeQueue: queue})
	}()
	queue <- &remotecommand.TerminalSize{Height: 40, Width: 100}
	out.has(t, "size 40x100")
	queue <- &remotecommand.TerminalSize{Height: 50, Width: 120}
	out.has(t, "size 50x120")
	close(queue)
	cancel()
	<-done
}

func TestExecTerminalReturnsOutputAndCode(t *testing.T) {
	n := newNode(t)
	c := n.runPod("tty").run([]string{"forever"})
	for code, cmd := range [][]string{{"/tool", "echo", "through the terminal"}, {"/tool", "exit", "1"}} {
		resp, err := n.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: c.id, Cmd: cmd, Tty: true, Stdin: true, Stdout: true})
		if err != nil {
			t.Fatal(err)
		}
		var out output
		err = stream(t.Context(), t, resp.GetUrl(), remotecommand.StreamOptions{Stdin: strings.NewReader(""), Stdout: &out, Tty: true})
		var exit utilexec.CodeExitError
		if code == 0 && (err != nil || out.text() != "through the terminal\r\n") {
			t.Errorf("output %q, %v", out.text(), err)
		}
		if code == 1 && (!errors.As(err, &exit) || exit.Code != 1) {
			t.Errorf("error %v", err)
		}
	}
}

func TestAttachSendsInputAndReceivesOutput(t *testing.T) {
	n := newNode(t)
	c := n.runPod("attach").run([]string{"lines"}, func(config *runtimeapi.ContainerConfig) { config.Stdin, config.StdinOnce = true, true })
	resp, err := n.Attach(t.Context(), &runtimeapi.AttachRequest{ContainerId: c.id, Stdin: true, Stdout: true, Stderr: true})
	if err != nil {
		t.Fatal(err)
	}
	var stdout, stderr output
	err = stream(t.Context(), t, resp.GetUrl(), remotecommand.StreamOptions{Stdin: strings.NewReader("one\ntwo\n"), Stdout: &stdout, Stderr: &stderr})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"got one", "got two", "end of input"} {
		assertContains(t, stdout.text(), want)
	}
	if status := c.exited(); status.GetExitCode() != 0 {
		t.Errorf("exit code %d", status.GetExitCode())
	}
	assertContains(t, c.logText(), "got two")
}

func TestAttachToATerminalResizesIt(t *testing.T) {
	n := newNode(t)
	c := n.runPod("attach-tty").run([]string{"size"}, func(config *runtimeapi.ContainerConfig) { config.Tty, config.Stdin = true, true })
	resp, err := n.Attach(t.Context(), &runtimeapi.AttachRequest{ContainerId: c.id, Stdin: true, Stdout: true, Tty: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	queue := make(sizes, 1)
	queue <- &remotecommand.TerminalSize{Height: 33, Width: 77}
	stdin, keep := io.Pipe()
	defer keep.Close()
	var out output
	done := make(chan error, 1)
	go func() {
		done <- stream(ctx, t, resp.GetUrl(), remotecommand.StreamOptions{Stdin: stdin, Stdout: &out, Tty: true, TerminalSizeQueue: queue})
	}()
	out.has(t, "size 33x77")
	close(queue)
	cancel()
	<-done
	if c.status().GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Error("the container ended with the client")
	}
}

func TestPortForwardReachesTheSandbox(t *testing.T) {
	n := newNode(t)
	p := n.runPod("forward")
	c := p.run([]string{"listen", "127.0.0.1:8080"})
	c.logged("listening")
	resp, err := n.PortForward(t.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: p.id, Port: []int32{8080}})
	if err != nil {
		t.Fatal(err)
	}
	target, err := url.Parse(resp.GetUrl())
	if err != nil {
		t.Fatal(err)
	}
	roundTripper, upgrader, err := spdy.RoundTripperFor(&rest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	stop, ready := make(chan struct{}), make(chan struct{})
	dialer := spdy.NewDialer(upgrader, &http.Client{Transport: roundTripper}, http.MethodPost, target)
	forwarder, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{"0:8080"}, stop, ready, io.Discard, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- forwarder.ForwardPorts() }()
	<-ready
	ports, err := forwarder.GetPorts()
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		got, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/", ports[0].Local))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(got.Body)
		got.Body.Close()
		if err != nil || string(body) != "hello from forward\n" {
			t.Errorf("body %q, error %v", body, err)
		}
	}
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestLogIsReopenedForRotation(t *testing.T) {
	n := newNode(t)
	c := n.runPod("rotate").run([]string{"tick"})
	c.logged("tick 3")
	old := c.log + ".old"
	if err := os.Rename(c.log, old); err != nil {
		t.Fatal(err)
	}
	if _, err := n.ReopenContainerLog(t.Context(), &runtimeapi.ReopenContainerLogRequest{ContainerId: c.id}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(c.log); err != nil {
		t.Errorf("the new log is not there at once: %v", err)
	}
	eventually(t, "the new log", func() bool { return strings.Count(c.logText(), "\n") > 2 })
	before, err := os.ReadFile(old)
	if err != nil {
		t.Fatal(err)
	}
	all := string(before) + c.logText()
	for i := range 5 {
		if !strings.Contains(all, fmt.Sprintf("tick %d\n", i)) {
			t.Errorf("tick %d is in neither log", i)
		}
	}
}
