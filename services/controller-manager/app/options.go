// Package app wires the controller manager.
package app

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/sampan-io/sampan/services/controller-manager/internal/controller"
	"github.com/sampan-io/sampan/services/controller-manager/internal/controllers"
	"github.com/sampan-io/sampan/services/internal/client"
	"github.com/sampan-io/sampan/services/internal/component"
	"github.com/sampan-io/sampan/services/internal/delegated"
)

// Options is what the flags say. Their names and defaults are upstream's.
type Options struct {
	client   client.Options
	serving  component.SecureServing
	access   delegated.Options
	election component.LeaderElection

	controllers           []string
	clusterCIDR           string
	serviceCIDR           string
	nodeMask              int
	rootCAFile            string
	serviceAccountKeyFile string
	ownAccounts           bool
	workers               map[string]*int

	config controller.Config
}

// New has the defaults.
func New() *Options {
	return &Options{
		serving: component.SecureServing{Port: 10257}, election: component.NewLeaderElection("kube-controller-manager"),
		controllers: []string{"*"}, ownAccounts: true, workers: map[string]*int{},
		config: controller.Config{
			NodeCIDRMaskSizeIPv4: 24, NodeCIDRMaskSizeIPv6: 64, ConcurrentSyncs: map[string]int{},
			NodeMonitorPeriod: 5 * time.Second, NodeMonitorGracePeriod: 50 * time.Second, NodeStartupGracePeriod: time.Minute,
			TerminatedPodThreshold: 12500, MaxEndpointsPerSlice: 100, EnableGarbageCollector: true, QuotaSyncPeriod: 5 * time.Minute,
		},
	}
}

// AddFlags registers the flags.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	o.client.AddFlags(fs)
	o.serving.AddFlags(fs)
	o.access.AddFlags(fs)
	o.election.AddFlags(fs)
	fs.StringSliceVar(&o.controllers, "controllers", o.controllers, "controllers to run: '*' is all, 'name' adds one, '-name' leaves one out. Known: "+strings.Join(names(), ", "))
	fs.BoolVar(&o.ownAccounts, "use-service-account-credentials", o.ownAccounts, "act as one service account per controller")
	fs.StringVar(&o.rootCAFile, "root-ca-file", "", "PEM certificates that pods check the API server with; published as config map kube-root-ca.crt")
	fs.StringVar(&o.serviceAccountKeyFile, "service-account-private-key-file", "", "accepted for upstream's sake: tokens are signed by the API server")
	o.addNodeFlags(fs)
	o.addWorkerFlags(fs)
	fs.IntVar(&o.config.TerminatedPodThreshold, "terminated-pod-gc-threshold", o.config.TerminatedPodThreshold, "how many ended pods may stay before the oldest are deleted; 0 or less keeps all")
	fs.IntVar(&o.config.MaxEndpointsPerSlice, "max-endpoints-per-slice", o.config.MaxEndpointsPerSlice, "endpoints that one EndpointSlice holds at most, 1 to 1000")
	fs.BoolVar(&o.config.EnableGarbageCollector, "enable-garbage-collector", o.config.EnableGarbageCollector, "delete objects whose owners are gone")
	fs.DurationVar(&o.config.QuotaSyncPeriod, "resource-quota-sync-period", o.config.QuotaSyncPeriod, "how often what quotas count is counted though nothing changes")
}

func (o *Options) addNodeFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&o.config.AllocateNodeCIDRs, "allocate-node-cidrs", false, "give each node a subnet of --cluster-cidr")
	fs.StringVar(&o.clusterCIDR, "cluster-cidr", "", "range of pod addresses; one per IP family, separated by a comma")
	fs.StringVar(&o.serviceCIDR, "service-cluster-ip-range", "", "range of Service addresses, which node subnets stay clear of")
	fs.IntVar(&o.nodeMask, "node-cidr-mask-size", 0, "prefix length of a node's subnet; 24 for IPv4 and 64 for IPv6 when not set")
	fs.IntVar(&o.config.NodeCIDRMaskSizeIPv4, "node-cidr-mask-size-ipv4", o.config.NodeCIDRMaskSizeIPv4, "prefix length of a node's IPv4 subnet")
	fs.IntVar(&o.config.NodeCIDRMaskSizeIPv6, "node-cidr-mask-size-ipv6", o.config.NodeCIDRMaskSizeIPv6, "prefix length of a node's IPv6 subnet")
	fs.DurationVar(&o.config.NodeMonitorPeriod, "node-monitor-period", o.config.NodeMonitorPeriod, "how often nodes are looked at though nothing changes")
	fs.DurationVar(&o.config.NodeMonitorGracePeriod, "node-monitor-grace-period", o.config.NodeMonitorGracePeriod, "silence of a node after which its state is unknown")
	fs.DurationVar(&o.config.NodeStartupGracePeriod, "node-startup-grace-period", o.config.NodeStartupGracePeriod, "silence of a node that has just come up after which its state is unknown")
}

