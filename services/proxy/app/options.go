// Package app wires the proxy.
package app

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/sampan-io/sampan/services/internal/client"
	"github.com/sampan-io/sampan/services/proxy/internal/routes"
)

// Options are the proxy's flags, under kube-proxy's names where it has them.
type Options struct {
	Client   client.Options
	Bus      BusOptions
	Config   string // a KubeProxyConfiguration file
	NodeName string
	Cleanup  bool

	ProxyMode          string
	ClusterCIDR        string
	ServiceCIDR        string
	MasqueradeAll      bool
	MasqueradeBit      int
	SyncPeriod         time.Duration
	MinSyncPeriod      time.Duration
	NodePortAddresses  []string
	AllowExternalIPs   bool
	PodNetwork         string
	HealthzBindAddress string
	MetricsBindAddress string

	ClusterDNS    string
	ClusterDomain string
	ResolvConf    string

	// checkPause is how many times as long as a look for foreign changes took the
	// pause after it is at least: with very many Services it is done less often.
	checkPause int

	flags  *pflag.FlagSet
	parsed parsed
}

// parsed are flags in their working form.
type parsed struct {
	clusterCIDR, serviceCIDR netip.Prefix
	nodePorts                []netip.Prefix
	podNetwork               routes.Mode
	dns                      netip.Addr
}

// New has kube-proxy's defaults.
func New() *Options {
	return &Options{
		ProxyMode: "iptables", ServiceCIDR: "10.96.0.0/16", MasqueradeBit: 14, SyncPeriod: 30 * time.Second, PodNetwork: string(routes.Auto),
		HealthzBindAddress: "0.0.0.0:10256", MetricsBindAddress: "127.0.0.1:10249",
		checkPause: 100,
		ClusterDNS: "10.96.0.10", ClusterDomain: "cluster.local", ResolvConf: "/etc/resolv.conf",
	}
}

// AddFlags registers the flags.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	o.flags = fs
	o.Client.AddFlags(fs)
	o.Bus.addFlags(fs)
	fs.StringVar(&o.Config, "config", o.Config, "KubeProxyConfiguration file; flags on the command line win over it")
	fs.StringVar(&o.NodeName, "hostname-override", o.NodeName, "name of the node; default the host name")
	fs.BoolVar(&o.Cleanup, "cleanup", o.Cleanup, "remove the rules, routes and devices of the proxy and exit")
	fs.StringVar(&o.ProxyMode, "proxy-mode", o.ProxyMode, `how Services are forwarded; only "iptables" is supported`)
	fs.StringVar(&o.ClusterCIDR, "cluster-cidr", o.ClusterCIDR, "range of all pods; what comes to Services from elsewhere is masqueraded")
	fs.StringVar(&o.ServiceCIDR, "service-cluster-ip-range", o.ServiceCIDR, "range of cluster IPs, kept on this host; empty leaves routing alone")
	fs.BoolVar(&o.MasqueradeAll, "masquerade-all", o.MasqueradeAll, "masquerade all traffic to cluster IPs")
	fs.IntVar(&o.MasqueradeBit, "iptables-masquerade-bit", o.MasqueradeBit, "bit of the packet mark for traffic to masquerade, 0 to 31")
	fs.DurationVar(&o.SyncPeriod, "iptables-sync-period", o.SyncPeriod, "pause between looks for foreign changes of the rules")
	fs.DurationVar(&o.MinSyncPeriod, "iptables-min-sync-period", o.MinSyncPeriod, "shortest pause between two syncs; 0 syncs at once")
	fs.StringSliceVar(&o.NodePortAddresses, "nodeport-addresses", o.NodePortAddresses, "ranges of node addresses that answer NodePorts; default all but loopback")
	fs.BoolVar(&o.AllowExternalIPs, "allow-external-ips", o.AllowExternalIPs, "forward spec.externalIPs of Services, with which any tenant can claim any address (CVE-2020-8554)")
	fs.StringVar(&o.PodNetwork, "pod-network", o.PodNetwork, "how pods of other nodes are reached: auto, routes, vxlan, none")
	fs.StringVar(&o.HealthzBindAddress, "healthz-bind-address", o.HealthzBindAddress, "address of /healthz; empty serves none")
	fs.StringVar(&o.MetricsBindAddress, "metrics-bind-address", o.MetricsBindAddress, "address of /metrics; empty serves none")
	fs.StringVar(&o.ClusterDNS, "cluster-dns", o.ClusterDNS, "address that cluster DNS is answered at; empty answers none")
	fs.StringVar(&o.ClusterDomain, "cluster-domain", o.ClusterDomain, "domain of the cluster")
	fs.StringVar(&o.ResolvConf, "resolv-conf", o.ResolvConf, "file with the resolvers for names outside the cluster")
}

