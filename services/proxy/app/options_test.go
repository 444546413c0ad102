package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func complete(t *testing.T, config string, args ...string) (*Options, error) {
	t.Helper()
	o := New()
	fs := pflag.NewFlagSet("proxy", pflag.ContinueOnError)
	o.AddFlags(fs)
	if config != "" {
		path := filepath.Join(t.TempDir(), "config.yaml")
		must(t, os.WriteFile(path, []byte(config), 0o600))
		args = append(args, "--config="+path)
	}
	must(t, fs.Parse(args))
	return o, o.Complete()
}

const configHead = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

func TestConfigurationFileIsTaken(t *testing.T) {
	o, err := complete(t, configHead+`
bindAddress: 0.0.0.0
clientConnection:
  kubeconfig: /etc/proxy.kubeconfig
  acceptContentTypes: ""
  burst: 0
clusterCIDR: 10.1.0.0/16
detectLocalMode: ""
enableProfiling: false
hostnameOverride: from-file
healthzBindAddress: ""
iptables:
  masqueradeAll: true
  masqueradeBit: 5
  minSyncPeriod: 1s
  syncPeriod: 0s
mode: iptables
nodePortAddresses: [10.0.0.0/8, 192.168.0.0/16]
conntrack:
  maxPerCore: null
winkernel:
  networkName: ""
`, "--hostname-override=from-flag")
	must(t, err)
	if o.Client.Kubeconfig != "/etc/proxy.kubeconfig" || o.ClusterCIDR != "10.1.0.0/16" || !o.MasqueradeAll || o.MasqueradeBit != 5 ||
		o.MinSyncPeriod != time.Second || o.SyncPeriod != 30*time.Second || len(o.NodePortAddresses) != 2 {
		t.Errorf("options are %+v", o)
	}
	if o.NodeName != "from-flag" {
		t.Errorf("the file won over the flag: %s", o.NodeName)
	}
}

func TestWhatIsNotSupportedIsNamedAndRefused(t *testing.T) {
	for name, step := range map[string]struct{ config, flag, want string }{
		"fields":     {configHead + "conntrack: {maxPerCore: 3}\nipvs: {scheduler: rr}\n", "", "not supported: conntrack.maxPerCore, ipvs.scheduler"},
		"unknown":    {configHead + "clusterCidr: 10.1.0.0/16\n", "", "not supported: clusterCidr"},
		"mode":       {configHead + "mode: ipvs\n", "", `"ipvs" is not supported`},
		"value":      {configHead + "iptables: {syncPeriod: soon}\n", "", "iptables.syncPeriod"},
		"other kind": {"apiVersion: v1\nkind: Pod\n", "", "not KubeProxyConfiguration"},
		"doubled":    {configHead + "mode: iptables\nmode: iptables\n", "", "mode"},
		"no yaml":    {"]", "", "--config"},
		"bit":        {"", "--iptables-masquerade-bit=32", "--iptables-masquerade-bit"},
		"range":      {"", "--cluster-cidr=10.1.0.0", "--cluster-cidr"},
		"v6":         {"", "--cluster-cidr=fd00::/64", "not an IPv4 range"},
		"loopback":   {"", "--nodeport-addresses=127.0.0.0/8", "loopback"},
		"network":    {"", "--pod-network=magic", "--pod-network"},
		"dns":        {"", "--cluster-dns=dns.example", "--cluster-dns"},
		"address":    {"", "--healthz-bind-address=somewhere", "--healthz-bind-address"},
		"period":     {"", "--iptables-sync-period=0s", "--iptables-sync-period"},
	} {
		var args []string
		if step.flag != "" {
			args = append(args, step.flag)
		}
		if _, err := complete(t, step.config, args...); err == nil || !strings.Contains(err.Error(), step.want) {
			t.Errorf("%s: %v, want %q", name, err, step.want)
		}
	}
}
