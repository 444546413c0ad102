package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sampan-io/sampan/services/proxy/internal/conntrack"
	"github.com/sampan-io/sampan/services/proxy/internal/iptables"
	"github.com/sampan-io/sampan/services/proxy/internal/routes"
	"github.com/sampan-io/sampan/services/proxy/internal/servicemap"
	"github.com/sampan-io/sampan/services/proxy/internal/state"
)

const (
	retryMin = 100 * time.Millisecond
	retryMax = 30 * time.Second
	// late is how old a change may become before the proxy is not healthy.
	late = 2 * time.Minute
)

// keeper keeps the kernel as the API wants it. Its run is the only goroutine
// that writes.
type keeper struct {
	options *Options
	state   *state.State
	syncer  *iptables.Syncer
	metrics *metrics
	log     *slog.Logger

	ports    map[string][]servicemap.Port // by Service
	udp      bool                         // UDP ports changed since the last look at flows
	nodes    bool                         // routes must be looked at
	source   netip.Addr                   // of this node, once it is known
	triggers map[string]time.Time

	updated atomic.Pointer[time.Time] // of the last whole sync
	waiting atomic.Pointer[time.Time] // since when changes wait
}

func newKeeper(o *Options, known *state.State, execer iptables.Execer, m *metrics, log *slog.Logger) *keeper {
	config := iptables.Config{ClusterCIDR: o.parsed.clusterCIDR, MasqueradeBit: o.MasqueradeBit, MasqueradeAll: o.MasqueradeAll, NodePortAddresses: o.parsed.nodePorts}
	return &keeper{
		options: o, state: known, syncer: iptables.NewSyncer(config, execer), metrics: m, log: log,
		ports: map[string][]servicemap.Port{}, nodes: true, udp: true, triggers: map[string]time.Time{},
	}
}

func (k *keeper) lastUpdated() time.Time {
	if at := k.updated.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

func (k *keeper) healthy() error {
	if k.updated.Load() == nil {
		return errors.New("no rules were written yet")
	}
	if since := k.waiting.Load(); since != nil && time.Since(*since) > late {
		return fmt.Errorf("changes wait since %s", since.Format(time.RFC3339))
	}
	return nil
}

// run syncs at once on changes, again after failures, and from time to time
// looks for foreign changes.
func (k *keeper) run(ctx context.Context) error {
	// No rule is touched before all is known: an incomplete picture would take
	// rules away that a restart found in place.
	if !k.state.AwaitSync(ctx) {
		return nil
	}
	check := time.NewTicker(k.options.SyncPeriod)
	defer check.Stop()
	retry := retryMin
	for {
		again := k.step(ctx)
		var pause <-chan time.Time
		switch {
		case ctx.Err() != nil:
			return nil
		case again:
			pause = time.After(retry)
			retry = min(2*retry, retryMax)
		default:
			retry = retryMin
		}
		if k.options.MinSyncPeriod > 0 && !again {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(k.options.MinSyncPeriod):
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-k.state.Changed():
		case <-pause:
		case <-check.C:
			k.check(ctx)
		}
	}
}

// step takes changes in and writes them; it says whether to try again.
func (k *keeper) step(ctx context.Context) (again bool) {
	now := time.Now()
	if k.waiting.Load() == nil {
		k.waiting.Store(&now)
	}
	changed, nodes := k.state.Take()
	k.nodes = k.nodes || nodes
	for key, trigger := range changed {
		k.take(key, trigger)
	}
	if k.nodes {
		if err := k.route(ctx); err != nil {
			k.log.Error("Routes not written", "err", err)
			again = true
		} else {
			k.nodes = false
		}
	}
	if err := k.syncer.Sync(ctx); err != nil {
		k.log.Error("Rules not written", "err", err)
		again = true
	} else {
		k.written(now)
	}
	k.metrics.observe(k.syncer.Stats())
	if !again {
		done := time.Now()
		k.updated.Store(&done)
		k.waiting.Store(nil)
	}
	return again
}

// written notes a sync and forgets UDP flows that lead nowhere now.
func (k *keeper) written(began time.Time) {
	k.metrics.syncDuration.Observe(time.Since(began).Seconds())
	k.metrics.lastSync.SetToCurrentTime()
	for key, trigger := range k.triggers {
		if !trigger.IsZero() {
			k.metrics.programming.Observe(time.Since(trigger).Seconds())
		}
		delete(k.triggers, key)
	}
	if !k.udp {
		return
	}
	var all []servicemap.Port
	for _, ports := range k.ports {
		all = append(all, ports...)
	}
	if _, err := conntrack.Reconcile(conntrack.NewFlows(all), k.options.parsed.serviceCIDR); err != nil {
		k.log.Warn("UDP flows not reconciled", "err", err)
		return
	}
	k.udp = false
}

// take updates one Service.
func (k *keeper) take(key string, trigger time.Time) {
	namespace, name, _ := strings.Cut(key, "/")
	var ports []servicemap.Port
	if service := k.state.Service(namespace, name); service != nil {
		ports = servicemap.Ports(service, k.state.Slices(namespace, name), servicemap.Options{
			NodeName: k.options.NodeName, Family: corev1.IPv4Protocol, AllowExternalIPs: k.options.AllowExternalIPs, Excluded: k.excluded(),
		})
	}
	for _, p := range append(ports, k.ports[key]...) {
		k.udp = k.udp || p.Protocol == corev1.ProtocolUDP
	}
	if len(ports) == 0 {
		delete(k.ports, key)
	} else {
		k.ports[key] = ports
	}
	k.triggers[key] = trigger
	k.syncer.SetService(key, ports)
}

func (k *keeper) excluded() []netip.Addr {
	if !k.options.parsed.dns.IsValid() {
		return nil
	}
	return []netip.Addr{k.options.parsed.dns}
}

// check repairs what others did to the rules.
func (k *keeper) check(ctx context.Context) {
	changed, err := k.syncer.Check(ctx)
	if err != nil {
		k.log.Error("Rules not checked", "err", err)
	}
	if changed {
		k.log.Warn("Rules were changed by others and written again")
	}
	k.nodes, k.udp = true, true
}

// route brings pod routes up to date with the nodes.
func (k *keeper) route(ctx context.Context) error {
	var others []routes.Node
	var self netip.Addr
	for _, node := range k.state.Nodes() {
		address, ok := internalIP(node)
		if !ok {
			continue
		}
		pods := podRanges(node)
		if node.Name == k.options.NodeName {
			self = address
			for _, prefix := range pods {
				k.syncer.SetLocalPods(prefix)
			}
			continue
		}
		others = append(others, routes.Node{Name: node.Name, Address: address, Pods: pods})
	}
	if self.IsValid() && self != k.source {
		if err := k.options.prepareDevice(self); err != nil {
			return err
		}
		k.source = self
	}
	return routes.Reconcile(ctx, k.options.parsed.podNetwork, self, others)
}

func internalIP(node *corev1.Node) (netip.Addr, bool) {
	for _, address := range node.Status.Addresses {
		if ip, err := netip.ParseAddr(address.Address); err == nil && address.Type == corev1.NodeInternalIP && ip.Is4() {
			return ip, true
		}
	}
	return netip.Addr{}, false
}

func podRanges(node *corev1.Node) []netip.Prefix {
	all := node.Spec.PodCIDRs
	if len(all) == 0 {
		all = []string{node.Spec.PodCIDR}
	}
	var out []netip.Prefix
	for _, text := range all {
		if prefix, err := netip.ParsePrefix(text); err == nil && prefix.Addr().Is4() {
			out = append(out, prefix.Masked())
		}
	}
	return out
}
