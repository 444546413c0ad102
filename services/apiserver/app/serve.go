package app

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/bootstrap"
	"github.com/sampan-io/sampan/services/apiserver/internal/peers"
	"github.com/sampan-io/sampan/services/apiserver/internal/rest"
	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
	"github.com/sampan-io/sampan/services/apiserver/internal/watch"
	"github.com/sampan-io/sampan/services/internal/component"
)

// serve brings the server up over an open store and serves until ctx ends.
func (s *server) serve(ctx, life context.Context, store storage.Interface) error {
	store, err := s.encrypted(life, store)
	if err != nil {
		return err
	}
	caches, err := s.fill(life, store)
	if err != nil {
		return err
	}
	defer s.leavePeers(life)
	s.engine = rest.New(rest.Config{Resources: s.resources, Caches: caches, Admission: s.security.admission})
	s.running.Go(s.engine.Warm)
	run := s.newConfiguredAdmission()
	if err := s.security.start(life, s.config, s.engine); err != nil {
		return err
	}
	run(life)
	if err := s.startBus(life, store); err != nil {
		return err
	}
	s.health.AddReady(component.Check{Name: "poststarthook/bootstrap", Probe: s.probeReady})
	s.health.AddReady(component.Check{Name: "shutdown", Probe: func(context.Context) error { return ctx.Err() }})
	s.health.AddLive(component.Check{Name: "store", Probe: s.probeStore(store)})
	handler, closeWatches, err := s.handler(life)
	if err != nil {
		return err
	}
	if err := s.extensions.Start(life, store); err != nil {
		return fmt.Errorf("serving custom resources: %w", err)
	}
	config, err := s.serverTLS(s.bundles)
	if err != nil {
		return err
	}
	serving, stop := delayed(ctx, s.Hardening.ShutdownDelay)
	defer stop()
	bootstrapping := func(ctx context.Context) error { return s.bootstrap(admission.Internal(ctx)) }
	parts := []func(context.Context) error{bootstrapping, s.aggregator.Run, s.followFairness, bootstrap.NewAggregator(s.engine, s.log).Run}
	failed := make(chan error, len(parts))
	for _, run := range parts {
		s.running.Go(func() {
			if err := run(life); err != nil && life.Err() == nil {
				failed <- err
				stop()
			}
		})
	}
	context.AfterFunc(serving, closeWatches)
	s.log.Info("Serving", "address", s.listener.Addr().String())
	err = component.Serve(serving, s.listener, s.Hardening.strictTransport(handler), config)
	s.streams.Close()
	select {
	case cause := <-failed:
		return errors.Join(cause, err)
	default:
		return err
	}
}

// fill starts the caches over the store, and what else knows of it.
func (s *server) fill(life context.Context, store storage.Interface) (map[string]watch.Store, error) {
	caches, list, err := startCaches(life, store, s.resources)
	if err != nil {
		return nil, err
	}
	s.caches = list
	if s.Etcd.used() {
		s.peers = peers.New(store, s.advertise)
	}
	if measured, ok := store.(interface{ Metrics() prometheus.Collector }); ok {
		s.storeMetrics = append(s.storeMetrics, measured.Metrics())
	}
	return caches, nil
}

var errNotReady = errors.New("the cluster's own objects are not there yet")

func (s *server) probeReady(context.Context) error {
	select {
	case <-s.ready:
		return nil
	default:
		return errNotReady
	}
}

func readIfGiven(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	return os.ReadFile(path)
}
