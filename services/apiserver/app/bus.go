package app

import (
	"context"
	"fmt"
	"net"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/bus"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
	"github.com/sampan-io/sampan/services/internal/component"
)

// busResources are what the bus carries: resources that listeners may watch
// wholesale.
func busResources() []schema.GroupResource {
	return []schema.GroupResource{
		{Resource: "services"}, {Group: "discovery.k8s.io", Resource: "endpointslices"}, {Resource: "nodes"}, {Resource: "namespaces"},
	}
}

func (s *server) topics() []bus.Topic {
	var topics []bus.Topic
	for _, carried := range busResources() {
		for _, r := range s.resources {
			if r.GroupResource() == carried {
				topics = append(topics, topicOf(r))
			}
		}
	}
	return topics
}

func topicOf(r *registry.Resource) bus.Topic {
	mediaType := runtime.ContentTypeProtobuf
	if r.StoredAsJSON {
		mediaType = runtime.ContentTypeJSON
	}
	return bus.Topic{
		Resource: r.GroupResource(), KeyPrefix: strings.TrimSuffix(r.KeyPrefix, "/") + "/", Namespaced: r.Namespaced,
		MediaType: mediaType, APIVersion: r.StoredVersion.String(),
	}
}

// startBus publishes committed events, on an embedded server or an external one,
// until life ends.
func (s *server) startBus(life context.Context, store storage.Interface) error {
	if s.Bus.URL == "" && s.Bus.ListenAddress == busOff {
		return nil
	}
	publisher := bus.NewPublisher(store, s.topics(), s.log)
	if s.Bus.URL != "" {
		s.running.Go(func() { s.reportBus(bus.RunExternal(life, s.Bus.URL, publisher)) })
		return nil
	}
	embedded, err := s.embeddedBus()
	if err != nil {
		return &component.UsageError{Err: err}
	}
	s.log.Info("The bus listens", "address", embedded.Address())
	s.running.Go(func() { s.reportBus(embedded.Run(life, publisher)) })
	return nil
}

func (s *server) reportBus(err error) {
	if err != nil {
		s.log.Error("The bus has ended; its listeners are fed from the API", "err", err)
	}
}

func (s *server) embeddedBus() (*bus.Server, error) {
	c := bus.Config{
		Address: s.Bus.ListenAddress, Tokens: s.security.tokens, Authorizer: s.security.authorizer,
		Namespaces: s.namespaces, Topics: s.topics(), Log: s.log,
	}
	if c.Address == "" {
		c.Address = net.JoinHostPort("127.0.0.1", "0")
	}
	host, _, err := net.SplitHostPort(c.Address)
	if err != nil {
		return nil, fmt.Errorf("--nats-listen-address: %w", err)
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		if c.TLS, err = component.ServerTLS(s.Serving.CertFile, s.Serving.KeyFile, ""); err != nil {
			return nil, err
		}
	}
	return bus.NewServer(c)
}

func (s *server) namespaces(ctx context.Context) ([]string, error) {
	objs, err := s.engine.List(ctx, schema.GroupResource{Resource: "namespaces"}, "")
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(objs))
	for _, obj := range objs {
		if ns, ok := obj.(registry.Object); ok {
			names = append(names, ns.GetName())
		}
	}
	return names, nil
}
