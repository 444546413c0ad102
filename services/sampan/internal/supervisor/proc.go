package supervisor

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// marker is the environment variable by which the processes of a cluster are
// found again: its value is the cluster's folder, a colon and the process name.
// It is in the process from its first instruction on, so no crash of the
// supervisor can lose a process.
const marker = "SAMPAN_PROCESS"

// SupervisorName is the process name of the supervisor itself.
const SupervisorName = "supervisor"

// Environment is the environment of a process of the cluster in dir.
func Environment(dir, name string) []string {
	return append(os.Environ(), marker+"="+dir+":"+name)
}

// Found is a running process of a cluster.
type Found struct {
	PID    int
	Name   string // of the service that it is or descends from
	Binary string // base name of what it runs
}

// Find lists the running processes that descend from a cluster's services: the
// services themselves (Binary is the service's) and what they started, such as
// container monitors.
func Find(dir string) ([]Found, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("reading processes: %w", err)
	}
	prefix := []byte(marker + "=" + dir + ":")
	var found []Found
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		name, ok := markedName(pid, prefix)
		if !ok {
			continue
		}
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		if err != nil {
			continue // gone meanwhile, or a zombie
		}
		found = append(found, Found{PID: pid, Name: name, Binary: strings.TrimSuffix(filepath.Base(exe), " (deleted)")})
	}
	return found, nil
}

func markedName(pid int, prefix []byte) (string, bool) {
	environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return "", false
	}
	for _, variable := range bytes.Split(environment, []byte{0}) {
		if name, ok := bytes.CutPrefix(variable, prefix); ok {
			return string(name), true
		}
	}
	return "", false
}
