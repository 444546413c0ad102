package app

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/sampan-io/sampan/services/internal/component"
	"github.com/sampan-io/sampan/services/node-agent/internal/node"
)

// findTool is the given path, or the program of that name beside this one or in
// PATH.
func findTool(given, name string) (string, error) {
	if given != "" {
		if _, err := os.Stat(given); err != nil {
			return "", &component.UsageError{Err: fmt.Errorf("--%s: %w", name, err)}
		}
		return given, nil
	}
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), name)
		if _, err := os.Stat(beside); err == nil {
			return beside, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", &component.UsageError{Err: fmt.Errorf("%s is neither beside this program nor in PATH; install it or name it with --%s", name, name)}
	}
	return path, nil
}

// findPlugins are the directories of CNI plugins.
func findPlugins(given string) []string {
	const usual = "/opt/cni/bin"
	if given != "" {
		return []string{given}
	}
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), "cni")
		if _, err := os.Stat(beside); err == nil {
			return []string{beside}
		}
	}
	return []string{usual}
}

// defaultAddress is the one that the host reaches others with. Nothing is sent to
// find it out.
func defaultAddress() (netip.Addr, error) {
	conn, err := net.Dial("udp4", "192.0.2.1:9")
	if err != nil {
		return netip.Addr{}, &component.UsageError{Err: fmt.Errorf("finding the node's address: %w; name it with --node-ip", err)}
	}
	defer func() { _ = conn.Close() }()
	address, err := netip.ParseAddrPort(conn.LocalAddr().String())
	return address.Addr(), err
}

// swapOn tells whether the machine swaps.
func swapOn() bool {
	data, err := os.ReadFile("/proc/swaps")
	if err != nil {
		return false
	}
	lines := 0
	for _, b := range data {
		if b == '\n' {
			lines++
		}
	}
	return lines > 1 // the first is the heading
}

// limitedSwap is the swap behaviour that gives containers a part of the swap.
const limitedSwap = "LimitedSwap"

// swapFor is the swap that containers may share, in bytes.
func (o *Options) swapFor(machine node.Machine) int64 {
	if o.swapBehavior != limitedSwap || machine.Info.Swap == nil {
		return 0
	}
	return *machine.Info.Swap.Capacity
}
