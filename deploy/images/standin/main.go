// Command standin is the program in the images that stand in for those of the CRI
// validation suite, which come from registries that a test cannot count on. It goes
// by the name that it is called with, as busybox does, and is what busybox as
// distributions build it is not: a shell that runs every command from its file.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	name := filepath.Base(os.Args[0])
	if strings.HasPrefix(os.Args[0], masterTitle) {
		name = "nginx"
	}
	tools := map[string]func(args []string) int{
		"sh": shell, "ipcs": ipcs, "pgrep": pgrep, "pidof": pidof, "nnp": effectiveUser,
		"nginx": func(args []string) int { return web("nginx", args) }, "httpd": func(args []string) int { return web("httpd", args) },
	}
	tool, known := tools[name]
	if !known {
		fmt.Fprintf(os.Stderr, "standin: no such tool: %s\n", name)
		os.Exit(notFound)
	}
	os.Exit(tool(os.Args[1:]))
}

// effectiveUser tells whether the set-user-id bit of its file had an effect.
func effectiveUser([]string) int {
	fmt.Printf("Effective uid: %d\n", os.Geteuid())
	return 0
}