// addWorkerFlags registers the --concurrent flags, for the controllers that exist.
func (o *Options) addWorkerFlags(fs *pflag.FlagSet) {
	for _, w := range []struct {
		flag, controller string
		count            int
	}{
		{"concurrent-deployment-syncs", "deployment-controller", 5},
		{"concurrent-replicaset-syncs", "replicaset-controller", 5},
		{"concurrent-endpoint-syncs", "endpoints-controller", 5},
		{"concurrent-service-endpoint-syncs", "endpointslice-controller", 5},
		{"concurrent-namespace-syncs", "namespace-controller", 10},
		{"concurrent-gc-syncs", "garbage-collector-controller", 20},
		{"concurrent-resource-quota-syncs", "resourcequota-controller", 5},
	} {
		count := w.count
		o.workers[w.controller] = &count
		fs.IntVar(&count, w.flag, count, "objects that the "+w.controller+" works on at once")
	}
}

// Complete derives the configuration from the flags, and refuses contradictions.
func (o *Options) Complete() error {
	if err := o.serving.Validate(); err != nil {
		return err
	}
	for name, count := range o.workers {
		if *count < 1 {
			return fmt.Errorf("the %s wants at least one worker, got %d", name, *count)
		}
		o.config.ConcurrentSyncs[name] = *count
	}
	if n := o.config.MaxEndpointsPerSlice; n < 1 || n > 1000 {
		return fmt.Errorf("--max-endpoints-per-slice: %d is not between 1 and 1000", n)
	}
	if o.config.NodeMonitorGracePeriod <= 0 || o.config.NodeMonitorPeriod <= 0 {
		return errors.New("--node-monitor-grace-period and --node-monitor-period must be positive")
	}
	for _, file := range []struct{ flag, path string }{{"root-ca-file", o.rootCAFile}, {"service-account-private-key-file", o.serviceAccountKeyFile}} {
		if file.path == "" {
			continue
		}
		if _, err := os.Stat(file.path); err != nil {
			return fmt.Errorf("--%s: %w", file.flag, err)
		}
	}
	if o.rootCAFile != "" {
		if _, err := component.CertPool(o.rootCAFile); err != nil {
			return fmt.Errorf("--root-ca-file: %w", err)
		}
		content, err := os.ReadFile(o.rootCAFile)
		if err != nil {
			return fmt.Errorf("--root-ca-file: %w", err)
		}
		o.config.RootCA = content
	}
	if err := o.completeCIDRs(); err != nil {
		return err
	}
	_, err := o.enabled()
	return err
}

func (o *Options) completeCIDRs() error {
	if o.nodeMask != 0 {
		o.config.NodeCIDRMaskSizeIPv4 = o.nodeMask
		if strings.Contains(o.clusterCIDR, ":") && !strings.Contains(o.clusterCIDR, ",") {
			o.config.NodeCIDRMaskSizeIPv6 = o.nodeMask
		}
	}
	var err error
	if o.config.ClusterCIDRs, err = prefixes(o.clusterCIDR); err != nil {
		return fmt.Errorf("--cluster-cidr: %w", err)
	}
	if o.config.ServiceCIDRs, err = prefixes(o.serviceCIDR); err != nil {
		return fmt.Errorf("--service-cluster-ip-range: %w", err)
	}
	if o.config.AllocateNodeCIDRs && len(o.config.ClusterCIDRs) == 0 {
		return errors.New("--allocate-node-cidrs wants --cluster-cidr")
	}
	return nil
}

func prefixes(list string) ([]netip.Prefix, error) {
	var found []netip.Prefix
	for _, text := range strings.Split(list, ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, err
		}
		found = append(found, prefix)
	}
	return found, nil
}

func names() []string {
	var all []string
	for _, definition := range controllers.All() {
		all = append(all, definition.Name)
	}
	return all
}

// enabled is the controllers that --controllers asks for. An unknown name is
// refused.
func (o *Options) enabled() ([]controller.Definition, error) {
	all := controllers.All()
	canonical := map[string]string{}
	for _, definition := range all {
		if canonical[definition.Name] != "" {
			panic("two controllers are named " + definition.Name)
		}
		canonical[definition.Name] = definition.Name
		for _, alias := range definition.Aliases {
			canonical[alias] = definition.Name
		}
	}
	wanted, star := map[string]bool{}, false
	for _, word := range o.controllers {
		if word == "*" {
			star = true
			continue
		}
		name := canonical[strings.TrimPrefix(word, "-")]
		if name == "" {
			return nil, fmt.Errorf("--controllers: there is no controller %q; known are %s", strings.TrimPrefix(word, "-"), strings.Join(names(), ", "))
		}
		wanted[name] = !strings.HasPrefix(word, "-")
	}
	return slices.DeleteFunc(all, func(definition controller.Definition) bool {
		if on, named := wanted[definition.Name]; named {
			return !on
		}
		return !star
	}), nil
}
