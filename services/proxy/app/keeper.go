package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sampan-io/sampan/services/proxy/internal/conntrack"
	"github.com/sampan-io/sampan/services/proxy/internal/healthcheck"
	"github.com/sampan-io/sampan/services/proxy/internal/iptables"
	"github.com/sampan-io/sampan/services/proxy/internal/progress"
	"github.com/sampan-io/sampan/services/proxy/internal/servicemap"
	"github.com/sampan-io/sampan/services/proxy/internal/state"
)

const (
	retryMin = 100 * time.Millisecond
	retryMax = 30 * time.Second
	// late is how old a change may become before the proxy is not healthy.
	late = 2 * time.Minute
	// foreignDelay is the time from a foreign change of rules, of which there may be
	// several in a row, to a look at them; foreignShare is how many times as long as
	// the look took there is none again.
	foreignDelay = 50 * time.Millisecond
	foreignShare = 10
)

// keeper keeps the kernel as the API wants it. Its run is the only goroutine
// that writes.
type keeper struct {
	options *Options
	state   *state.State
	syncer  *iptables.Syncer
	checks  *healthcheck.Server
	metrics *metrics
	log     *slog.Logger

	flows    *conntrack.Flows
	foreign  chan struct{}
	udp      bool // flows must be looked at
	nodes    bool // nodes must be looked at
	zone     string
	local    map[string]map[uint16]healthcheck.Service // by Service, by health check port
	triggers map[string]time.Time

	applied *progress.Revision // of the EndpointSlices in the kernel's rules

	updated atomic.Pointer[time.Time] // of the last sync that left nothing waiting
	waiting atomic.Pointer[time.Time] // since when changes wait
}

func newKeeper(o *Options, known *state.State, rules *iptables.Syncer, m *metrics, log *slog.Logger) *keeper {
	k := &keeper{
		options: o, state: known, syncer: rules, metrics: m, log: log,
		nodes: true, udp: true, flows: conntrack.NewFlows(), foreign: make(chan struct{}, 1),
		local: map[string]map[uint16]healthcheck.Service{}, triggers: map[string]time.Time{}, applied: progress.NewRevision(),
	}
	k.checks = healthcheck.New(k.healthy)
	return k
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
	defer k.checks.Close()
	// No rule is touched before all is known: an incomplete picture would take
	// rules away that a restart found in place.
	if !k.state.AwaitSync(ctx) {
		return nil
	}
	check := time.NewTimer(k.options.SyncPeriod)
	defer check.Stop()
	var checked time.Time
	var cost time.Duration // of the last check
	retry := retryMin
	for {
		var pause <-chan time.Time
		if again := k.step(ctx); again {
			pause = time.After(retry)
			retry = min(2*retry, retryMax)
		} else {
			retry = retryMin
		}
		if !sleep(ctx, k.options.MinSyncPeriod) {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-k.state.Changed():
		case <-pause:
		case <-k.foreign:
			check.Reset(max(foreignDelay, time.Until(checked.Add(foreignShare*cost))))
		case <-check.C:
			began := time.Now()
			k.check(ctx)
			checked, cost = time.Now(), time.Since(began)
			check.Reset(max(k.options.SyncPeriod, time.Duration(k.options.checkPause)*cost))
		}
	}
}

