package main

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
)

// translate takes the flags of etcd out of a command line of kube-apiserver and
// says where the store is instead. Flags that are given more than once count
// as their last.
func translate(args []string) ([]string, error) {
	certDir := ""
	var out []string
	for i := 0; i < len(args); i++ {
		name, value, joined := strings.Cut(args[i], "=")
		name = strings.TrimLeft(name, "-")
		takesNext := !joined && i+1 < len(args) && !strings.HasPrefix(args[i+1], "-")
		switch {
		case slices.Contains(ofEtcd(), name):
			if takesNext {
				i++
			}
			continue
		case name == "cert-dir" && joined:
			certDir = value
		case name == "cert-dir" && takesNext:
			certDir = args[i+1]
		}
		out = append(out, args[i])
	}
	if certDir == "" {
		return nil, errors.New("--cert-dir is missing: the store is kept in it")
	}
	store := "--data-dir=" + filepath.Join(certDir, "sampan-store")
	return append(out, store, "--unsafe-no-fsync", "--nats-listen-address=none", "--cluster-dns-service=false"), nil
}

// ofEtcd are the flags that say how etcd is reached; all take a value.
func ofEtcd() []string {
	return []string{"etcd-cafile", "etcd-certfile", "etcd-compaction-interval", "etcd-keyfile", "etcd-prefix", "etcd-servers", "etcd-servers-overrides"}
}
