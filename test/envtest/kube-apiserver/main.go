// Command kube-apiserver stands in a KUBEBUILDER_ASSETS folder for upstream's:
// it becomes the API server beside it, with a store under --cert-dir instead of
// the etcd that --etcd-servers names. envtest throws that directory away when
// the test ends, and the store with it.
//
// SAMPAN_APISERVER names another API server to become.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "kube-apiserver:", err)
		os.Exit(1)
	}
}

// run replaces this process by the server, so that signals reach it; it returns
// only when that fails.
func run(args []string) error {
	server, err := find()
	if err != nil {
		return err
	}
	if !slices.Contains(args, "--help") {
		if args, err = translate(args); err != nil {
			return err
		}
	}
	if err := syscall.Exec(server, append([]string{"kube-apiserver"}, args...), os.Environ()); err != nil {
		return fmt.Errorf("becoming %s: %w", server, err)
	}
	return nil
}

// find is the path of the API server.
func find() (string, error) {
	if path := os.Getenv("SAMPAN_APISERVER"); path != "" {
		return path, nil
	}
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding the API server: %w", err)
	}
	return filepath.Join(filepath.Dir(self), "sampan-apiserver"), nil
}
