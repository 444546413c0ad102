package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// BuildImage makes an image of one static Go program, given by its folder below
// services/e2e, and offers it to all nodes, which import it at once.
func (c *Cluster) BuildImage(tag, program string) error {
	root := filepath.Dir(c.Bin)
	if repository, err := repositoryRoot(); err == nil {
		root = repository // SAMPAN_BIN may lie elsewhere
	}
	dir, err := os.MkdirTemp("", "sampan-image-")
	if err != nil {
		return fmt.Errorf("making folder: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary, archive := filepath.Join(dir, "program"), filepath.Join(dir, "image.tar")
	if err := runIn(filepath.Join(root, "services", "e2e"), "CGO_ENABLED=0", "go", "build", "-o", binary, "./"+program); err != nil {
		return err
	}
	if err := runIn(filepath.Join(root, "scripts", "tools"), "GOWORK=off", "go", "run", "./image", "-o", archive, "-tag", tag, "-cmd", "/program", binary+"=/program"); err != nil {
		return err
	}
	data, err := os.ReadFile(archive)
	if err != nil {
		return fmt.Errorf("reading image: %w", err)
	}
	nodes, err := filepath.Glob(filepath.Join(c.Dir, "nodes", "*"))
	if err != nil {
		return fmt.Errorf("finding nodes: %w", err)
	}
	for _, node := range nodes {
		folder := filepath.Join(node, "images", "import")
		// Renamed when it is whole, so that half of it is never imported.
		part := filepath.Join(folder, "."+program+".part")
		if err := os.WriteFile(part, data, 0o600); err != nil {
			return fmt.Errorf("offering image: %w", err)
		}
		if err := os.Rename(part, filepath.Join(folder, program+".tar")); err != nil {
			return fmt.Errorf("offering image: %w", err)
		}
	}
	return nil
}

func runIn(dir, env, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %v: %w\n%s", name, args, err, out)
	}
	return nil
}