// Complete reads the configuration file, fills in defaults, and refuses what
// contradicts itself or is not supported.
func (o *Options) Complete() error {
	if o.Config != "" {
		if err := o.readConfig(o.Config); err != nil {
			return err
		}
	}
	if o.NodeName == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("reading host name: %w", err)
		}
		o.NodeName = host
	}
	if err := o.validate(); err != nil {
		return err
	}
	return o.parse()
}

func (o *Options) validate() error {
	switch {
	case o.ProxyMode != "iptables" && o.ProxyMode != "":
		return fmt.Errorf("--proxy-mode: %q is not supported, only iptables is", o.ProxyMode)
	case o.SyncPeriod <= 0:
		return fmt.Errorf("--iptables-sync-period: %s is not positive", o.SyncPeriod)
	case o.MinSyncPeriod < 0:
		return fmt.Errorf("--iptables-min-sync-period: %s is negative", o.MinSyncPeriod)
	case o.MasqueradeBit < 0 || o.MasqueradeBit > 31:
		return fmt.Errorf("--iptables-masquerade-bit: %d is not between 0 and 31", o.MasqueradeBit)
	}
	for name, address := range map[string]string{"--healthz-bind-address": o.HealthzBindAddress, "--metrics-bind-address": o.MetricsBindAddress} {
		if _, _, err := net.SplitHostPort(address); address != "" && err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// parse brings flags into their working form.
func (o *Options) parse() (err error) {
	p := parsed{}
	if p.clusterCIDR, err = optionalPrefix("--cluster-cidr", o.ClusterCIDR); err != nil {
		return err
	}
	if p.serviceCIDR, err = optionalPrefix("--service-cluster-ip-range", o.ServiceCIDR); err != nil {
		return err
	}
	for _, text := range o.NodePortAddresses {
		prefix, err := optionalPrefix("--nodeport-addresses", text)
		if err != nil {
			return err
		}
		if !prefix.IsValid() {
			continue
		}
		if prefix.Addr().IsLoopback() {
			return fmt.Errorf("--nodeport-addresses: %s: NodePorts on loopback are not supported", text)
		}
		p.nodePorts = append(p.nodePorts, prefix)
	}
	if p.podNetwork, err = routes.ParseMode(o.PodNetwork); err != nil {
		return fmt.Errorf("--pod-network: %w", err)
	}
	if o.ClusterDNS != "" {
		if p.dns, err = netip.ParseAddr(o.ClusterDNS); err != nil || !p.dns.Is4() {
			return fmt.Errorf("--cluster-dns: %q is not an IPv4 address", o.ClusterDNS)
		}
	}
	o.parsed = p
	return nil
}

func optionalPrefix(flag, text string) (netip.Prefix, error) {
	if text == "" {
		return netip.Prefix{}, nil
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return prefix, fmt.Errorf("%s: %w", flag, err)
	}
	if !prefix.Addr().Is4() {
		return prefix, fmt.Errorf("%s: %s is not an IPv4 range", flag, text)
	}
	return prefix.Masked(), nil
}
