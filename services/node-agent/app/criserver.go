package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"github.com/sampan-io/sampan/services/internal/component"
	"github.com/sampan-io/sampan/services/node-agent/internal/network"
	"github.com/sampan-io/sampan/services/node-agent/internal/runtime"
)

// CRIServer is the built-in runtime as a program of its own: agents come and go, and
// it stays.
type CRIServer struct {
	rootDir, runDir, socket string
	cgroupRoot              string
	podCIDRs                []string
	pidsLimit               int64
	streamAddress           string
	bridge                  string
	masquerade              bool
	runtimeOptions

	cidrs []netip.Prefix
}

// NewCRIServer has the node agent's defaults.
func NewCRIServer() *CRIServer {
	return &CRIServer{
		rootDir: "/var/lib/sampan/cri", runDir: "/run/sampan/cri", cgroupRoot: "sampan-cri", bridge: "cni0",
		streamAddress: "127.0.0.1:0", masquerade: true,
	}
}

// AddFlags registers the flags.
func (c *CRIServer) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.rootDir, "root-dir", c.rootDir, "directory of images and containers")
	fs.StringVar(&c.runDir, "run-dir", c.runDir, "directory of what ends with the machine: pins of namespaces, bundles")
	fs.StringVar(&c.socket, "socket", c.socket, "path of the unix socket; empty is cri.sock below --run-dir")
	fs.StringVar(&c.cgroupRoot, "cgroup-root", c.cgroupRoot, "control group of pods whose client names none")
	fs.StringSliceVar(&c.podCIDRs, "pod-cidr", nil, "addresses of pods, one range of each family; a bridge is made for them unless --cni-conf-dir is given")
	fs.Int64Var(&c.pidsLimit, "pids-limit", c.pidsLimit, "how many processes a container may have; 0 is no limit")
	fs.StringVar(&c.streamAddress, "stream-address", c.streamAddress, "loopback address that exec, attach and port-forward are served at")
	fs.StringVar(&c.bridge, "pod-bridge", c.bridge, "name of the pods' bridge")
	fs.BoolVar(&c.masquerade, "pod-masquerade", c.masquerade, "let pods reach other networks with this machine's address")
	c.runtimeOptions.addFlags(fs)
}

// Complete refuses contradictions.
func (c *CRIServer) Complete() error {
	for flag, path := range map[string]string{"--root-dir": c.rootDir, "--run-dir": c.runDir} {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("%s: %q is not absolute", flag, path)
		}
	}
	if c.socket == "" {
		c.socket = filepath.Join(c.runDir, "cri.sock")
	}
	for _, text := range c.podCIDRs {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("--pod-cidr: %w", err)
		}
		c.cidrs = append(c.cidrs, prefix)
	}
	switch {
	case c.tools.cniConf != "" && len(c.cidrs) > 0:
		return errors.New("--pod-cidr and --cni-conf-dir exclude each other")
	case c.tools.cniConf == "" && len(c.cidrs) == 0:
		return errors.New("--pod-cidr or --cni-conf-dir is needed: pods get their addresses from it")
	}
	return nil
}

// Run serves until ctx ends. Containers go on after that.
func (c *CRIServer) Run(ctx context.Context, log *slog.Logger) error {
	config, err := c.runtimeOptions.config(log)
	if err != nil {
		return err
	}
	config.Root, config.Run, config.Socket = c.rootDir, c.runDir, c.socket
	config.CgroupParent, config.PIDsLimit = filepath.Join("/", c.cgroupRoot), c.pidsLimit
	config.StreamAddress, config.StreamIdle = c.streamAddress, 4*time.Hour
	if c.tools.cniConf == "" {
		config.Network.ConfDir = filepath.Join(c.rootDir, "cni-conf")
		err := network.WriteBridgeConfig(config.Network.ConfDir, network.BridgeConfig{
			Bridge: c.bridge, PodCIDRs: c.cidrs, DataDir: filepath.Join(c.rootDir, "cni-data"), IPMasq: c.masquerade,
		})
		if err != nil {
			return err
		}
	}
	server, err := runtime.New(config)
	if err != nil {
		return &component.UsageError{Err: fmt.Errorf("opening the container runtime: %w", err)}
	}
	return server.Run(ctx)
}
