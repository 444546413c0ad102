package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// processes calls fn for each process but this one with its short name.
func processes(fn func(pid int, name string)) {
	files, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return
	}
	for _, file := range files {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil || pid == os.Getpid() {
			continue
		}
		if data, err := os.ReadFile(file); err == nil {
			fn(pid, string(bytes.TrimSpace(data)))
		}
	}
}

// pgrep prints the processes whose name has the word in it.
func pgrep(args []string) int {
	found := 1
	processes(func(pid int, name string) {
		if len(args) > 0 && strings.Contains(name, args[0]) {
			fmt.Println(pid)
			found = 0
		}
	})
	return found
}

// pidof prints the processes that have one of the names.
func pidof(args []string) int {
	var pids []string
	processes(func(pid int, name string) {
		for _, arg := range args {
			if name == arg {
				pids = append(pids, strconv.Itoa(pid))
			}
		}
	})
	if len(pids) == 0 {
		return 1
	}
	fmt.Println(strings.Join(pids, " "))
	return 0
}

// ipcs lists shared memory.
func ipcs([]string) int {
	data, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil {
		fmt.Fprintln(os.Stderr, "ipcs:", err)
		return 1
	}
	fmt.Println("------ Shared Memory Segments --------\nkey        shmid      perms      bytes")
	for _, line := range strings.Split(string(data), "\n")[1:] {
		if fields := strings.Fields(line); len(fields) > 3 {
			fmt.Printf("%-10s %-10s %-10s %s\n", fields[0], fields[1], fields[2], fields[3])
		}
	}
	return 0
}
