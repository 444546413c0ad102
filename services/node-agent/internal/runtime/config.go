package runtime

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/sampan-io/sampan/services/node-agent/internal/network"
)

// Config is what a Server is made of. Root, Run, Runc and Conmon are needed; the
// rest has defaults.
type Config struct {
	// Root is the persistent directory: images, records and writable layers.
	Root string
	// Run is for what a reboot may clear: bundles, pins of namespaces, runc's state.
	// Servers that share a host need their own.
	Run string
	// Socket is the path of the unix socket that Run serves the CRI on; empty for none.
	Socket string

	Runc string // path of the runc binary
	// Handlers are further OCI runtimes with runc's command line, such as crun, by the
	// name that a RuntimeClass gives; the value is the binary's path.
	Handlers map[string]string
	Conmon   string // path of the conmon binary, 2.1 or later
	Pause    string // path of a static program that reaps and waits, for shared PID namespaces; empty: those are refused

	Network network.Config
	// CgroupParent is the control group of pods whose sandbox names none; default
	// /sampan.
	CgroupParent string
	// PIDsLimit is the default for a container; 0 is none.
	PIDsLimit int64
	// StreamAddress is where exec, attach and port-forward are served, with a random
	// port by default; it must be a loopback address.
	StreamAddress string
	StreamIdle    time.Duration // default 4 hours

	// HostsDir holds registry configuration in containerd's form.
	HostsDir     string
	PinnedImages []string

	// Observe is told how long each step of a pod's start took; nil is nobody. The steps
	// are named in steps.go.
	Observe func(step string, took time.Duration) `json:"-"`

	Log *slog.Logger
}

func (c Config) withDefaults() (Config, error) {
	if c.Root == "" || c.Run == "" {
		return c, errors.New("the runtime needs a root and a run directory")
	}
	for _, path := range []string{c.Root, c.Run} {
		if !filepath.IsAbs(path) {
			return c, fmt.Errorf("directory %q is not absolute", path)
		}
	}
	for _, tool := range slices.Concat([]string{c.Runc, c.Conmon}, slices.Collect(maps.Values(c.Handlers))) {
		if info, err := os.Stat(tool); err != nil || info.Mode()&0o111 == 0 {
			return c, fmt.Errorf("%q is not a program", tool)
		}
	}
	if c.CgroupParent == "" {
		c.CgroupParent = "/sampan"
	}
	if c.StreamAddress == "" {
		c.StreamAddress = "127.0.0.1:0"
	}
	if c.StreamIdle == 0 {
		c.StreamIdle = 4 * time.Hour
	}
	if c.Network.CacheDir == "" {
		c.Network.CacheDir = filepath.Join(c.Root, "cni")
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return c, nil
}

// layout of the directories
func (c Config) imageRoot() string         { return filepath.Join(c.Root, "images") }
func (c Config) sandboxRecords() string    { return filepath.Join(c.Root, "sandboxes") }
func (c Config) containerRecords() string  { return filepath.Join(c.Root, "containers") }
func (c Config) writable(id string) string { return filepath.Join(c.Root, "writable", id) }
func (c Config) handlerRoot(name string) string {
	return filepath.Join(c.Run, "handlers", name)
}
func (c Config) runcRoot() string              { return filepath.Join(c.Run, "runc") }
func (c Config) exitDir() string               { return filepath.Join(c.Run, "exits") }
func (c Config) execDir() string               { return filepath.Join(c.Run, "exec") }
func (c Config) bundle(id string) string       { return filepath.Join(c.Run, "containers", id) }
func (c Config) sandboxDir(id string) string   { return filepath.Join(c.Run, "sandboxes", id) }
func (c Config) pins(id string) string         { return filepath.Join(c.Run, "sandboxes", id, "ns") }
func (c Config) sharedMemory(id string) string { return filepath.Join(c.Run, "sandboxes", id, "shm") }
