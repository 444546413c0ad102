package app

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/spf13/cobra"
)

func newKubectl(c *command) *cobra.Command {
	return &cobra.Command{
		Use:                "kubectl [ARGUMENTS]",
		Short:              "Run kubectl against the cluster",
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			layout, err := c.layout()
			if err != nil {
				return err
			}
			if _, err := os.Stat(layout.AdminKubeconfig()); errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("there is no cluster in %s; sampan up makes one", layout.Dir)
			}
			if err := os.Setenv("KUBECONFIG", layout.AdminKubeconfig()); err != nil {
				return err
			}
			binary := layout.Binary("kubectl")
			if err := syscall.Exec(binary, append([]string{"kubectl"}, args...), os.Environ()); err != nil {
				return fmt.Errorf("running %s: %w", binary, err)
			}
			return nil
		},
	}
}
