package runtime

import (
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// subPath resolves a path inside a read-only mount and makes sure that it stays
// there. The tree cannot change, so that the answer stays true.
func subPath(root, sub string) (string, error) {
	if !filepath.IsLocal(sub) {
		return "", fmt.Errorf("%w: sub path %q leaves the volume", errInvalid, sub)
	}
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(dir)
	fd, err := unix.Openat2(dir, sub, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return "", fmt.Errorf("sub path %q: %w", sub, err)
	}
	unix.Close(fd)
	return filepath.Join(root, sub), nil
}
