// Package host prepares this machine for a local cluster and clears away what
// the cluster leaves: the bridge, network namespaces, mounts, cgroups and rules.
package host

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"github.com/sampan-io/sampan/services/sampan/internal/cluster"
)

// tools are the programs that the services run, and Debian's packages of them.
var tools = map[string]string{
	"iptables-restore": "iptables",
	"iptables-save":    "iptables",
	"iptables":         "iptables",
	"conmon":           "conmon",
}

// Preflight says in one error why a cluster cannot start here, nil when it can.
func Preflight(layout cluster.Layout) error {
	if os.Geteuid() != 0 {
		return errors.New("a cluster needs root: it makes network namespaces, mounts and containers; run it with sudo")
	}
	var packages, missing []string
	for tool, from := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			missing = append(missing, tool)
			packages = append(packages, from)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("missing tools: %s; on Debian: apt-get install %s", strings.Join(missing, ", "), strings.Join(unique(packages), " "))
	}
	for _, binary := range []string{"apiserver", "scheduler", "controller-manager", "node-agent", "proxy", "runc", "cni/bridge", "cni/host-local", "cni/loopback"} {
		if _, err := os.Stat(layout.Binary(binary)); err != nil {
			return fmt.Errorf("missing program %s; run make build", layout.Binary(binary))
		}
	}
	return freePort(cluster.SecurePort)
}

func freePort(port int) error {
	listener, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(port)))
	switch {
	case err == nil:
		return listener.Close()
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("port %d is in use by another process; the API server needs it", port)
	default:
		return fmt.Errorf("port %d cannot be used: %w", port, err)
	}
}

func unique(list []string) []string {
	seen := map[string]bool{}
	var out []string
	for _, item := range list {
		if !seen[item] {
			seen[item] = true
			out = append(out, item)
		}
	}
	return out
}
