package monitor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// KillTree kills the process, those below it, and those of its session that have been
// left by their parents. It goes over them until no more are found, since they may
// fork meanwhile.
func KillTree(pid int) {
	const rounds = 10
	session := sessionOf(pid)
	for range rounds {
		tree := family(pid, session)
		if len(tree) == 0 {
			return
		}
		for _, member := range tree {
			if err := unix.Kill(member, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return
			}
		}
	}
}

func sessionOf(pid int) int {
	session, err := unix.Getsid(pid)
	if err != nil || session != pid {
		return 0 // it leads none of its own
	}
	return session
}

// family lists the living of the tree, parents first.
func family(root, session int) []int {
	var tree []int
	if _, err := Find(root); err == nil {
		tree = append(tree, root)
	}
	for i := 0; i < len(tree); i++ {
		tree = append(tree, children(tree[i])...)
	}
	if session == 0 {
		return tree
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return tree
	}
	known := map[int]bool{}
	for _, pid := range tree {
		known[pid] = true
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || known[pid] {
			continue
		}
		if sid, err := unix.Getsid(pid); err == nil && sid == session {
			if _, err := Find(pid); err == nil {
				tree = append(tree, pid)
			}
		}
	}
	return tree
}

func children(pid int) []int {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil
	}
	var pids []int
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for _, field := range strings.Fields(string(data)) {
			if child, err := strconv.Atoi(field); err == nil {
				pids = append(pids, child)
			}
		}
	}
	return pids
}
