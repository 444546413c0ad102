package eviction

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Observation is how much of a signal there is.
type Observation struct{ Available, Capacity int64 }

// Machine observes this one.
type Machine struct {
	Root   string // directory on the node's file system
	Images string // directory of images and writable layers
	// Memory is what the machine has, and what of it is in use and not to be had back
	// at once, in bytes.
	Memory func() (capacity, used int64, err error)
}

// Observe reads all signals; one that cannot be read is missing.
func (m Machine) Observe() map[Signal]Observation {
	out := map[Signal]Observation{}
	if capacity, used, err := m.Memory(); err == nil {
		out[MemoryAvailable] = Observation{Available: max(capacity-used, 0), Capacity: capacity}
	}
	for _, fs := range []struct {
		dir           string
		bytes, inodes Signal
	}{{m.Root, NodeFsAvailable, NodeFsInodesFree}, {m.Images, ImageFsAvailable, ImageFsInodesFree}} {
		var stat unix.Statfs_t
		if unix.Statfs(fs.dir, &stat) != nil {
			continue
		}
		out[fs.bytes] = Observation{Available: int64(stat.Bavail) * stat.Bsize, Capacity: int64(stat.Blocks) * stat.Bsize}
		if stat.Files > 0 { // some file systems have no table of inodes
			out[fs.inodes] = Observation{Available: int64(stat.Ffree), Capacity: int64(stat.Files)}
		}
	}
	if most, now, known := processes(); known {
		out[PIDAvailable] = Observation{Available: max(most-now, 0), Capacity: most}
	}
	return out
}

// processes are how many the kernel allows and has.
func processes() (most, now int64, known bool) {
	for _, path := range []string{"/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"} {
		if n, ok := readNumber(path); ok && (most == 0 || n < most) {
			most = n
		}
	}
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil || most == 0 {
		return 0, 0, false
	}
	fields := strings.Fields(string(data)) // "0.1 0.2 0.3 running/all last"
	const tasks = 3
	if len(fields) <= tasks {
		return 0, 0, false
	}
	_, all, _ := strings.Cut(fields[tasks], "/")
	now, err = strconv.ParseInt(all, 10, 64)
	return most, now, err == nil
}

func readNumber(path string) (int64, bool) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	return n, err == nil
}
