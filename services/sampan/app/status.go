package app

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/sampan/internal/cluster"
	"github.com/sampan-io/sampan/services/sampan/internal/supervisor"
)

func newStatus(c *command) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the cluster's services and nodes",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			layout, err := c.layout()
			if err != nil {
				return err
			}
			_, found, err := layout.Load()
			if err != nil {
				return err
			}
			if !found {
				return fmt.Errorf("there is no cluster in %s; sampan up makes one", layout.Dir)
			}
			return fail(c.status(cmd.Context(), layout))
		},
	}
}

func (c *command) status(ctx context.Context, layout cluster.Layout) error {
	pid := supervisorPID(layout)
	if pid == 0 {
		running, err := supervisor.Find(layout.Dir)
		if err != nil {
			return err
		}
		if len(running) > 0 {
			return fmt.Errorf("%d processes run without a supervisor; sampan up adopts them", len(running))
		}
		return fmt.Errorf("the cluster in %s is down", layout.Dir)
	}
	all, err := supervisor.ReadStatus(layout)
	if err != nil {
		return err
	}
	c.printf("supervisor %d\n\n", pid)
	table := tabwriter.NewWriter(c.out, 0, 8, 3, ' ', 0)
	fmt.Fprintln(table, "SERVICE\tPID\tUP\tRESTARTS\tLAST END")
	for _, s := range all {
		up, process := "-", "-"
		if s.PID != 0 && !ended(s.PID) {
			up, process = time.Since(s.Started).Round(time.Second).String(), fmt.Sprint(s.PID)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%s\n", s.Name, process, up, s.Restarts, s.Last)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	return c.nodes(ctx, layout)
}

func (c *command) nodes(ctx context.Context, layout cluster.Layout) error {
	client, err := adminClient(layout)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("asking the API server for its nodes: %w", err)
	}
	c.printf("\n")
	table := tabwriter.NewWriter(c.out, 0, 8, 3, ' ', 0)
	fmt.Fprintln(table, "NODE\tREADY\tPODS")
	for _, node := range nodes.Items {
		fmt.Fprintf(table, "%s\t%t\t%s\n", node.Name, isReady(&node), node.Spec.PodCIDR)
	}
	return table.Flush()
}
