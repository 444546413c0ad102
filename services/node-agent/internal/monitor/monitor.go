// Package monitor runs one conmon beside each container. Conmon owns the
// container's stdio, terminal, log and exit code, so that none of them depends on
// the agent's life.
package monitor

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/sampan-io/sampan/services/node-agent/internal/runc"
)

// Files that a monitor and its runc keep in the bundle directory.
const (
	attachSocket = "attach"
	controlFIFO  = "ctl"
	pidFile      = "pid"
)

// Conmon starts monitors.
type Conmon struct {
	Path string
	Runc runc.Runc
	// ExitDir receives one file a container, named by its id, with the exit code.
	ExitDir string
}

// Container is what a monitor has to know.
type Container struct {
	ID        string
	Bundle    string // directory with config.json
	LogPath   string // empty: output is dropped unless attached
	Terminal  bool
	Stdin     bool
	StdinOnce bool // stdin ends when the first attached client leaves
	// NoPivot and its like are not offered: rootfs is always a mount of its own.
}

// Create starts a monitor that creates the container, which then waits for its
// start. Started is called as soon as the monitor runs, before the container
// exists. On an error neither is left, except what runc could not undo itself.
func (c Conmon) Create(ctx context.Context, ctr Container, started func(monitor Process)) (Process, Process, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return Process{}, Process{}, err
	}
	defer read.Close()
	cmd := exec.Command(c.Path, c.args(ctr)...)
	cmd.Dir = ctr.Bundle
	cmd.Env = append(runc.LeanEnv(), "PATH="+os.Getenv("PATH"), "_OCI_SYNCPIPE=3")
	cmd.ExtraFiles = []*os.File{write}
	err = cmd.Start()
	write.Close()
	if err != nil {
		return Process{}, Process{}, fmt.Errorf("starting the monitor: %w", err)
	}
	monitor, err := Find(cmd.Process.Pid)
	if err != nil {
		cmd.Wait()
		return Process{}, Process{}, fmt.Errorf("the monitor ended at once: %w", err)
	}
	monitor.child = cmd.Process
	started(monitor)

	stop := context.AfterFunc(ctx, func() { read.Close() })
	defer stop()
	init, err := readCreated(read)
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		cmd.Process.Kill()
		cmd.Wait()
		return Process{}, Process{}, err
	}
	return monitor, init, nil
}

func (c Conmon) args(ctr Container) []string {
	log := "none"
	if ctr.LogPath != "" {
		log = "k8s-file:" + ctr.LogPath
	}
	args := []string{
		"--api-version", "1",
		"--cid", ctr.ID,
		"--cuuid", ctr.ID,
		"--name", ctr.ID,
		"--bundle", ctr.Bundle,
		"--container-pidfile", filepath.Join(ctr.Bundle, pidFile),
		"--exit-dir", c.ExitDir,
		"--log-path", log,
		"--log-level", "error",
		"--runtime", c.Runc.Path,
		"--full-attach",
		"--no-sync-log", // a log need not survive a power cut
		"--sync",        // one fork less; it becomes an orphan when the agent dies
	}
	for _, arg := range c.Runc.Args("--log", filepath.Join(ctr.Bundle, "runc.log")) {
		args = append(args, "--runtime-arg="+arg)
	}
	if ctr.Terminal {
		args = append(args, "--terminal")
	}
	if ctr.Stdin {
		args = append(args, "--stdin")
		if !ctr.StdinOnce {
			args = append(args, "--leave-stdin-open")
		}
	}
	return args
}

// readCreated waits for the monitor's word on whether the container was created.
func readCreated(r io.Reader) (Process, error) {
	line, err := bufio.NewReader(r).ReadBytes('\n')
	if err != nil {
		return Process{}, fmt.Errorf("waiting for the monitor: %w", err)
	}
	var report struct {
		Data    int    `json:"data"`
		Message string `json:"message"`
	}
	if err := json.Unmarshal(line, &report); err != nil {
		return Process{}, fmt.Errorf("reading the monitor's report %q: %w", line, err)
	}
	if report.Data <= 0 {
		if message := runc.Message(report.Message); message != "" {
			return Process{}, errors.New(message)
		}
		return Process{}, errors.New("the monitor gave no reason")
	}
	process, err := Find(report.Data)
	if err != nil {
		// It died before it was looked at; the exit file will say how.
		return Process{PID: report.Data}, nil
	}
	return process, nil
}

// Exit reads the exit code that a monitor has left. Found is false while there is
// none.
func (c Conmon) Exit(id string) (code int32, found bool, err error) {
	data, err := os.ReadFile(c.exitFile(id))
	if errors.Is(err, os.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 32)
	if err != nil {
		return 0, false, fmt.Errorf("reading the exit code of %s: %w", id, err)
	}
	return int32(n), true, nil
}

// ExitTime is when the exit code was written.
func (c Conmon) ExitTime(id string) (int64, error) {
	info, err := os.Stat(c.exitFile(id))
	if err != nil {
		return 0, err
	}
	return info.ModTime().UnixNano(), nil
}

// Forget removes the exit code.
func (c Conmon) Forget(id string) error {
	if err := os.Remove(c.exitFile(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func (c Conmon) exitFile(id string) string { return filepath.Join(c.ExitDir, id) }

// FindMonitors looks through all processes for monitors of the container, also
// such that were started just before the agent died and are written down nowhere.
func (c Conmon) FindMonitors(id string) ([]Process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var found []Process
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		cmdline, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if err != nil || !strings.Contains(string(cmdline), "--cid\x00"+id+"\x00") {
			continue
		}
		if process, err := Find(pid); err == nil {
			found = append(found, process)
		}
	}
	return found, nil
}
