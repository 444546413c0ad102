package app

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/sampan-io/sampan/services/internal/component"
	"github.com/sampan-io/sampan/services/sampan/internal/cluster"
	"github.com/sampan-io/sampan/services/sampan/internal/supervisor"
)

func newSupervise(c *command) *cobra.Command {
	return &cobra.Command{
		Use:    "supervise",
		Short:  "Keep the cluster's services running (sampan up starts this)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			layout, err := c.layout()
			if err != nil {
				return err
			}
			config, found, err := layout.Load()
			if err != nil {
				return err
			}
			if !found {
				return fmt.Errorf("there is no cluster in %s", layout.Dir)
			}
			lock, err := takeLock(layout)
			if err != nil {
				return err
			}
			defer func() { _ = lock.Close() }()
			log, err := (&component.LoggingOptions{Verbosity: 2, Format: "text"}).New(c.err)
			if err != nil {
				return err
			}
			return fail(supervisor.New(layout, config, log).Run(cmd.Context()))
		},
	}
}

func lockFile(layout cluster.Layout) string { return layout.Dir + "/supervisor.lock" }

// takeLock makes this process the cluster's only supervisor, for as long as the
// file stays open.
func takeLock(layout cluster.Layout) (*os.File, error) {
	file, err := os.OpenFile(lockFile(layout), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the supervisor's lock: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("the cluster in %s has a supervisor already", layout.Dir)
	}
	if err := errors.Join(file.Truncate(0), writeAt(file, strconv.Itoa(os.Getpid()))); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("writing the supervisor's lock: %w", err)
	}
	return file, nil
}

func writeAt(file *os.File, text string) error {
	_, err := file.WriteAt([]byte(text), 0)
	return err
}

// supervisorPID is the process id of the running supervisor, 0 when none runs.
func supervisorPID(layout cluster.Layout) int {
	file, err := os.OpenFile(lockFile(layout), os.O_RDWR, 0)
	if err != nil {
		return 0
	}
	defer func() { _ = file.Close() }()
	if unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
		return 0
	}
	text, err := os.ReadFile(lockFile(layout))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0
	}
	return pid
}
