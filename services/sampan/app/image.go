package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sampan-io/sampan/services/sampan/internal/archive"
	"github.com/sampan-io/sampan/services/sampan/internal/cluster"
)

func newImage(c *command) *cobra.Command {
	image := &cobra.Command{Use: "image", Short: "Bring images to nodes without a registry"}
	image.AddCommand(newImageImport(c))
	return image
}

type imageImport struct {
	*command
	nodes   []string
	rootDir string
	timeout time.Duration
}

func newImageImport(c *command) *cobra.Command {
	const patience = 5 * time.Minute
	i := &imageImport{command: c}
	cmd := &cobra.Command{
		Use:   "import ARCHIVE...",
		Short: "Import image archives on the nodes: OCI layouts and docker save's, also compressed",
		Args:  cobra.MinimumNArgs(1),
		RunE:  func(cmd *cobra.Command, args []string) error { return i.run(cmd.Context(), args) },
	}
	cmd.Flags().StringSliceVar(&i.nodes, "node", nil, "only these nodes of the cluster; may be repeated")
	cmd.Flags().StringVar(&i.rootDir, "root-dir", "", "--root-dir of a node agent on this machine, instead of the nodes of the cluster in --dir")
	cmd.Flags().DurationVar(&i.timeout, "timeout", patience, "how long to wait for an archive to be imported; the archive stays at the node")
	return cmd
}

func (i *imageImport) run(ctx context.Context, archives []string) error {
	folders, err := i.folders()
	if err != nil {
		return err
	}
	for _, path := range archives {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s is not a file", path)
		}
	}
	var errs []error
	for _, path := range archives {
		for _, folder := range folders {
			errs = append(errs, i.one(ctx, path, folder))
		}
	}
	return fail(errors.Join(errs...))
}

// folder is where a node imports from.
type folder struct{ node, dir string }

func (i *imageImport) folders() ([]folder, error) {
	if i.rootDir != "" {
		if len(i.nodes) > 0 {
			return nil, errors.New("--node and --root-dir exclude each other")
		}
		return existing([]folder{{i.rootDir, importDir(i.rootDir)}})
	}
	layout, err := i.layout()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(layout.Nodes())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no cluster in %s; sampan up makes one", layout.Dir)
	}
	if err != nil {
		return nil, err
	}
	var all []string
	for _, entry := range entries {
		all = append(all, entry.Name())
	}
	return existing(chosen(layout, all, i.nodes))
}

func chosen(layout cluster.Layout, all, wanted []string) []folder {
	if len(wanted) == 0 {
		wanted = all
	}
	var out []folder
	for _, node := range wanted {
		out = append(out, folder{node, importDir(layout.Node(node))})
	}
	return out
}

func importDir(root string) string { return filepath.Join(root, "images", "import") }

func existing(folders []folder) ([]folder, error) {
	for _, f := range folders {
		if _, err := os.Stat(f.dir); err != nil {
			return nil, fmt.Errorf("there is no node agent of %s: %w", f.node, err)
		}
	}
	if len(folders) == 0 {
		return nil, errors.New("the cluster has no nodes")
	}
	slices.SortFunc(folders, func(a, b folder) int { return strings.Compare(a.node, b.node) })
	return folders, nil
}

func (i *imageImport) one(ctx context.Context, path string, at folder) error {
	ctx, cancel := context.WithTimeout(ctx, i.timeout)
	defer cancel()
	images, err := archive.Import(ctx, path, at.dir)
	if err != nil {
		return fmt.Errorf("%s: importing %s: %w", at.node, path, err)
	}
	for _, image := range images {
		name := image.ID
		if len(image.Tags) > 0 {
			name = strings.Join(image.Tags, ", ")
		}
		i.printf("%s: %s\n", at.node, name)
	}
	return nil
}
