// Package runc drives the runc binary.
package runc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Runc is one runc binary with one state directory.
type Runc struct {
	Path string // of the binary
	Root string // state directory; on a tmpfs, since it must not survive a reboot
}

// LeanEnv is for programs in Go that come and go, as runc and the CNI plugins do: they are
// over before a collection of garbage pays, and more threads than one cost more than they
// bring. A pod's start takes a tenth less of the CPU so.
func LeanEnv() []string { return []string{"GOMAXPROCS=1", "GOGC=off"} }

// Args gives the arguments of a call; other programs that call runc need them.
func (r Runc) Args(args ...string) []string {
	return append([]string{"--root", r.Root}, args...)
}

// Delete removes what is left of a container that has ended.
func (r Runc) Delete(ctx context.Context, id string) error {
	return r.run(ctx, nil, "delete", id)
}

// Kill removes the container and kills what runs of it, which takes runc 100 ms at
// least. A container that is not there is no error.
func (r Runc) Kill(ctx context.Context, id string) error {
	return r.run(ctx, nil, "delete", "--force", id)
}

// Update changes the resources of the container.
func (r Runc) Update(ctx context.Context, id string, resources *specs.LinuxResources) error {
	data, err := json.Marshal(resources)
	if err != nil {
		return err
	}
	return r.run(ctx, bytes.NewReader(data), "update", "--resources", "-", id)
}

// Run starts a container without a monitor; its stdio is /dev/null. The pid of its
// first process is written to pidFile.
func (r Runc) Run(ctx context.Context, id, bundle, pidFile string) error {
	return r.run(ctx, nil, "run", "--detach", "--bundle", bundle, "--pid-file", pidFile, id)
}

// Version returns runc's version, such as 1.5.3.
func (r Runc) Version(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, r.Path, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("asking runc for its version: %w", err)
	}
	first, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimPrefix(first, "runc version "), nil
}

// Features is what the runtime says that it can do, as the OCI's features document.
func (r Runc) Features(ctx context.Context) ([]byte, error) {
	out, err := exec.CommandContext(ctx, r.Path, "features").Output()
	if err != nil {
		return nil, fmt.Errorf("asking %s for its features: %w", r.Path, err)
	}
	return out, nil
}

// StateDir is where runc keeps the container's state.
func (r Runc) StateDir(id string) string { return filepath.Join(r.Root, id) }

func (r Runc) run(ctx context.Context, stdin *bytes.Reader, args ...string) error {
	cmd := exec.CommandContext(ctx, r.Path, r.Args(args...)...)
	cmd.Env = append(os.Environ(), LeanEnv()...)
	var stderr bytes.Buffer
	said := stderr.String
	if args[0] == "run" {
		// The container inherits these; a pipe would be held open by it.
		log := filepath.Join(args[3], "runc.log")
		cmd.Stderr = nil
		cmd.Args = append([]string{cmd.Args[0], "--log", log}, cmd.Args[1:]...)
		said = func() string {
			data, _ := os.ReadFile(log) // without it the exit code has to do
			return string(data)
		}
	} else {
		cmd.Stderr = &stderr
	}
	if stdin != nil {
		cmd.Stdin = stdin
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("runc %s: %w", args[0], explain(err, said()))
	}
	return nil
}

// explain prefers what runc says over its exit code.
func explain(err error, stderr string) error {
	if message := Message(stderr); message != "" {
		return errors.New(message)
	}
	return err
}

// Message finds the reason in what runc wrote to stderr.
func Message(stderr string) string {
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	last := strings.TrimSpace(lines[len(lines)-1])
	if _, message, found := strings.Cut(last, `level=error msg="`); found {
		last = strings.ReplaceAll(strings.TrimSuffix(message, `"`), `\"`, `"`)
	}
	return last
}
