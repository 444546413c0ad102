package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"runtime/debug"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sampan-io/sampan/services/internal/component"
	clusterdns "github.com/sampan-io/sampan/services/proxy/internal/dns"
	"github.com/sampan-io/sampan/services/proxy/internal/iptables"
	"github.com/sampan-io/sampan/services/proxy/internal/progress"
	"github.com/sampan-io/sampan/services/proxy/internal/routes"
	"github.com/sampan-io/sampan/services/proxy/internal/state"
)

const (
	dnsPort = 53
	// gcPercent: nearly all that the proxy holds lives long, so collecting early
	// costs little and keeps the process small.
	gcPercent = 50
)

// Run forwards until ctx ends. Rules, routes and devices stay when it ends, so
// that a restart disturbs no connection; --cleanup removes them.
func (o *Options) Run(ctx context.Context, log *slog.Logger) error {
	command, err := iptables.NewCommand()
	if err != nil {
		return &component.UsageError{Err: err}
	}
	if o.Cleanup {
		return o.cleanup(ctx, command)
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	metrics := newMetrics() // before the first client, which it measures
	clientset, config, err := o.Client.Clientset("proxy")
	if err != nil {
		return err
	}
	sources := state.FromAPI(clientset)
	disconnect, err := o.Bus.connect(clientset, config, &sources, metrics, log)
	if err != nil {
		return err
	}
	defer disconnect()
	return o.serveFrom(ctx, log, sources, command, metrics)
}

// cleanup removes what the proxy makes.
func (o *Options) cleanup(ctx context.Context, command iptables.Command) error {
	return errors.Join(iptables.Cleanup(ctx, command), routes.Cleanup(ctx))
}

// serveFrom is Run with what is watched and with the programs given.
func (o *Options) serveFrom(ctx context.Context, log *slog.Logger, sources state.Sources, command iptables.Command, metrics *metrics) error {
	known, err := state.New(sources)
	if err != nil {
		return err
	}
	if err := routes.Sysctls(); err != nil {
		return &component.UsageError{Err: err}
	}
	if err := o.prepareDevice(netip.Addr{}); err != nil {
		return err
	}
	seen := progress.NewRevision()
	known.SliceSeen = seen.Advance
	keeper := newKeeper(o, known, iptables.NewSyncer(o.rules(ctx, command), command), metrics, log)
	jobs := []func(ctx context.Context) error{
		func(ctx context.Context) error { known.Run(ctx); return nil },
		keeper.run,
	}
	if command.Monitor != nil {
		jobs = append(jobs, func(ctx context.Context) error { return keeper.monitor(ctx, command.Monitor) })
	}
	if o.parsed.dns.IsValid() {
		server := clusterdns.New(clusterdns.Config{
			Address: netip.AddrPortFrom(o.parsed.dns, dnsPort), Domain: o.ClusterDomain, ResolvConf: o.ResolvConf, Source: known, Log: log,
		})
		metrics.watchDNS(server)
		jobs = append(jobs, server.Run)
	}
	peers := progress.NewHTTPPeers(func() []progress.Peer { return o.peers(known) })
	defer peers.Close()
	tells := &progress.Server{Node: o.NodeName, Members: known, Seen: seen, Applied: keeper.applied, Peers: peers}
	servers, err := o.servers(ctx, keeper, metrics, tells)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, job := range append(jobs, servers...) {
		group.Go(func() error { return job(ctx) })
	}
	return group.Wait()
}

func (o *Options) rules(ctx context.Context, command iptables.Command) iptables.Config {
	return iptables.Config{
		ClusterCIDR: o.parsed.clusterCIDR, ServiceCIDR: o.parsed.serviceCIDR, DNS: o.parsed.dns,
		MasqueradeBit: o.MasqueradeBit, MasqueradeAll: o.MasqueradeAll, NodePortAddresses: o.parsed.nodePorts,
		SectionChains: command.SectionChains(ctx),
	}
}

// prepareDevice keeps the Service range on this host and gives it the DNS
// address.
func (o *Options) prepareDevice(source netip.Addr) error {
	var addresses []netip.Addr
	if o.parsed.dns.IsValid() {
		addresses = append(addresses, o.parsed.dns)
	}
	return routes.Service(o.parsed.serviceCIDR, source, addresses)
}

// servers listen for /healthz and /metrics on their addresses.
func (o *Options) servers(ctx context.Context, keeper *keeper, metrics *metrics, tells *progress.Server) (jobs []func(ctx context.Context) error, err error) {
	health := component.NewHealth()
	health.AddReady(component.Check{Name: "rules", Probe: func(context.Context) error { return keeper.healthy() }})
	for _, server := range []struct {
		address string
		install func(mux *http.ServeMux)
	}{
		{o.HealthzBindAddress, func(mux *http.ServeMux) {
			mux.Handle("/healthz", healthz(keeper))
			mux.Handle("/livez", health.Handler("/livez"))
			mux.Handle("/readyz", health.Handler("/readyz"))
			tells.Install(mux)
		}},
		{o.MetricsBindAddress, func(mux *http.ServeMux) {
			mux.Handle("/metrics", component.MetricsHandler(metrics.registry))
			mux.HandleFunc("/proxyMode", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "iptables") })
			health.Install(mux)
		}},
	} {
		if server.address == "" {
			continue
		}
		listener, err := component.Listen(ctx, server.address)
		if err != nil {
			return nil, err
		}
		mux := http.NewServeMux()
		server.install(mux)
		jobs = append(jobs, func(ctx context.Context) error { return component.Serve(ctx, listener, mux, nil) })
	}
	return jobs, nil
}

// healthz answers as kube-proxy does: 200 when the rules are not older than
// the changes they lack, with both moments.
func healthz(keeper *keeper) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		updated, err := keeper.lastUpdated(), keeper.healthy()
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"lastUpdated": updated, "currentTime": time.Now(), "nodeEligible": true})
	})
}
