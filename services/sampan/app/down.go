package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sampan-io/sampan/services/sampan/internal/cluster"
	"github.com/sampan-io/sampan/services/sampan/internal/host"
	"github.com/sampan-io/sampan/services/sampan/internal/supervisor"
)

const (
	serviceGrace   = 15 * time.Second
	containerGrace = 10 * time.Second
)

func newDown(c *command) *cobra.Command {
	var purge bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "End the cluster and leave nothing of it running",
		Long: "Ends services, containers, mounts, network namespaces, interfaces, rules and cgroups of the cluster.\n" +
			"Its objects and certificates stay in its folder, and the next up starts with them; --purge deletes them too.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			layout, err := c.layout()
			if err != nil {
				return err
			}
			if os.Geteuid() != 0 {
				return errors.New("ending a cluster needs root; run it with sudo")
			}
			if other := owner(); other != "" && other != layout.Dir {
				return fmt.Errorf("this machine runs the cluster in %s, not in %s; sampan down --dir=%s ends it", other, layout.Dir, other)
			}
			return fail(c.down(cmd.Context(), layout, purge))
		},
	}
	cmd.Flags().BoolVar(&purge, "purge", false, "delete the cluster's objects, certificates, images and logs too")
	return cmd
}

// owner is the folder of the cluster that this machine runs, "" for none.
func owner() string {
	text, err := os.ReadFile(filepath.Join(cluster.RunRoot, "owner"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// down works without a supervisor and may be repeated: each step clears what it
// finds.
func (c *command) down(ctx context.Context, layout cluster.Layout, purge bool) error {
	if err := stopSupervisors(ctx, layout); err != nil {
		return err
	}
	if err := c.stopServices(ctx, layout); err != nil {
		return err
	}
	if err := stopContainers(ctx, layout); err != nil {
		return err
	}
	problems := []error{host.RemoveMounts(layout), host.RemoveNetwork(layout), host.RemoveCgroups(), remove(layout.StatusFile())}
	if purge {
		problems = append(problems, os.RemoveAll(layout.Dir))
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	c.printf("The cluster is down.\n")
	return nil
}

// stopSupervisors ends the supervisor first, or it would start the services
// again. It is looked for by its mark and not by its lock, which one that has
// just begun does not hold yet.
func stopSupervisors(ctx context.Context, layout cluster.Layout) error {
	running, err := supervisor.Find(layout.Dir)
	if err != nil {
		return err
	}
	var pids []int
	for _, found := range running {
		if found.Name == supervisor.SupervisorName {
			pids = append(pids, found.PID)
		}
	}
	return supervisor.Stop(ctx, pids, true, serviceGrace)
}

// stopServices ends the services, the API server last so that the others can
// say their last words to it.
func (c *command) stopServices(ctx context.Context, layout cluster.Layout) error {
	running, err := supervisor.Find(layout.Dir)
	if err != nil {
		return err
	}
	var others, servers []int
	for _, found := range running {
		switch {
		case found.Binary == "apiserver":
			servers = append(servers, found.PID)
		case slices.Contains([]string{"scheduler", "controller-manager", "node-agent", "proxy"}, found.Binary):
			others = append(others, found.PID)
		}
	}
	if err := supervisor.Stop(ctx, others, true, serviceGrace); err != nil {
		return err
	}
	return supervisor.Stop(ctx, servers, true, serviceGrace)
}

// stopContainers kills what runs in containers, and their monitors.
func stopContainers(ctx context.Context, layout cluster.Layout) error {
	for range 3 { // a container may start another process while it is killed
		pids, err := host.CgroupProcesses()
		if err != nil {
			return err
		}
		left, err := supervisor.Find(layout.Dir)
		if err != nil {
			return err
		}
		for _, found := range left {
			pids = append(pids, found.PID)
		}
		if len(pids) == 0 {
			return nil
		}
		if err := supervisor.Stop(ctx, pids, false, containerGrace); err != nil {
			return err
		}
	}
	return nil
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}
