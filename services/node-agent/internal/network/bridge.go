package network

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
)

const portMapper = "portmap"

// BridgeConfig describes the node's pod network: a bridge whose ports are the
// pods, with addresses from the node's pod CIDRs.
type BridgeConfig struct {
	Name     string         // of the network; default "sampan"
	Bridge   string         // interface name; default "cni0"
	PodCIDRs []netip.Prefix // at most one of each family
	// DataDir holds the addresses given out. Agents that share a host must not share it.
	DataDir string
	MTU     int  // 0 leaves it to the kernel
	IPMasq  bool // masquerade what leaves for other networks
}

// WriteBridgeConfig writes the configuration list into dir, where a CNI with that
// ConfDir finds it at its next call. It leaves an equal file alone.
func WriteBridgeConfig(dir string, cfg BridgeConfig) error {
	data, err := json.MarshalIndent(cfg.list(), "", "  ")
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "10-sampan.conflist")
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making the CNI configuration directory: %w", err)
	}
	tmp := filepath.Join(dir, ".10-sampan.tmp")
	if err := os.WriteFile(tmp, data, 0o644); err != nil {
		return fmt.Errorf("writing the CNI configuration: %w", err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("replacing the CNI configuration: %w", err)
	}
	return nil
}

func (cfg BridgeConfig) list() map[string]any {
	if cfg.Name == "" {
		cfg.Name = "sampan"
	}
	if cfg.Bridge == "" {
		cfg.Bridge = "cni0"
	}
	var ranges [][]map[string]string
	var routes []map[string]string
	for _, cidr := range cfg.PodCIDRs {
		ranges = append(ranges, []map[string]string{{"subnet": cidr.Masked().String()}})
		if cidr.Addr().Is4() {
			routes = append(routes, map[string]string{"dst": "0.0.0.0/0"})
		} else {
			routes = append(routes, map[string]string{"dst": "::/0"})
		}
	}
	bridge := map[string]any{
		"type":        "bridge",
		"bridge":      cfg.Bridge,
		"isGateway":   true,
		"ipMasq":      cfg.IPMasq,
		"hairpinMode": true,
		"ipam": map[string]any{
			"type":    "host-local",
			"dataDir": cfg.DataDir,
			"ranges":  ranges,
			"routes":  routes,
		},
	}
	if cfg.MTU > 0 {
		bridge["mtu"] = cfg.MTU
	}
	return map[string]any{
		"cniVersion": "1.0.0",
		"name":       cfg.Name,
		"plugins": []any{
			bridge,
			map[string]any{"type": portMapper, "capabilities": map[string]bool{"portMappings": true}},
		},
	}
}
