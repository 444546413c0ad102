package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"
)

// masterTitle is how the first process of nginx calls itself.
const masterTitle = "nginx: master process"

// web serves one page on the port that -p names, 80 by default.
func web(name string, args []string) int {
	if name == "nginx" && !strings.HasPrefix(os.Args[0], masterTitle) {
		path, err := os.Executable()
		if err == nil {
			err = syscall.Exec(path, append([]string{masterTitle + " nginx"}, args...), os.Environ())
		}
		fmt.Fprintln(os.Stderr, "nginx:", err)
		return 1
	}
	port := "80"
	if len(args) == 2 && args[0] == "-p" {
		port = args[1]
	}
	if err := serve(name, port); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		return 1
	}
	return 0
}

func serve(name, port string) error {
	listener, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return err
	}
	if err := os.MkdirAll("/var/run", 0o755); err != nil {
		return err
	}
	// Root may be missing, and is not needed for anything else.
	if err := os.WriteFile("/var/run/"+name+".pid", fmt.Appendf(nil, "%d\n", os.Getpid()), 0o644); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
	}
	fmt.Fprintf(os.Stderr, "%s listens on port %s\n", name, port)
	page := func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "<html><title>Welcome to %s!</title></html>\n", name)
	}
	server := &http.Server{Handler: http.HandlerFunc(page), ReadHeaderTimeout: time.Minute}
	return server.Serve(listener)
}
