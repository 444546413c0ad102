package main

import (
	"fmt"
	"os"
	"strings"
)

// stay prints the environment and what a path is, and goes on.
func stay(args []string) {
	if args[0] == "env" {
		fmt.Println(strings.Join(os.Environ(), "\n"))
		args = args[1:]
	}
	for _, path := range args {
		what := "missing"
		if info, err := os.Stat(path); err == nil {
			what = "a file"
			if info.Mode()&os.ModeDevice != 0 {
				what = "a device"
			}
		}
		fmt.Println(path, "is", what)
	}
	forever()
}
