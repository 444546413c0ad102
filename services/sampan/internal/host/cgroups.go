package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sampan-io/sampan/services/sampan/internal/cluster"
)

// cgroupRoots are the cluster's groups, one per mounted hierarchy (v1) or one
// (v2).
func cgroupRoots() []string {
	candidates, _ := filepath.Glob("/sys/fs/cgroup/*/" + cluster.CgroupRoot)
	candidates = append(candidates, "/sys/fs/cgroup/"+cluster.CgroupRoot)
	var roots []string
	for _, path := range candidates {
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			roots = append(roots, path)
		}
	}
	return roots
}

// CgroupProcesses are the processes in the cluster's cgroups: what runs in its
// containers.
func CgroupProcesses() ([]int, error) {
	seen := map[int]bool{}
	var pids []int
	for _, root := range cgroupRoots() {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.Name() != "cgroup.procs" {
				return ignoreGone(err)
			}
			data, err := os.ReadFile(path)
			if err != nil {
				return ignoreGone(err)
			}
			for _, line := range strings.Fields(string(data)) {
				if pid, err := strconv.Atoi(line); err == nil && !seen[pid] {
					seen[pid] = true
					pids = append(pids, pid)
				}
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("reading processes of cgroup %s: %w", root, err)
		}
	}
	return pids, nil
}

// RemoveCgroups removes the cluster's cgroups, which must be empty.
func RemoveCgroups() error {
	var problems []error
	for _, root := range cgroupRoots() {
		var dirs []string
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				dirs = append(dirs, path)
			}
			return ignoreGone(err)
		})
		problems = append(problems, err)
		for i := len(dirs) - 1; i >= 0; i-- { // children come after their parents
			if err := removeCgroup(dirs[i]); ignoreGone(err) != nil {
				problems = append(problems, fmt.Errorf("removing cgroup: %w", err))
			}
		}
	}
	return errors.Join(problems...)
}

// removeCgroup waits a moment for a group whose last process has been killed and is
// still ending.
func removeCgroup(dir string) error {
	const pause, patience = 20 * time.Millisecond, 5 * time.Second
	for deadline := time.Now().Add(patience); ; time.Sleep(pause) {
		err := os.Remove(dir)
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return err
		}
	}
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
