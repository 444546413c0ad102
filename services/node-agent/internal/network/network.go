// Package network attaches pod network namespaces to the cluster's network
// through CNI plugins.
package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// ErrNotConfigured says that no network configuration has been written yet.
var ErrNotConfigured = errors.New("no CNI network configuration found")

// Config says where the plugins and their configuration are.
type Config struct {
	PluginDirs []string
	// ConfDir holds the configuration lists; the first by name is used.
	ConfDir string
	// CacheDir holds what libcni remembers of each attachment until it is undone.
	CacheDir string
}

// CNI attaches and detaches pods. It has no state of its own in memory: the
// configuration is read at each call, so that a new one counts at once.
type CNI struct {
	cfg Config
	cni *libcni.CNIConfig
}

// New checks nothing; Status tells whether pods can be attached.
func New(cfg Config) *CNI {
	return &CNI{cfg: cfg, cni: libcni.NewCNIConfigWithCacheDir(cfg.PluginDirs, cfg.CacheDir, newLeanExec())}
}

// PortMapping forwards a port of the host to the pod.
type PortMapping struct {
	HostPort      int32  `json:"hostPort"`
	ContainerPort int32  `json:"containerPort"`
	Protocol      string `json:"protocol"` // tcp, udp or sctp
	HostIP        string `json:"hostIP,omitempty"`
}

// Pod is what a plugin gets to know of a pod sandbox.
type Pod struct {
	ID        string // of the sandbox
	Namespace string
	Name      string
	UID       string
	NetNS     string // path of the pinned network namespace
	Ports     []PortMapping
}

// Attach adds the pod to the network and returns its addresses, the primary one
// first.
func (c *CNI) Attach(ctx context.Context, pod Pod) ([]netip.Addr, error) {
	list, err := c.load()
	if err != nil {
		return nil, err
	}
	result, err := c.cni.AddNetworkList(ctx, forPod(list, pod), c.runtimeConf(pod))
	if err != nil {
		return nil, fmt.Errorf("attaching to network %s: %w", list.Name, err)
	}
	current, err := types100.NewResultFromResult(result)
	if err != nil {
		return nil, fmt.Errorf("reading the result of network %s: %w", list.Name, err)
	}
	return addresses(current)
}

// Detach undoes Attach, with the configuration of that time. It succeeds when
// the pod is not attached.
func (c *CNI) Detach(ctx context.Context, pod Pod) error {
	attachments, err := c.cni.GetCachedAttachments(pod.ID)
	if err != nil {
		return fmt.Errorf("reading the attachments of %s: %w", pod.ID, err)
	}
	if len(attachments) == 0 {
		return c.detachUnknown(ctx, pod)
	}
	for _, attachment := range attachments {
		list, err := libcni.NetworkConfFromBytes(attachment.Config)
		if err != nil {
			return fmt.Errorf("reading the configuration of network %s: %w", attachment.Network, err)
		}
		rt := c.runtimeConf(pod)
		rt.IfName, rt.CapabilityArgs = attachment.IfName, attachment.CapabilityArgs
		if err := c.cni.DelNetworkList(ctx, list, rt); err != nil {
			return fmt.Errorf("detaching from network %s: %w", attachment.Network, err)
		}
	}
	return nil
}

// Attached lists the pods that are attached, as far as it was written down.
func (c *CNI) Attached() ([]string, error) {
	attachments, err := c.cni.GetCachedAttachments("")
	if err != nil {
		return nil, fmt.Errorf("reading the attachments: %w", err)
	}
	var ids []string
	for _, attachment := range attachments {
		ids = append(ids, attachment.ContainerID)
	}
	return ids, nil
}

// detachUnknown handles an attachment that was cut off before libcni could write
// it down: the address may be taken already.
func (c *CNI) detachUnknown(ctx context.Context, pod Pod) error {
	list, err := c.load()
	if errors.Is(err, ErrNotConfigured) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := c.cni.DelNetworkList(ctx, forPod(list, pod), c.runtimeConf(pod)); err != nil {
		return fmt.Errorf("detaching from network %s: %w", list.Name, err)
	}
	return nil
}

// Status returns nil when pods can be attached, else the reason.
func (c *CNI) Status() error {
	list, err := c.load()
	if err != nil {
		return err
	}
	for _, plugin := range list.Plugins {
		if !c.installed(plugin.Network.Type) {
			return fmt.Errorf("CNI plugin %q of network %s is not in %s", plugin.Network.Type, list.Name, strings.Join(c.cfg.PluginDirs, ", "))
		}
	}
	return nil
}

func (c *CNI) installed(plugin string) bool {
	return slices.ContainsFunc(c.cfg.PluginDirs, func(dir string) bool {
		info, err := os.Stat(filepath.Join(dir, plugin))
		return err == nil && info.Mode().IsRegular()
	})
}

func (c *CNI) load() (*libcni.NetworkConfigList, error) {
	files, err := libcni.ConfFiles(c.cfg.ConfDir, []string{".conflist"})
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", c.cfg.ConfDir, err)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%w in %s", ErrNotConfigured, c.cfg.ConfDir)
	}
	slices.Sort(files)
	list, err := libcni.NetworkConfFromFile(files[0])
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", files[0], err)
	}
	return list, nil
}

// forPod leaves out the port mapper for a pod without port mappings: it would run
// to do nothing, and each run of a plugin costs a pod's start milliseconds.
func forPod(list *libcni.NetworkConfigList, pod Pod) *libcni.NetworkConfigList {
	if len(pod.Ports) > 0 {
		return list
	}
	lean := *list
	lean.Plugins = slices.DeleteFunc(slices.Clone(list.Plugins), func(plugin *libcni.PluginConfig) bool {
		return plugin.Network.Capabilities["portMappings"] && plugin.Network.Type == portMapper
	})
	return &lean
}

func (c *CNI) runtimeConf(pod Pod) *libcni.RuntimeConf {
	rt := &libcni.RuntimeConf{
		ContainerID: pod.ID,
		NetNS:       pod.NetNS,
		IfName:      "eth0",
		CacheDir:    c.cfg.CacheDir,
		Args: [][2]string{
			{"IgnoreUnknown", "1"},
			{"K8S_POD_NAMESPACE", pod.Namespace},
			{"K8S_POD_NAME", pod.Name},
			{"K8S_POD_INFRA_CONTAINER_ID", pod.ID},
			{"K8S_POD_UID", pod.UID},
		},
	}
	if len(pod.Ports) > 0 {
		rt.CapabilityArgs = map[string]any{"portMappings": pod.Ports}
	}
	return rt
}

func addresses(result *types100.Result) ([]netip.Addr, error) {
	var addrs []netip.Addr
	for _, ip := range result.IPs {
		if ip.Interface != nil && isHostSide(result, *ip.Interface) {
			continue
		}
		addr, ok := netip.AddrFromSlice(ip.Address.IP)
		if !ok {
			return nil, fmt.Errorf("the network gave a malformed address %q", ip.Address.String())
		}
		addrs = append(addrs, addr.Unmap())
	}
	if len(addrs) == 0 {
		return nil, errors.New("the network gave the pod no address")
	}
	return addrs, nil
}

func isHostSide(result *types100.Result, index int) bool {
	return index >= 0 && index < len(result.Interfaces) && result.Interfaces[index].Sandbox == ""
}
