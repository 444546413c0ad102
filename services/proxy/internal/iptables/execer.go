package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"
)

// Execer runs iptables. The one place where rules leave this process.
type Execer interface {
	// Restore applies an iptables-restore input without flushing what it does not
	// name. Each table in it is applied whole or not at all.
	Restore(ctx context.Context, input string) error
	// Save is the current rules of a table in iptables-save's form.
	Save(ctx context.Context, table string) (string, error)
}

// lockWait is how long iptables waits for others that hold its lock.
const lockWait = 30 * time.Second

// Command runs the system's iptables programs.
type Command struct {
	RestorePath, SavePath string
	// Monitor is told of processes that change rules, if there is one.
	Monitor *Monitor
}

// NewCommand finds the programs.
func NewCommand() (Command, error) {
	c := Command{Monitor: &Monitor{}}
	for name, path := range map[string]*string{"iptables-restore": &c.RestorePath, "iptables-save": &c.SavePath} {
		found, err := exec.LookPath(name)
		if err != nil {
			return Command{}, fmt.Errorf("finding %s: %w; on Debian: apt-get install iptables", name, err)
		}
		*path = found
	}
	return c, nil
}

// Restore runs iptables-restore --noflush.
func (c Command) Restore(ctx context.Context, input string) error {
	cmd := exec.CommandContext(ctx, c.RestorePath, "--noflush", "-w", fmt.Sprint(int(lockWait.Seconds())))
	// Input comes through a pipe that is written after the start: the process cannot
	// change anything before the monitor knows it.
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("iptables-restore: %w", err)
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("iptables-restore: %w", err)
	}
	c.Monitor.Own(cmd.Process.Pid)
	_, writeErr := io.WriteString(stdin, input) // fails when the process ends early, which Wait tells
	closeErr := stdin.Close()
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("iptables-restore: %w: %s", err, bytes.TrimSpace(out.Bytes()))
	}
	if err := errors.Join(writeErr, closeErr); err != nil {
		return fmt.Errorf("iptables-restore: writing input: %w", err)
	}
	return nil
}

// Save runs iptables-save.
func (c Command) Save(ctx context.Context, table string) (string, error) {
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(ctx, c.SavePath, "-t", table)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("iptables-save: %w: %s", err, bytes.TrimSpace(errOut.Bytes()))
	}
	return out.String(), nil
}

// SectionChains is the value of Config.SectionChains that suits the programs. The
// nf_tables variant takes time with the square of the chains in one step, the
// legacy variant takes time for the whole table in each step.
func (c Command) SectionChains(ctx context.Context) int {
	out, err := exec.CommandContext(ctx, c.RestorePath, "--version").Output()
	if err != nil || !bytes.Contains(out, []byte("nf_tables")) {
		return 0
	}
	return 500
}