// sleep says whether ctx goes on after a pause.
func sleep(ctx context.Context, pause time.Duration) bool {
	if pause > 0 {
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return ctx.Err() == nil
}

// step takes changes in and writes them; it says whether to try again.
func (k *keeper) step(ctx context.Context) (again bool) {
	began := time.Now()
	if k.waiting.Load() == nil {
		k.waiting.Store(&began)
	}
	changes := k.state.Take()
	changed := changes.Services
	k.nodes = k.nodes || changes.Nodes
	if k.nodes {
		if err := k.meetNodes(ctx, changed); err != nil {
			k.log.Error("Routes are incomplete", "err", err)
			again = true
		} else {
			k.nodes = false
		}
	}
	for key, trigger := range changed {
		k.take(key, trigger)
	}
	if err := k.syncer.Sync(ctx); err != nil {
		if ctx.Err() == nil {
			k.log.Error("Rules are not written", "err", err)
		}
		k.metrics.observe(k.syncer.Stats())
		return true
	}
	k.applied.Advance(changes.Revision)
	k.written(began)
	return k.follow(ctx) || again
}

// written notes a sync.
func (k *keeper) written(began time.Time) {
	done := time.Now()
	k.metrics.syncDuration.Observe(done.Sub(began).Seconds())
	k.metrics.lastSync.Set(float64(done.UnixNano()) / 1e9)
	for _, trigger := range k.triggers {
		if !trigger.IsZero() {
			k.metrics.programming.Observe(done.Sub(trigger).Seconds())
		}
	}
	clear(k.triggers)
	k.metrics.observe(k.syncer.Stats())
	k.updated.Store(&done)
	k.waiting.Store(nil)
}

// follow does what comes after the rules: UDP flows that lead nowhere now are
// forgotten, and load balancers told. It says whether to try again.
func (k *keeper) follow(ctx context.Context) (again bool) {
	if k.udp {
		forgotten, err := k.flows.Reconcile(k.options.parsed.serviceCIDR)
		if err != nil {
			k.log.Warn("UDP flows are not reconciled", "err", err)
			again = true
		} else {
			k.udp = false
		}
		k.metrics.forgotten.Add(float64(forgotten))
	}
	wanted := map[uint16]healthcheck.Service{}
	for _, ports := range k.local {
		maps.Copy(wanted, ports)
	}
	if err := k.checks.Set(ctx, wanted); err != nil {
		k.log.Warn("Health checks are not answered", "err", err)
		again = true
	}
	return again
}

// take updates one Service.
func (k *keeper) take(key string, trigger time.Time) {
	namespace, name, _ := strings.Cut(key, "/")
	var ports []servicemap.Port
	if service := k.state.Service(namespace, name); service != nil {
		ports = servicemap.Ports(service, k.state.Slices(namespace, name), k.serviceOptions())
	}
	if k.flows.Set(key, ports) {
		k.udp = true
	}
	delete(k.local, key)
	for i := range ports {
		if port := ports[i].HealthCheckNodePort; port != 0 {
			k.local[key] = map[uint16]healthcheck.Service{port: {Namespace: namespace, Name: name, LocalEndpoints: ports[i].LocalAddresses()}}
		}
	}
	k.triggers[key] = trigger
	k.syncer.SetService(key, ports)
}

func (k *keeper) serviceOptions() servicemap.Options {
	options := servicemap.Options{NodeName: k.options.NodeName, Zone: k.zone, Family: corev1.IPv4Protocol, AllowExternalIPs: k.options.AllowExternalIPs}
	if dns := k.options.parsed.dns; dns.IsValid() {
		options.Excluded = []netip.Addr{dns}
	}
	return options
}

// foreignChange tells that another process changed rules. It may be called from
// any goroutine.
func (k *keeper) foreignChange() {
	select {
	case k.foreign <- struct{}{}:
	default:
	}
}

// monitor follows foreign changes. Where the kernel does not tell of them there
// are the looks from time to time.
func (k *keeper) monitor(ctx context.Context, monitor *iptables.Monitor) error {
	if err := monitor.Run(ctx, k.foreignChange); err != nil {
		k.log.Info("Foreign changes of rules are only looked for from time to time", "period", k.options.SyncPeriod, "err", err)
	}
	return nil
}

// check repairs what others did to the rules, routes and flows.
func (k *keeper) check(ctx context.Context) {
	changed, err := k.syncer.Check(ctx)
	if err != nil && ctx.Err() == nil {
		k.log.Error("Rules are not checked", "err", err)
	}
	if changed {
		k.log.Warn("Rules were changed by others and are written again")
	}
	k.metrics.observe(k.syncer.Stats())
	k.nodes, k.udp = true, true
}
