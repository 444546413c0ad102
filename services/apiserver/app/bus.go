package app

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/bus"
	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
	"github.com/sampan-io/sampan/services/internal/component"
)

// onBus are the resources that many listeners watch wholesale.
func onBus() []schema.GroupResource {
	return []schema.GroupResource{
		{Resource: "services"}, {Group: "discovery.k8s.io", Resource: "endpointslices"}, {Resource: "nodes"}, {Resource: "namespaces"},
	}
}

// anyLoopbackPort is where the bus listens when nothing is said.
const anyLoopbackPort = "127.0.0.1:0"

// startBus publishes watch events until ctx ends. Once it has started, its
// troubles do not touch the API.
func (s *server) startBus(ctx context.Context, store storage.Interface) error {
	if s.Bus.URL == "" && s.Bus.ListenAddress == busOff {
		return nil
	}
	publisher := bus.NewPublisher(store, s.topics(), s.log)
	if s.Bus.URL != "" {
		s.busMetrics = bus.Metrics(publisher, nil)
		s.running.Go(func() { s.reportBus(bus.RunExternal(ctx, s.Bus.URL, publisher)) })
		return nil
	}
	embedded, err := s.embeddedBus()
	if err != nil {
		return &component.UsageError{Err: fmt.Errorf("--nats-listen-address: %w", err)}
	}
	s.busMetrics = bus.Metrics(publisher, embedded)
	s.running.Go(func() { s.reportBus(embedded.Run(ctx, publisher)) })
	return nil
}

func (s *server) reportBus(err error) {
	if err != nil {
		s.log.Error("The bus has ended; its listeners are fed by the API", "err", err)
	}
}

func (s *server) embeddedBus() (*bus.Server, error) {
	config := bus.Config{
		Address: s.Bus.ListenAddress, Tokens: s.security.accounts, Authorizer: s.security.authorizer, Changed: s.security.rbac.Changed,
		Namespaces: s.namespaces, Topics: s.topics(), Log: s.log,
	}
	if config.Address == "" {
		config.Address = anyLoopbackPort
	}
	if !bus.Loopback(config.Address) {
		var err error
		if config.TLS, err = component.ServerTLS(s.Serving.CertFile, s.Serving.KeyFile, ""); err != nil {
			return nil, fmt.Errorf("serving certificate: %w", err)
		}
	}
	embedded, err := bus.NewServer(config)
	if err == nil {
		s.log.Info("The bus listens", "address", embedded.Address(), "tls", config.TLS != nil)
	}
	return embedded, err
}

func (s *server) topics() []bus.Topic {
	var topics []bus.Topic
	for _, r := range s.resources {
		if r.KeyPrefix == "" || !slices.Contains(onBus(), r.GroupResource()) {
			continue
		}
		mediaType := runtime.ContentTypeProtobuf
		if r.StoredAsJSON {
			mediaType = runtime.ContentTypeJSON
		}
		topics = append(topics, bus.Topic{
			Resource: r.GroupResource(), KeyPrefix: r.KeyPrefix + "/", Namespaced: r.Namespaced,
			MediaType: mediaType, APIVersion: r.StoredVersion.String(),
		})
	}
	return topics
}

func (s *server) namespaces(ctx context.Context) ([]string, error) {
	objs, err := s.engine.List(ctx, schema.GroupResource{Resource: "namespaces"}, "")
	if err != nil {
		return nil, err
	}
	var names []string
	for _, obj := range objs {
		accessor, err := meta.Accessor(obj)
		if err != nil {
			return nil, err
		}
		names = append(names, accessor.GetName())
	}
	return names, nil
}
