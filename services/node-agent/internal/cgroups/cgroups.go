// Package cgroups reads and clears control groups of version 1 and 2, directly
// in the file system.
package cgroups

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Hierarchy is where control groups are mounted.
type Hierarchy struct {
	root    string
	unified bool
}

// Detect finds out which version the host runs.
func Detect() Hierarchy { return At("/sys/fs/cgroup") }

// At looks at another mount point than the usual one.
func At(root string) Hierarchy {
	var fs unix.Statfs_t
	unified := unix.Statfs(root, &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC
	return Hierarchy{root: root, unified: unified}
}

// Like is a hierarchy of the given version in any directory, for tests.
func Like(root string, unified bool) Hierarchy { return Hierarchy{root: root, unified: unified} }

// Unified tells whether it is version 2.
func (h Hierarchy) Unified() bool { return h.unified }

// controllers of version 1 that can each have a hierarchy of its own.
func controllersV1() []string {
	return []string{"cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "hugetlb", "net_cls", "net_prio", "perf_event", "rdma", "misc", "systemd"}
}

// Path is the directory of the group for a controller of version 1; version 2 has
// one for all.
func (h Hierarchy) Path(controller, group string) string {
	if h.unified {
		return filepath.Join(h.root, group)
	}
	return filepath.Join(h.root, controller, group)
}

func (h Hierarchy) paths(group string) []string {
	if h.unified {
		return []string{h.Path("", group)}
	}
	var paths []string
	for _, controller := range controllersV1() {
		if _, err := os.Stat(filepath.Join(h.root, controller)); err == nil {
			paths = append(paths, h.Path(controller, group))
		}
	}
	if _, err := os.Stat(filepath.Join(h.root, "unified")); err == nil {
		paths = append(paths, h.Path("unified", group))
	}
	return paths
}

// PIDs lists the processes in the group and in those below it. A group that is
// not there has none.
func (h Hierarchy) PIDs(group string) ([]int, error) {
	var pids []int
	err := filepath.WalkDir(h.Path("pids", group), func(path string, entry os.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil || !entry.IsDir() {
			return err
		}
		here, err := readPIDs(filepath.Join(path, "cgroup.procs"))
		pids = append(pids, here...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listing processes of %s: %w", group, err)
	}
	return pids, nil
}

func readPIDs(path string) ([]int, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, field := range strings.Fields(string(data)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// Kill sends SIGKILL to every process in the group, again as long as they fork,
// and returns when none is left that could fork.
func (h Hierarchy) Kill(group string) error {
	if err := checkGroup(group); err != nil {
		return err
	}
	if h.unified {
		err := os.WriteFile(filepath.Join(h.Path("", group), "cgroup.kill"), []byte("1"), 0)
		if err == nil || errors.Is(err, os.ErrNotExist) {
			return nil
		}
	}
	const rounds = 100 // a fork bomb inside a pids limit is gone after a few
	for range rounds {
		pids, err := h.PIDs(group)
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("killing process %d of %s: %w", pid, group, err)
			}
		}
		waitDead(pids, time.Second)
	}
	return fmt.Errorf("processes of %s outlive SIGKILL", group)
}

// checkGroup keeps the root group, that is the whole host, from being meant by
// mistake.
func checkGroup(group string) error {
	if filepath.Clean("/"+group) == "/" {
		return errors.New("the root control group is not ours to clear")
	}
	return nil
}

// waitDead waits until each process is gone or a zombie; it tells whether some
// are alive still.
func waitDead(pids []int, limit time.Duration) bool {
	deadline := time.Now().Add(limit)
	alive := false
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		left := max(0, int(time.Until(deadline).Milliseconds()))
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, left)
		alive = alive || (err == nil && n == 0)
		unix.Close(fd)
	}
	return alive
}

// Remove removes the group and those below it, in every hierarchy. Processes must
// be gone. What is not there is no error.
func (h Hierarchy) Remove(group string) error {
	if err := checkGroup(group); err != nil {
		return err
	}
	var errs []error
	for _, path := range h.paths(group) {
		errs = append(errs, removeTree(path))
	}
	return errors.Join(errs...)
}

func removeTree(path string) error {
	entries, err := os.ReadDir(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeTree(filepath.Join(path, entry.Name())); err != nil {
				return err
			}
		}
	}
	if err := unix.Rmdir(path); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("removing control group %s: %w", path, err)
	}
	return nil
}

// OOMKills is how many processes of the group the kernel has killed for want of
// memory. A group that is gone has none.
func (h Hierarchy) OOMKills(group string) uint64 {
	name := "memory.oom_control"
	if h.unified {
		name = "memory.events"
	}
	return readKeyed(filepath.Join(h.Path("memory", group), name))["oom_kill"]
}

// readKeyed reads a file of lines "key value"; a missing file is empty.
func readKeyed(path string) map[string]uint64 {
	file, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer file.Close()
	values := map[string]uint64{}
	scanner := bufio.NewScanner(file)
	for scanner.Scan() {
		key, value, _ := strings.Cut(scanner.Text(), " ")
		if n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64); err == nil {
			values[key] = n
		}
	}
	return values
}

// HugeTLB tells whether huge pages can be limited.
func (h Hierarchy) HugeTLB() bool {
	if !h.unified {
		_, err := os.Stat(filepath.Join(h.root, "hugetlb"))
		return err == nil
	}
	available, err := os.ReadFile(filepath.Join(h.root, "cgroup.controllers"))
	return err == nil && slices.Contains(strings.Fields(string(available)), "hugetlb")
}

// SwapAccounting tells whether limits on swap can be set.
func (h Hierarchy) SwapAccounting() bool {
	if h.unified {
		return true
	}
	_, err := os.Stat(h.Path("memory", "memory.memsw.limit_in_bytes"))
	return err == nil
}
