package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/monitor"
)

const (
	// maxExecOutput is how much of each stream ExecSync returns, as upstream's runtimes do.
	maxExecOutput = 16 << 20
	// drain is how long output may go on after the command has been killed, from what it
	// has started and left behind. Without a kill, ExecSync ends with the output, as it
	// does in other runtimes.
	drain = 2 * time.Second
)

// ExecSync runs a command in the container and returns its output. At the timeout the
// command and all that it has started are killed, and the error is DeadlineExceeded.
func (s *Server) ExecSync(ctx context.Context, req *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	c, err := s.runningContainer(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	if timeout := req.GetTimeout(); timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(timeout)*time.Second)
		defer cancel()
	}
	stdout, stderr := &limited{max: maxExecOutput}, &limited{max: maxExecOutput}
	code, err := s.exec(ctx, c, execRequest{cmd: req.GetCmd(), stdout: stdout, stderr: stderr})
	if err != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return nil, grpcstatus.Errorf(codes.DeadlineExceeded, "command %q timed out after %d s", strings.Join(req.GetCmd(), " "), req.GetTimeout())
		}
		return nil, err
	}
	return &runtimeapi.ExecSyncResponse{Stdout: stdout.Bytes(), Stderr: stderr.Bytes(), ExitCode: int32(code)}, nil
}

func (s *Server) runningContainer(id string) (*container, error) {
	c, err := s.objects.container(id)
	if err != nil {
		return nil, err
	}
	if c.get().Phase != running {
		return nil, fmt.Errorf("%w: container %s is not running, but %s", errState, c.id, c.get().Phase)
	}
	return c, nil
}

// limited keeps the first bytes and drops the rest.
type limited struct {
	bytes.Buffer
	max int
}

func (l *limited) Write(p []byte) (int, error) {
	if room := l.max - l.Len(); room > 0 {
		l.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

type execRequest struct {
	cmd            []string
	stdin          io.Reader // nil for none
	stdout, stderr io.Writer // nil for none
}

// exec runs a command without a terminal and returns its exit code. When ctx ends it
// kills the command with all its children.
func (s *Server) exec(ctx context.Context, c *container, req execRequest) (int, error) {
	if len(req.cmd) == 0 {
		return 0, fmt.Errorf("%w: no command", errInvalid)
	}
	process, err := s.newExec(c, req.cmd, false)
	if err != nil {
		return 0, err
	}
	defer process.close()
	process.cmd.Stdout, process.cmd.Stderr = req.stdout, req.stderr
	process.cmd.WaitDelay = drain
	if req.stdin != nil {
		// Not cmd.Stdin: Wait would wait for a reader that nobody closes.
		pipe, err := process.cmd.StdinPipe()
		if err != nil {
			return 0, err
		}
		go func() {
			io.Copy(pipe, req.stdin)
			pipe.Close()
		}()
	}
	return process.run(ctx)
}

// execProcess is one runc exec and what it runs.
type execProcess struct {
	cmd *exec.Cmd
	dir string // for the pid file and runc's log
	// giveUp kills a runc that does not end after its command was killed.
	giveUp atomic.Pointer[time.Timer]
}

func (s *Server) newExec(c *container, command []string, tty bool) (*execProcess, error) {
	dir, err := os.MkdirTemp(s.cfg.execDir(), "exec-")
	if err != nil {
		return nil, err
	}
	oci := s.runcOf(c.get().Handler)
	args := oci.Args("--log", filepath.Join(dir, "log"), "exec", "--pid-file", filepath.Join(dir, "pid"))
	if tty {
		args = append(args, "--tty", "--env", "TERM=xterm")
	}
	args = append(args, c.id)
	return &execProcess{cmd: exec.Command(oci.Path, append(args, command...)...), dir: dir}, nil
}

func (p *execProcess) close() {
	if timer := p.giveUp.Load(); timer != nil {
		timer.Stop()
	}
	os.RemoveAll(p.dir)
}

// run starts it and waits. The exit code is that of the command.
func (p *execProcess) run(ctx context.Context) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if err := p.cmd.Start(); err != nil {
		return 0, err
	}
	return p.wait(ctx)
}

func (p *execProcess) wait(ctx context.Context) (int, error) {
	stop := context.AfterFunc(ctx, p.kill)
	err := p.cmd.Wait()
	stop()
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	var exit *exec.ExitError
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay):
		return p.cmd.ProcessState.ExitCode(), nil
	case errors.As(err, &exit):
		return p.exitCode(exit)
	}
	return 0, err
}

// exitCode tells the command's failure from runc's own, which alone writes an error to
// the log before there is a process.
func (p *execProcess) exitCode(exit *exec.ExitError) (int, error) {
	if _, err := os.Stat(filepath.Join(p.dir, "pid")); err == nil {
		return exit.ExitCode(), nil
	}
	log, err := os.ReadFile(filepath.Join(p.dir, "log"))
	if err != nil || len(log) == 0 {
		return exit.ExitCode(), nil
	}
	return 0, fmt.Errorf("executing the command: %s", logMessage(log))
}

// kill ends the command and its children. Runc then ends by itself: killed before it has
// reaped the command, it would leave a zombie to process 1 of the container, which may
// not care.
func (p *execProcess) kill() {
	data, err := os.ReadFile(filepath.Join(p.dir, "pid"))
	if err != nil {
		p.cmd.Process.Kill()
		return
	}
	if pid, err := strconv.Atoi(strings.TrimSpace(string(data))); err == nil {
		monitor.KillTree(pid)
	}
	p.giveUp.Store(time.AfterFunc(drain, func() { p.cmd.Process.Kill() }))
}
