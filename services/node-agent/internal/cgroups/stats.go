package cgroups

import (
	"bufio"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Stats is the use of resources by a group.
type Stats struct {
	Time time.Time
	CPU  uint64 // nanoseconds since the group was made

	MemoryUsage      uint64 // bytes, with caches
	MemoryWorkingSet uint64 // without what can be dropped at once
	MemoryAvailable  uint64 // up to the limit; 0 without one
	MemoryRSS        uint64
	PageFaults       uint64
	MajorPageFaults  uint64
	SwapUsage        uint64
	SwapAvailable    uint64

	PIDs uint64
}

// ErrNoGroup says that the group is not there.
var ErrNoGroup = errors.New("no such control group")

// Stats reads the use of the group.
func (h Hierarchy) Stats(group string) (Stats, error) {
	if _, err := os.Stat(h.Path("memory", group)); err != nil {
		return Stats{}, ErrNoGroup
	}
	stats := Stats{Time: time.Now()}
	if h.unified {
		h.readUnified(group, &stats)
	} else {
		h.readV1(group, &stats)
	}
	return stats, nil
}

func (h Hierarchy) readV1(group string, stats *Stats) {
	stats.CPU = readNumber(filepath.Join(h.Path("cpuacct", group), "cpuacct.usage"))
	dir := h.Path("memory", group)
	detail := readKeyed(filepath.Join(dir, "memory.stat"))
	stats.MemoryUsage = readNumber(filepath.Join(dir, "memory.usage_in_bytes"))
	stats.MemoryWorkingSet = less(stats.MemoryUsage, detail["total_inactive_file"])
	stats.MemoryRSS = detail["total_rss"]
	stats.PageFaults, stats.MajorPageFaults = detail["total_pgfault"], detail["total_pgmajfault"]
	stats.SwapUsage = detail["total_swap"]
	stats.MemoryAvailable = available(readNumber(filepath.Join(dir, "memory.limit_in_bytes")), stats.MemoryWorkingSet)
	stats.PIDs = readNumber(filepath.Join(h.Path("pids", group), "pids.current"))
}

func (h Hierarchy) readUnified(group string, stats *Stats) {
	dir := h.Path("", group)
	stats.CPU = readKeyed(filepath.Join(dir, "cpu.stat"))["usage_usec"] * 1000
	detail := readKeyed(filepath.Join(dir, "memory.stat"))
	stats.MemoryUsage = readNumber(filepath.Join(dir, "memory.current"))
	stats.MemoryWorkingSet = less(stats.MemoryUsage, detail["inactive_file"])
	stats.MemoryRSS = detail["anon"]
	stats.PageFaults, stats.MajorPageFaults = detail["pgfault"], detail["pgmajfault"]
	stats.SwapUsage = readNumber(filepath.Join(dir, "memory.swap.current"))
	stats.MemoryAvailable = available(readNumber(filepath.Join(dir, "memory.max")), stats.MemoryWorkingSet)
	stats.SwapAvailable = available(readNumber(filepath.Join(dir, "memory.swap.max")), stats.SwapUsage)
	stats.PIDs = readNumber(filepath.Join(dir, "pids.current"))
}

func less(a, b uint64) uint64 {
	if a < b {
		return 0
	}
	return a - b
}

// available takes no limit for none: version 1 writes it as the largest number of
// pages, version 2 as "max".
func available(limit, used uint64) uint64 {
	const unlimited = 1 << 62
	if limit == 0 || limit >= unlimited {
		return 0
	}
	return less(limit, used)
}

func readNumber(path string) uint64 {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// Pressure is how long processes waited for a resource; see the kernel's
// documentation of pressure stall information.
type Pressure struct{ Some, Full PressureShare }

// PressureShare is in percent over the last seconds, and in total microseconds.
type PressureShare struct {
	Avg10, Avg60, Avg300 float64
	Total                uint64
}

// Pressure reads the pressure of "cpu", "memory" or "io"; version 2 only. Found is
// false when the kernel does not say.
func (h Hierarchy) Pressure(group, resource string) (pressure Pressure, found bool) {
	if !h.unified {
		return Pressure{}, false
	}
	file, err := os.Open(filepath.Join(h.Path("", group), resource+".pressure"))
	if err != nil {
		return Pressure{}, false
	}
	defer file.Close()
	scanner := bufio.NewScanner(file)
	for scanner.Scan() {
		kind, rest, _ := strings.Cut(scanner.Text(), " ")
		share := parsePressure(rest)
		if kind == "full" {
			pressure.Full = share
		} else {
			pressure.Some = share
		}
		found = true
	}
	return pressure, found
}

func parsePressure(line string) PressureShare {
	var share PressureShare
	for _, field := range strings.Fields(line) {
		key, value, _ := strings.Cut(field, "=")
		number, err := strconv.ParseFloat(value, 64)
		if err != nil {
			continue
		}
		switch key {
		case "avg10":
			share.Avg10 = number
		case "avg60":
			share.Avg60 = number
		case "avg300":
			share.Avg300 = number
		case "total":
			share.Total = uint64(number)
		}
	}
	return share
}
