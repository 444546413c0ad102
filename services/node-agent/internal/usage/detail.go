package usage

import (
	"bufio"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/sampan-io/sampan/services/node-agent/internal/cgroups"
)

// detail is what dashboards ask for beyond cgroups.Stats.
type detail struct {
	cache                            uint64 // bytes of files in memory
	swap                             uint64
	periods, throttledPeriods        uint64
	throttled                        uint64 // nanoseconds
	user, system                     uint64 // nanoseconds
	readBytes, writtenBytes          uint64
	reads, writes                    uint64
	oomKills                         uint64
	memoryLimit, cpuQuota, cpuPeriod uint64 // 0 is none; microseconds
	cpuShares                        uint64
}

// readDetail reads a group; what the kernel does not tell is 0.
func readDetail(h cgroups.Hierarchy, group string) detail {
	if h.Unified() {
		return readDetailUnified(h.Path("", group))
	}
	var d detail
	cpu, memory, blkio := h.Path("cpu", group), h.Path("memory", group), h.Path("blkio", group)
	stat := keyed(filepath.Join(cpu, "cpu.stat"))
	d.periods, d.throttledPeriods, d.throttled = stat["nr_periods"], stat["nr_throttled"], stat["throttled_time"]
	const tick = 1e9 / 100 // USER_HZ
	times := keyed(filepath.Join(h.Path("cpuacct", group), "cpuacct.stat"))
	d.user, d.system = times["user"]*tick, times["system"]*tick
	pages := keyed(filepath.Join(memory, "memory.stat"))
	d.cache, d.swap = pages["total_cache"], pages["total_swap"]
	d.oomKills = keyed(filepath.Join(memory, "memory.oom_control"))["oom_kill"]
	d.readBytes, d.writtenBytes = blkioSums(filepath.Join(blkio, "blkio.throttle.io_service_bytes"))
	d.reads, d.writes = blkioSums(filepath.Join(blkio, "blkio.throttle.io_serviced"))
	const unlimited = 1 << 62
	if d.memoryLimit = single(filepath.Join(memory, "memory.limit_in_bytes")); d.memoryLimit >= unlimited {
		d.memoryLimit = 0
	}
	d.cpuQuota, d.cpuPeriod = single(filepath.Join(cpu, "cpu.cfs_quota_us")), single(filepath.Join(cpu, "cpu.cfs_period_us"))
	d.cpuShares = single(filepath.Join(cpu, "cpu.shares"))
	return d
}

func readDetailUnified(dir string) detail {
	var d detail
	const microsecond = 1000
	stat := keyed(filepath.Join(dir, "cpu.stat"))
	d.periods, d.throttledPeriods, d.throttled = stat["nr_periods"], stat["nr_throttled"], stat["throttled_usec"]*microsecond
	d.user, d.system = stat["user_usec"]*microsecond, stat["system_usec"]*microsecond
	pages := keyed(filepath.Join(dir, "memory.stat"))
	d.cache, d.swap = pages["file"], single(filepath.Join(dir, "memory.swap.current"))
	d.oomKills = keyed(filepath.Join(dir, "memory.events"))["oom_kill"]
	d.memoryLimit = single(filepath.Join(dir, "memory.max"))
	io := ioSums(filepath.Join(dir, "io.stat"))
	d.readBytes, d.writtenBytes, d.reads, d.writes = io["rbytes"], io["wbytes"], io["rios"], io["wios"]
	if fields := strings.Fields(text(filepath.Join(dir, "cpu.max"))); len(fields) == 2 {
		d.cpuQuota, d.cpuPeriod = parse(fields[0]), parse(fields[1])
	}
	if weight := single(filepath.Join(dir, "cpu.weight")); weight > 0 {
		const minShares, range1, range2 = 2, 262142, 9999
		d.cpuShares = minShares + (weight-1)*range1/range2
	}
	return d
}

func text(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

func parse(s string) uint64 {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0 // "max", "-1"
	}
	return n
}

func single(path string) uint64 { return parse(text(path)) }

// keyed reads lines of "key value".
func keyed(path string) map[string]uint64 {
	out := map[string]uint64{}
	for line := range strings.Lines(text(path)) {
		if fields := strings.Fields(line); len(fields) == 2 {
			out[fields[0]] = parse(fields[1])
		}
	}
	return out
}

// blkioSums sums lines of "8:0 Read 123" over devices.
func blkioSums(path string) (read, write uint64) {
	for lines := bufio.NewScanner(strings.NewReader(text(path))); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		const want = 3
		if len(fields) != want {
			continue
		}
		switch fields[1] {
		case "Read":
			read += parse(fields[2])
		case "Write":
			write += parse(fields[2])
		}
	}
	return read, write
}

// ioSums sums lines of "8:0 rbytes=1 wbytes=2" over devices.
func ioSums(path string) map[string]uint64 {
	out := map[string]uint64{}
	for _, field := range strings.Fields(text(path)) {
		if key, value, found := strings.Cut(field, "="); found {
			out[key] += parse(value)
		}
	}
	return out
}
