package volumes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// SubPath bind-mounts a path inside a volume to a place of its own and returns
// that. The path is made as a directory if it is not there. Symlinks in it are
// followed as long as they stay inside the volume, also while a container swaps
// them: what is mounted is what was opened, and the kernel refuses to open what
// lies outside (CVE-2017-1002101, CVE-2021-25741).
func (m *Manager) SubPath(uid types.UID, volume, container string, index int, hostPath, subPath string) (string, error) {
	if !filepath.IsLocal(subPath) {
		return "", fmt.Errorf("subPath %q leaves the volume", subPath)
	}
	fd, err := openBeneath(hostPath, subPath)
	if err != nil {
		return "", fmt.Errorf("subPath %q of volume %q: %w", subPath, volume, err)
	}
	defer func() { _ = unix.Close(fd) }()
	target := filepath.Join(m.PodDir(uid), "volume-subpaths", volume, container, strconv.Itoa(index))
	if err := removeTree(target); err != nil {
		return "", err
	}
	if err := makeTarget(fd, target); err != nil {
		return "", err
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", fd), target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return "", fmt.Errorf("mounting subPath %q of volume %q: %w", subPath, volume, err)
	}
	return target, nil
}

func beneath(flags uint64) *unix.OpenHow {
	return &unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}
}

// openBeneath opens sub below root, and makes the directories that are missing.
func openBeneath(root, sub string) (int, error) {
	const created = 0o750
	dir, err := unix.Open(root, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(dir) }()
	fd, err := openRetrying(dir, sub)
	if !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	at := ""
	for _, part := range splitPath(filepath.Clean(sub)) {
		parent := at
		at = filepath.Join(at, part)
		if err := makeBeneath(dir, parent, part, created); err != nil {
			return -1, err
		}
	}
	return openRetrying(dir, sub)
}

func openRetrying(dir int, sub string) (int, error) {
	// The kernel answers EAGAIN while something is renamed on the way.
	const tries = 100
	for try := 0; ; try++ {
		fd, err := unix.Openat2(dir, sub, beneath(unix.O_PATH))
		if !errors.Is(err, unix.EAGAIN) || try == tries {
			return fd, err
		}
	}
}

func makeBeneath(dir int, parent, name string, mode uint32) error {
	if parent == "" {
		parent = "."
	}
	fd, err := openRetrying(dir, parent)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Mkdirat(fd, name, mode); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

func makeTarget(fd int, target string) error {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return err
	}
	if stat.Mode&unix.S_IFMT == unix.S_IFDIR {
		return os.MkdirAll(target, 0o750)
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	f, err := os.OpenFile(target, os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	return f.Close()
}

// CheckSubPathExpansion refuses what an expanded subPathExpr must not be.
func CheckSubPathExpansion(path string) error {
	if filepath.IsAbs(path) || strings.Contains("/"+path+"/", "/../") {
		return fmt.Errorf("subPath %q must be relative and must not contain '..'", path)
	}
	return nil
}
