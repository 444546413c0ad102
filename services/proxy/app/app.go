package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sync/errgroup"

	"github.com/sampan-io/sampan/services/internal/component"
	clusterdns "github.com/sampan-io/sampan/services/proxy/internal/dns"
	"github.com/sampan-io/sampan/services/proxy/internal/iptables"
	"github.com/sampan-io/sampan/services/proxy/internal/routes"
	"github.com/sampan-io/sampan/services/proxy/internal/state"
)

const dnsPort = 53

// Run forwards until ctx ends. Rules, routes and devices stay when it ends, so
// that a restart disturbs no connection; --cleanup removes them.
func (o *Options) Run(ctx context.Context, log *slog.Logger) error {
	command, err := iptables.NewCommand()
	if err != nil {
		return &component.UsageError{Err: err}
	}
	if o.Cleanup {
		return errors.Join(iptables.Cleanup(ctx, command), routes.Cleanup(ctx))
	}
	clientset, config, err := o.Client.Clientset("proxy")
	if err != nil {
		return err
	}
	metrics := newMetrics()
	sources := state.FromAPI(clientset)
	disconnect, err := o.Bus.connect(clientset, config, &sources, metrics, log)
	if err != nil {
		return err
	}
	defer disconnect()
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
	keeper := newKeeper(o, known, command, metrics, log)

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { known.Run(ctx); return nil })
	group.Go(func() error { return keeper.run(ctx) })
	if o.parsed.dns.IsValid() {
		server := clusterdns.New(clusterdns.Config{
			Address: netip.AddrPortFrom(o.parsed.dns, dnsPort), Domain: o.ClusterDomain, Upstreams: upstreams(o.ResolvConf, log), Source: known, Log: log,
		})
		metrics.watchDNS(server)
		group.Go(func() error { return server.Run(ctx) })
	}
	if err := o.serve(ctx, group, keeper, metrics); err != nil {
		return err
	}
	return group.Wait()
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

// upstreams are the resolvers of a resolv.conf. Without any, names outside the
// cluster are not resolved.
func upstreams(path string, log *slog.Logger) []netip.AddrPort {
	config, err := dns.ClientConfigFromFile(path)
	if err != nil {
		log.Warn("No resolvers for names outside the cluster", "err", err)
		return nil
	}
	var out []netip.AddrPort
	for _, server := range config.Servers {
		if ip, err := netip.ParseAddr(server); err == nil {
			out = append(out, netip.AddrPortFrom(ip, dnsPort))
		}
	}
	return out
}

// serve answers /healthz and /metrics on their addresses.
func (o *Options) serve(ctx context.Context, group *errgroup.Group, keeper *keeper, metrics *metrics) error {
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
			return err
		}
		mux := http.NewServeMux()
		server.install(mux)
		group.Go(func() error { return component.Serve(ctx, listener, mux, nil) })
	}
	return nil
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
