package runtime

import (
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/namespaces"
)

// networkUsage counts the traffic of the sandbox's interfaces; nil for a sandbox on the
// host's network, and for one that is just going.
func (s *Server) networkUsage(record *sandboxRecord) *runtimeapi.NetworkUsage {
	if hostNetwork(record.Config) {
		return nil
	}
	ns, err := netns.GetFromPath(s.namespacePath(record.ID, namespaces.Network))
	if err != nil {
		return nil
	}
	defer ns.Close()
	handle, err := netlink.NewHandleAt(ns)
	if err != nil {
		return nil
	}
	defer handle.Close()
	links, err := handle.LinkList()
	if err != nil {
		return nil
	}
	usage := &runtimeapi.NetworkUsage{Timestamp: time.Now().UnixNano()}
	for _, link := range links {
		attrs := link.Attrs()
		if attrs.Name == "lo" || attrs.Statistics == nil {
			continue
		}
		device := &runtimeapi.NetworkInterfaceUsage{
			Name: attrs.Name, RxBytes: number(attrs.Statistics.RxBytes), RxErrors: number(attrs.Statistics.RxErrors),
			TxBytes: number(attrs.Statistics.TxBytes), TxErrors: number(attrs.Statistics.TxErrors),
		}
		if attrs.Name == "eth0" {
			usage.DefaultInterface = device
		} else {
			usage.Interfaces = append(usage.Interfaces, device)
		}
	}
	return usage
}
