package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/sampan-io/sampan/services/sampan/internal/cluster"
	"github.com/sampan-io/sampan/services/sampan/internal/host"
	"github.com/sampan-io/sampan/services/sampan/internal/supervisor"
)

func newUp(c *command) *cobra.Command {
	var nodes int
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start a cluster and wait until its nodes are Ready",
		Long: "Starts the five services under a supervisor that goes on in the background, each node in a network namespace of its own.\n" +
			"A cluster that was there before comes up with what it had, and services that run without a supervisor are adopted.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			layout, err := c.layout()
			if err != nil {
				return err
			}
			config, _, err := layout.Load()
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("nodes") || config.Nodes == 0 {
				config.Nodes = nodes
			}
			return c.up(cmd.Context(), layout, config, timeout)
		},
	}
	cmd.Flags().IntVar(&nodes, "nodes", 1, "number of nodes")
	cmd.Flags().DurationVar(&timeout, "timeout", 2*time.Minute, "how long to wait for the nodes")
	return cmd
}

func (c *command) up(ctx context.Context, layout cluster.Layout, config cluster.Config, timeout time.Duration) error {
	if err := config.Validate(); err != nil {
		return err
	}
	if pid := supervisorPID(layout); pid != 0 {
		return fmt.Errorf("the cluster in %s is already running (supervisor %d); sampan status shows it, sampan down ends it", layout.Dir, pid)
	}
	running, err := supervisor.Find(layout.Dir)
	if err != nil {
		return err
	}
	if len(running) == 0 {
		if err := host.Preflight(layout); err != nil {
			return err
		}
	} else {
		c.printf("adopting %d running processes\n", len(running))
	}
	if err := claimHost(layout); err != nil {
		return err
	}
	began := time.Now()
	if err := c.prepare(layout, config); err != nil {
		return fail(err)
	}
	if err := startSupervisor(layout); err != nil {
		return fail(err)
	}
	wait, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := c.await(wait, layout, config, began); err != nil {
		return fail(err)
	}
	c.printf("\nThe cluster is up. Next:\n\n  export KUBECONFIG=%s\n  kubectl get nodes\n", layout.AdminKubeconfig())
	return nil
}

// claimHost refuses a second cluster on this machine: addresses, names and ports
// are fixed.
func claimHost(layout cluster.Layout) error {
	path := filepath.Join(cluster.RunRoot, "owner")
	owner, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return fmt.Errorf("reading %s: %w", path, err)
	case strings.TrimSpace(string(owner)) != layout.Dir:
		return fmt.Errorf("this machine runs the cluster in %s; sampan down --dir=%s ends it", strings.TrimSpace(string(owner)), strings.TrimSpace(string(owner)))
	default:
		return nil
	}
	if err := os.MkdirAll(cluster.RunRoot, 0o755); err != nil {
		return fmt.Errorf("making folder: %w", err)
	}
	return os.WriteFile(path, []byte(layout.Dir+"\n"), 0o644)
}

// prepare makes files, network and mounts of the cluster; what is there stays.
func (c *command) prepare(layout cluster.Layout, config cluster.Config) error {
	if err := os.MkdirAll(layout.Dir, 0o755); err != nil {
		return fmt.Errorf("making folder: %w", err)
	}
	if err := layout.Store(config); err != nil {
		return err
	}
	if err := layout.EnsureIdentities(config); err != nil {
		return err
	}
	if err := host.EnsureNetwork(layout, config); err != nil {
		return err
	}
	if err := host.EnsureShared(layout); err != nil {
		return err
	}
	for i := 1; i <= config.Nodes; i++ {
		for _, dir := range []string{layout.Node(cluster.NodeName(i)), cluster.Run(cluster.NodeName(i))} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return fmt.Errorf("making folder: %w", err)
			}
		}
		if err := offerImages(layout, cluster.NodeName(i)); err != nil {
			return err
		}
	}
	return nil
}

// offerImages puts the image archives that were built here into the folder that
// the node's agent imports from.
func offerImages(layout cluster.Layout, node string) error {
	archives, err := filepath.Glob(filepath.Join(layout.Images(), "*.tar"))
	if err != nil {
		return err
	}
	into := filepath.Join(layout.Node(node), "images", "import")
	if err := os.MkdirAll(into, 0o700); err != nil {
		return fmt.Errorf("making folder: %w", err)
	}
	for _, archive := range archives {
		if err := copyFile(archive, filepath.Join(into, filepath.Base(archive))); err != nil {
			return fmt.Errorf("offering image %s to %s: %w", filepath.Base(archive), node, err)
		}
	}
	return nil
}

// copyFile makes the copy appear whole: the agent watches the folder.
func copyFile(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	hidden := filepath.Join(filepath.Dir(to), "."+filepath.Base(to)+".part")
	target, err := os.OpenFile(hidden, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err := io.Copy(target, source); err != nil {
		return errors.Join(err, target.Close(), os.Remove(hidden))
	}
	if err := target.Close(); err != nil {
		return err
	}
	return os.Rename(hidden, to)
}

// startSupervisor runs this program again, detached, as the supervisor.
func startSupervisor(layout cluster.Layout) error {
	log, err := os.OpenFile(layout.Log("supervisor"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("opening log: %w", err)
	}
	defer func() { _ = log.Close() }()
	_ = os.Remove(layout.StatusFile()) // of an earlier supervisor
	cmd := exec.Command(layout.Binary("sampan"), "supervise", "--dir="+layout.Dir)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, "/"
	cmd.Env = supervisor.Environment(layout.Dir, supervisor.SupervisorName)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the supervisor: %w", err)
	}
	return cmd.Process.Release()
}

// ended says whether a process id is free.
func ended(pid int) bool { return unix.Kill(pid, 0) != nil }
