// Package cluster says what a local cluster is made of: its files, identities,
// addresses and processes.
package cluster

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// Fixed addresses of a local cluster. All of them lie on devices of this host.
const (
	Bridge        = "sampan0"
	HostAddress   = "10.89.0.1"
	nodePrefix    = "10.89.0."
	nodePrefixLen = 24
	firstNodeHost = 10 // node-1 is 10.89.0.11
	MaxNodes      = 200

	ServiceCIDR   = "10.96.0.0/16"
	PodCIDR       = "10.244.0.0/16"
	NodeNetwork   = "10.89.0.0/24"
	ClusterDNS    = "10.96.0.10"
	ClusterDomain = "cluster.local"
	SecurePort    = 6443
	BusPort       = 4222
)

// Layout is where a cluster keeps its files.
type Layout struct {
	Dir string // absolute; ".sampan" of the checkout by default
	Bin string // absolute; where the services' binaries lie
}

// NewLayout makes dir absolute and finds the binaries beside this program.
func NewLayout(dir string) (Layout, error) {
	absolute, err := filepath.Abs(dir)
	if err != nil {
		return Layout{}, fmt.Errorf("finding %s: %w", dir, err)
	}
	self, err := os.Executable()
	if err != nil {
		return Layout{}, fmt.Errorf("finding this program: %w", err)
	}
	if self, err = filepath.EvalSymlinks(self); err != nil {
		return Layout{}, fmt.Errorf("finding this program: %w", err)
	}
	return Layout{Dir: absolute, Bin: filepath.Dir(self)}, nil
}

// PKI is the path of a certificate or key.
func (l Layout) PKI(name string) string { return filepath.Join(l.Dir, "pki", name) }

// Kubeconfig is the path of a service's kubeconfig.
func (l Layout) Kubeconfig(name string) string {
	return filepath.Join(l.Dir, "config", name+".kubeconfig")
}

// AdminKubeconfig is the path of the operator's kubeconfig.
func (l Layout) AdminKubeconfig() string { return filepath.Join(l.Dir, "kubeconfig") }

// Data is the folder of the API server's store.
func (l Layout) Data() string { return filepath.Join(l.Dir, "data") }

// Log is the path of a process's log.
func (l Layout) Log(name string) string { return filepath.Join(l.Dir, "logs", name+".log") }

// Nodes is the parent of all nodes' folders.
func (l Layout) Nodes() string { return filepath.Join(l.Dir, "nodes") }

// Node is the folder of a node's persistent data.
func (l Layout) Node(name string) string { return filepath.Join(l.Dir, "nodes", name) }

// Images is the folder of image archives that every node imports.
func (l Layout) Images() string { return filepath.Join(l.Bin, "images") }

// ConfigFile is the path of the cluster's configuration.
func (l Layout) ConfigFile() string { return filepath.Join(l.Dir, "cluster.json") }

// StatusFile is where the supervisor tells of its processes.
func (l Layout) StatusFile() string { return filepath.Join(l.Dir, "processes.json") }

// Binary is the path of a program.
func (l Layout) Binary(name string) string { return filepath.Join(l.Bin, name) }

// Run is the folder of a node's sockets and pins. It is short, for the path of
// a unix socket may have 107 bytes, and it lies in memory, for what it holds
// ends with the machine.
func Run(node string) string { return filepath.Join(RunRoot, node) }

// RunRoot is the parent of all nodes' run folders.
const RunRoot = "/run/sampan"

// Namespace is the name of a node's network namespace.
func Namespace(node string) string { return "sampan-" + node }

// NamespacePath is where it is pinned.
func NamespacePath(node string) string { return "/run/netns/" + Namespace(node) }

// CgroupRoot is the parent of all of the cluster's cgroups, below the root of
// each hierarchy.
const CgroupRoot = "sampan"

// NodeName is the name of the i-th node, from 1 on.
func NodeName(i int) string { return fmt.Sprintf("node-%d", i) }

// NodeAddress is the address of the i-th node on the bridge.
func NodeAddress(i int) net.IP {
	return net.ParseIP(fmt.Sprintf("%s%d", nodePrefix, firstNodeHost+i))
}
