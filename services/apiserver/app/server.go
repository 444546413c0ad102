package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/aggregation"
	"github.com/sampan-io/sampan/services/apiserver/internal/bootstrap"
	"github.com/sampan-io/sampan/services/apiserver/internal/discovery"
	"github.com/sampan-io/sampan/services/apiserver/internal/fairness"
	"github.com/sampan-io/sampan/services/apiserver/internal/filters"
	"github.com/sampan-io/sampan/services/apiserver/internal/handlers"
	"github.com/sampan-io/sampan/services/apiserver/internal/metricsapi"
	"github.com/sampan-io/sampan/services/apiserver/internal/openapi"
	"github.com/sampan-io/sampan/services/apiserver/internal/patch"
	"github.com/sampan-io/sampan/services/apiserver/internal/peers"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/allocator"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/authentication"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/authorization"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/rbac"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/resources"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
	"github.com/sampan-io/sampan/services/apiserver/internal/rest"
	"github.com/sampan-io/sampan/services/apiserver/internal/streaming"
	"github.com/sampan-io/sampan/services/apiserver/internal/tokens"
	"github.com/sampan-io/sampan/services/apiserver/internal/watch"
	"github.com/sampan-io/sampan/services/internal/component"
)

// server is a running server's parts.
type server struct {
	*config
	listener  net.Listener
	bundles   bundles
	security  *security
	engine    *rest.Engine
	resources []*registry.Resource
	caches    []*watch.Cache // of built-in kinds
	health    *component.Health
	streams   *streaming.Connections
	fairness  *fairness.Dispatcher // nil when requests are only counted
	peers     *peers.Peers         // nil when this is the only server over its store

	extensions *extensions
	aggregator *aggregation.Aggregator

	allocations              *allocator.Services
	busMetrics, storeMetrics []prometheus.Collector

	ready   chan struct{} // closed when bootstrap is done
	running sync.WaitGroup
}

// run serves until ctx ends: first the port, then the store, the caches and what
// is read from them, at last the requests.
func (c *config) run(ctx context.Context) error {
	address := net.JoinHostPort(c.Serving.BindAddress, strconv.Itoa(c.Serving.SecurePort))
	listener, err := component.Listen(ctx, address)
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }() // it is closed already when it has served
	s := &server{config: c, listener: listener, health: component.NewHealth(),
		ready: make(chan struct{})}
	if err := s.prepare(); err != nil {
		return &component.UsageError{Err: err}
	}
	store, err := c.openStore(ctx)
	if err != nil {
		return err
	}
	// What serves requests outlives ctx, until those in flight are answered.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	err = s.serve(ctx, life, store)
	end()
	s.running.Wait()
	if s.extensions != nil {
		s.extensions.Wait()
	}
	if s.engine != nil {
		s.engine.Wait()
	}
	return errors.Join(err, store.Close())
}

// long says that a request has no deadline.
func (s *server) long(api *handlers.API) func(*http.Request, *request.Info) bool {
	return func(r *http.Request, info *request.Info) bool { return api.Long(r, info) || s.aggregator.Long(r) }
}

// port is where the server listens.
func (s *server) port() int { return s.listener.Addr().(*net.TCPAddr).Port }

// prepare makes what needs no store: certificates, security, the resources.
func (s *server) prepare() error {
	patch.LimitCopies(handlers.MaxBodyBytes)
	if err := s.ensureCertificates(s.port()); err != nil {
		return err
	}
	var err error
	if s.bundles, err = s.loadBundles(); err != nil {
		return err
	}
	state := registry.Late(func() registry.State { return s.engine })
	if s.security, err = s.newSecurity(s.bundles, state); err != nil {
		return err
	}
	agents, err := s.agentTLS()
	if err != nil {
		return err
	}
	var types []corev1.NodeAddressType
	for _, t := range s.Kubelet.AddressTypes {
		types = append(types, corev1.NodeAddressType(t))
	}
	s.streams = streaming.New(state, streaming.Config{TLS: agents, AddressTypes: types})
	deps := s.deps
	deps.State = func() registry.State { return s.engine }
	if s.allocations, err = deps.NewAllocations(); err != nil {
		return err
	}
	deps.Allocations = s.allocations
	deps.Streaming, deps.Proxying = s.streams, s.streams
	deps.Components = components(state)
	deps.Token = tokens.NewCreate(s.security.issuer, state)
	deps.Others = append(deps.Others, rbac.Resources(s.security.rbac, s.security.authorizer)...)
	deps.Others = append(deps.Others, s.admissionResources(state)...)
	deps.Others = append(deps.Others, authentication.Resources(s.security.tokens, s.tokens.Audiences)...)
	deps.Others = append(deps.Others, authorization.Resources(s.security.authorizer, s.security.authorizer)...)
	deps.Others = append(deps.Others, metricsapi.Resources(state, s.streams)...)
	s.resources = resources.New(deps)
	return nil
}

