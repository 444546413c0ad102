package monitor_test

import (
	"context"
	"errors"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sampan-io/sampan/services/node-agent/internal/monitor"
)

// After a restart a pid that was written down may be another process's by now.
func TestAnotherProcessWithTheSamePIDIsLeftAlone(t *testing.T) {
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	now, err := monitor.Find(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	before := monitor.Process{PID: now.PID, StartTime: now.StartTime - 1} // one that had the pid earlier
	if before.Alive() {
		t.Error("the earlier process counts as alive")
	}
	if err := before.Signal(unix.SIGKILL); !errors.Is(err, monitor.ErrGone) {
		t.Errorf("signalling the earlier process: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := before.Wait(ctx); err != nil {
		t.Errorf("waiting for the earlier process: %v", err)
	}
	if !now.Alive() {
		t.Fatal("the process that has the pid now was killed")
	}
	if err := now.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := now.Wait(ctx); err != nil {
		t.Error(err)
	}
	if _, err := monitor.Find(now.PID); !errors.Is(err, monitor.ErrGone) {
		t.Errorf("a zombie is found: %v", err)
	}
}
