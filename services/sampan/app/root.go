// Package app wires the sampan command.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sampan-io/sampan/services/internal/component"
	"github.com/sampan-io/sampan/services/sampan/internal/cluster"
)

// command carries what every subcommand needs.
type command struct {
	dir string
	out io.Writer
	err io.Writer
}

// Main runs the command line and returns the exit code: 0, 1 when something
// failed, 2 when it was refused before anything was done.
func Main(args []string, out, errOut io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := newRoot(&command{out: out, err: errOut})
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errOut)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return component.ExitOK
	}
	fmt.Fprintln(errOut, "sampan:", err)
	var failed *failure
	if errors.As(err, &failed) {
		return component.ExitFailure
	}
	return component.ExitUsage
}

// failure is an error after something was done; other errors are refusals.
type failure struct{ error }

func (f *failure) Unwrap() error { return f.error }

func fail(err error) error {
	if err == nil {
		return nil
	}
	return &failure{err}
}

func newRoot(c *command) *cobra.Command {
	root := &cobra.Command{
		Use:           "sampan",
		Short:         "A Kubernetes cluster on this machine",
		Version:       component.Version().GitVersion,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	dir := os.Getenv("SAMPAN_DIR")
	if dir == "" {
		dir = ".sampan"
	}
	root.PersistentFlags().StringVar(&c.dir, "dir", dir, "folder of the cluster's state (environment: SAMPAN_DIR)")
	root.AddCommand(newUp(c), newDown(c), newStatus(c), newKubectl(c), newCerts(c), newImage(c), newSupervise(c))
	return root
}

func (c *command) layout() (cluster.Layout, error) { return cluster.NewLayout(c.dir) }

func (c *command) printf(format string, args ...any) { fmt.Fprintf(c.out, format, args...) }
