package app

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"slices"

	"github.com/nats-io/nkeys"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/bus"
	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
	"github.com/sampan-io/sampan/services/internal/component"
	"github.com/sampan-io/sampan/services/internal/pki"
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
		external, err := s.externalBus()
		if err != nil {
			return &component.UsageError{Err: err}
		}
		s.busMetrics = append(publisher.Metrics(), external.Metrics()...)
		publish := func(ctx context.Context) error { return external.Run(ctx, publisher) }
		s.running.Go(func() { s.reportBus(s.alone(ctx, "sampan-bus-publisher", publish)) })
		return nil
	}
	embedded, err := s.embeddedBus()
	if err != nil {
		return &component.UsageError{Err: fmt.Errorf("--nats-listen-address: %w", err)}
	}
	s.busMetrics = append(publisher.Metrics(), embedded.Metrics()...)
	s.running.Go(func() { s.reportBus(embedded.Run(ctx, publisher)) })
	return nil
}

func (s *server) reportBus(err error) {
	if err != nil {
		s.log.Error("The bus has ended; its listeners are fed by the API", "err", err)
	}
}

func (s *server) embeddedBus() (*bus.Server, error) {
	config := bus.Config{Address: s.Bus.ListenAddress, Access: s.busAccess()}
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

func (s *server) busAccess() bus.Access {
	return bus.Access{
		Tokens: s.security.accounts, Authorizer: s.security.authorizer, Changed: s.security.rbac.Changed,
		Namespaces: s.namespaces, Topics: s.topics(), Log: s.log,
	}
}

func (s *server) externalBus() (*bus.External, error) {
	config := bus.ExternalConfig{URL: s.Bus.URL, Account: s.Bus.Account, Access: s.busAccess()}
	if s.Bus.CAFile != "" {
		authorities, err := pki.LoadCertificates(s.Bus.CAFile)
		if err != nil {
			return nil, fmt.Errorf("--nats-ca-file: %w", err)
		}
		config.TLS = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
		for _, authority := range authorities {
			config.TLS.RootCAs.AddCert(authority)
		}
	}
	var err error
	if config.User, err = busKey("--nats-user-seed-file", s.Bus.UserSeedFile); err != nil {
		return nil, err
	}
	if config.Issuer, err = busKey("--nats-issuer-seed-file", s.Bus.IssuerSeedFile); err != nil {
		return nil, err
	}
	return bus.NewExternal(config)
}

// busKey reads the seed of a key of NATS; without a file there is none.
func busKey(flag, file string) (nkeys.KeyPair, error) {
	if file == "" {
		return nil, nil
	}
	seed, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	pair, err := nkeys.FromSeed(bytes.TrimSpace(seed))
	if err != nil {
		return nil, fmt.Errorf("%s: %s holds no seed of a NATS key: %w", flag, file, err)
	}
	return pair, nil
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
