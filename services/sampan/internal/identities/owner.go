package identities

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/sampan-io/sampan/services/internal/pki"
)

// Give makes everything below the services' folders, all but the authority's and
// the operator's, a user's and group's, for services that do not run as root.
func (p Plan) Give(uid, gid int) error {
	for _, folder := range []string{"apiserver", "bus", "scheduler", "controller-manager"} {
		err := filepath.WalkDir(p.path(folder), func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				if os.IsNotExist(err) {
					return nil
				}
				return err
			}
			return os.Lchown(path, uid, gid)
		})
		if err != nil {
			return fmt.Errorf("giving %s to %d:%d: %w", p.path(folder), uid, gid, err)
		}
	}
	return nil
}

// CopyAdmin writes the operator's kubeconfig to a file that belongs to whom its
// folder belongs to.
func (p Plan) CopyAdmin(path string) error {
	content, err := os.ReadFile(p.AdminKubeconfig())
	if err != nil {
		return fmt.Errorf("reading kubeconfig: %w", err)
	}
	if err := pki.WriteFile(path, content, pki.PrivateMode); err != nil {
		return err
	}
	info, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("finding the owner of %s: %w", path, err)
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	if err := os.Chown(path, int(owner.Uid), int(owner.Gid)); err != nil {
		return fmt.Errorf("giving %s to its folder's owner: %w", path, err)
	}
	return nil
}