// handler is what serves requests, and what closes the watches among them.
func (s *server) handler(life context.Context) (handler http.Handler, closeWatches func(), err error) {
	metrics := component.NewMetrics()
	metrics.MustRegister(newCacheMetrics(s.allCaches))
	metrics.MustRegister(s.busMetrics...)
	metrics.MustRegister(s.storeMetrics...)
	if s.security.certificates != nil {
		metrics.MustRegister(s.security.certificates.Metrics())
	}
	api := handlers.New(handlers.Config{
		Resources: s.resources, Engine: s.engine, Admission: s.security.admission, Authorizer: s.security.authorizer,
		MinRequestTimeout: time.Duration(s.Serving.MinRequestTimeout) * time.Second,
	})
	url := "https://" + net.JoinHostPort(s.advertise.String(), strconv.Itoa(s.port()))
	described := discovery.New(s.resources, url[len("https://"):])
	schemas := openapi.New(component.Version().GitVersion, s.resources)
	s.extensions = s.newExtensions(api, described, schemas)
	if s.aggregator, err = s.newAggregator(described, schemas); err != nil {
		return nil, nil, err
	}
	metrics.MustRegister(s.aggregator.Metrics())
	routes, err := s.routes(described, schemas, api, s.health, metrics, url)
	if err != nil {
		return nil, nil, err
	}
	s.fairness = s.newFairness(metrics)
	auditor, err := s.newAuditor(life, metrics)
	if err != nil {
		return nil, nil, &component.UsageError{Err: err}
	}
	return filters.Chain(routes, filters.Config{
		Log: s.log, Metrics: filters.NewMetrics(metrics, api.Subresources), Authenticator: s.security.authenticator,
		Authorizer: s.security.authorizer, Long: s.long(api), RequestTimeout: s.Serving.RequestTimeout,
		CORSAllowed: s.Serving.CORSAllowed, Ready: s.ready, MaxRequests: s.Serving.MaxRequests, MaxMutating: s.Serving.MaxMutating,
		Fairness: s.fairness, Auditor: auditor, Objects: s.objects,
	}), api.CloseWatches, nil
}

func (s *server) bootstrapConfig() (bootstrap.Config, error) {
	config := bootstrap.Config{
		AdvertiseAddress: s.advertise, SecurePort: int32(s.port()), ServiceCIDRs: s.deps.ServiceCIDRs,
		ServiceIP: nth(s.deps.ServiceCIDRs[0], 1),
	}
	if s.peers != nil {
		config.Peers = s.announce
	}
	if s.Network.DNSService {
		config.DNSIP = nth(s.deps.ServiceCIDRs[0], 10)
	}
	var err error
	if config.ClientCA, err = readIfGiven(s.Identity.ClientCAFile); err != nil {
		return config, err
	}
	if s.Identity.FrontProxyCAFile == "" {
		return config, nil
	}
	proxy := s.Identity.FrontProxy.WithDefaults()
	config.RequestHeader = bootstrap.RequestHeader{
		AllowedNames: proxy.AllowedNames, UserHeaders: proxy.UserHeaders, GroupHeaders: proxy.GroupHeaders,
		UIDHeaders: proxy.UIDHeaders, Extra: proxy.ExtraPrefixes,
	}
	config.RequestHeader.ClientCA, err = readIfGiven(s.Identity.FrontProxyCAFile)
	return config, err
}

// bootstrap ensures what every client takes for granted, and then lets the
// server be ready.
func (s *server) bootstrap(ctx context.Context) error {
	config, err := s.bootstrapConfig()
	if err != nil {
		return err
	}
	config.Repair = func(ctx context.Context) error {
		_, err := s.allocations.Repair(ctx)
		return err
	}
	if err := bootstrap.Ensure(ctx, s.engine, config); err != nil {
		return fmt.Errorf("ensuring the cluster's own objects: %w", err)
	}
	// Whoever waited for readiness must not be refused what the roles grant.
	if err := s.security.rbac.Await(ctx, s.engine); err != nil {
		return err
	}
	close(s.ready)
	s.log.Info("Ready")
	s.running.Go(func() { bootstrap.Keep(ctx, s.engine, config, s.log) })
	s.running.Go(func() {
		if err := s.allocations.Run(ctx, s.log); err != nil && ctx.Err() == nil {
			s.log.Error("Repairing the addresses of services", "err", err)
		}
	})
	return nil
}
