package cgroups

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// hierarchies are those that the host has: version 1, version 2, or a mix.
func hierarchies(t *testing.T) map[string]Hierarchy {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: control groups")
	}
	found := map[string]Hierarchy{"main": Detect()}
	if _, err := os.Stat("/sys/fs/cgroup/unified/cgroup.procs"); err == nil {
		found["unified"] = At("/sys/fs/cgroup/unified")
	}
	return found
}

func TestKillEndsAllProcessesOfAGroupAndRemoveClearsIt(t *testing.T) {
	for name, h := range hierarchies(t) {
		t.Run(name, func(t *testing.T) {
			group := fmt.Sprintf("/sampan-cgroups-test-%d/inner", os.Getpid())
			dir := h.Path("pids", group)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = h.Remove(filepath.Dir(group)) })
			var commands []*exec.Cmd
			for range 3 {
				cmd := exec.Command("sleep", "600")
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				commands = append(commands, cmd)
				if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Append(nil, cmd.Process.Pid), 0); err != nil {
					t.Fatal(err)
				}
			}
			if pids, err := h.PIDs(filepath.Dir(group)); err != nil || len(pids) != 3 {
				t.Errorf("processes %v, %v", pids, err)
			}
			killed := make(chan error, 1)
			go func() { killed <- h.Kill(filepath.Dir(group)) }()
			for _, cmd := range commands {
				if err := cmd.Wait(); err == nil {
					t.Error("a process ended by itself")
				}
			}
			if err := <-killed; err != nil {
				t.Error(err)
			}
			if err := h.Remove(filepath.Dir(group)); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(filepath.Dir(dir)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the group is left: %v", err)
			}
		})
	}
}

func TestTheRootGroupIsNeverCleared(t *testing.T) {
	h := Hierarchy{root: t.TempDir()}
	for _, group := range []string{"", "/", "/../", "a/.."} {
		if h.Kill(group) == nil || h.Remove(group) == nil {
			t.Errorf("group %q was accepted", group)
		}
	}
}

func TestStatsAreReadFromBothVersions(t *testing.T) {
	tests := map[string]struct {
		unified bool
		files   map[string]string
	}{
		"v1": {false, map[string]string{
			"cpuacct/g/cpuacct.usage":        "5000000\n",
			"memory/g/memory.usage_in_bytes": "1000\n",
			"memory/g/memory.limit_in_bytes": "4000\n",
			"memory/g/memory.stat":           "total_inactive_file 300\ntotal_rss 500\ntotal_pgfault 7\ntotal_pgmajfault 2\n",
			"memory/g/memory.oom_control":    "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
			"pids/g/pids.current":            "4\n",
		}},
		"v2": {true, map[string]string{
			"g/cpu.stat":        "usage_usec 5000\nuser_usec 1\n",
			"g/memory.current":  "1000\n",
			"g/memory.max":      "4000\n",
			"g/memory.stat":     "inactive_file 300\nanon 500\npgfault 7\npgmajfault 2\n",
			"g/memory.events":   "oom 9\noom_kill 3\n",
			"g/pids.current":    "4\n",
			"g/memory.pressure": "some avg10=1.50 avg60=0.20 avg300=0.00 total=77\nfull avg10=0.50 avg60=0.00 avg300=0.00 total=11\n",
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			h := Hierarchy{root: t.TempDir(), unified: test.unified}
			for file, content := range test.files {
				path := filepath.Join(h.root, file)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			got, err := h.Stats("/g")
			if err != nil {
				t.Fatal(err)
			}
			got.Time = time.Time{}
			want := Stats{
				CPU: 5_000_000, MemoryUsage: 1000, MemoryWorkingSet: 700, MemoryAvailable: 3300, MemoryRSS: 500,
				PageFaults: 7, MajorPageFaults: 2, PIDs: 4,
			}
			if got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
			if n := h.OOMKills("/g"); n != 3 {
				t.Errorf("%d kills", n)
			}
			if _, err := h.Stats("/missing"); !errors.Is(err, ErrNoGroup) {
				t.Errorf("error %v", err)
			}
			pressure, found := h.Pressure("/g", "memory")
			if found != test.unified || (found && (pressure.Some.Avg10 != 1.5 || pressure.Full.Total != 11)) {
				t.Errorf("pressure %+v, %v", pressure, found)
			}
		})
	}
}
