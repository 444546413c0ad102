// Package bus publishes committed events to NATS, on an embedded server or an
// external one, and lets in only who may watch what it carries.
package bus

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/apiserver/internal/authz"
)

// Config of the embedded bus.
type Config struct {
	Address string      // host:port; port 0 is a free one
	TLS     *tls.Config // nil only on loopback
	Tokens  authn.TokenAuthenticator
	// Authorizer says who may watch a resource, and so listen to it.
	Authorizer authz.Authorizer
	Namespaces Namespaces
	Topics     []Topic
	Log        *slog.Logger
}

const (
	recheckEvery = 5 * time.Second
	startTimeout = 5 * time.Second
)

// Server is an embedded NATS server without monitoring, JetStream, routes,
// gateways, leaf nodes, WebSocket and MQTT.
type Server struct {
	nats *server.Server
	gate *gate
}

// NewServer makes and starts a server.
func NewServer(c Config) (*Server, error) {
	host, portText, err := net.SplitHostPort(c.Address)
	if err != nil {
		return nil, fmt.Errorf("address of the bus: %w", err)
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		return nil, fmt.Errorf("address of the bus: %w", err)
	}
	if port == 0 {
		port = server.RANDOM_PORT
	}
	if c.TLS == nil && !net.ParseIP(host).IsLoopback() {
		return nil, fmt.Errorf("address of the bus %s: without TLS only loopback is served", c.Address)
	}
	secret := make([]byte, 32)
	if _, err := rand.Read(secret); err != nil {
		return nil, fmt.Errorf("drawing a secret: %w", err)
	}
	g := &gate{tokens: c.Tokens, authorizer: c.Authorizer, namespaces: c.Namespaces, topics: c.Topics, log: c.Log, internal: hex.EncodeToString(secret), listeners: map[uint64]listener{}}
	options := &server.Options{
		ServerName: "sampan", Host: host, Port: port, NoSigs: true, NoLog: true, DontListen: false,
		TLS: c.TLS != nil, TLSConfig: c.TLS, TLSTimeout: 5, AuthTimeout: 10, NoSystemAccount: true,
		CustomClientAuthentication: g, MaxPayload: 1 << 20, MaxControlLine: 4096, MaxPending: 16 << 20,
		WriteDeadline: 10 * time.Second, PingInterval: 20 * time.Second,
	}
	n, err := server.NewServer(options)
	if err != nil {
		return nil, fmt.Errorf("making the bus: %w", err)
	}
	n.Start()
	if !n.ReadyForConnections(startTimeout) {
		n.Shutdown()
		return nil, fmt.Errorf("the bus does not listen on %s; is another process there?", c.Address)
	}
	return &Server{nats: n, gate: g}, nil
}

// Address is where the bus listens.
func (s *Server) Address() string { return s.nats.Addr().String() }

// Run publishes until ctx ends, and then ends the server.
func (s *Server) Run(ctx context.Context, publisher *Publisher) error {
	defer s.nats.WaitForShutdown()
	defer s.nats.Shutdown()
	conn, err := nats.Connect("", nats.InProcessServer(s.nats), nats.Token(s.gate.internal), nats.MaxReconnects(-1), nats.Name("publisher"))
	if err != nil {
		return fmt.Errorf("connecting the publisher: %w", err)
	}
	defer conn.Close()
	done := make(chan error, 1)
	go func() { done <- publisher.Run(ctx, conn) }()
	ticker := time.NewTicker(recheckEvery)
	defer ticker.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-ticker.C:
			s.gate.recheck(s.nats.DisconnectClientByID)
		}
	}
}

// RunExternal publishes to an external NATS server until ctx ends. Who may
// listen there is that server's to say.
func RunExternal(ctx context.Context, url string, publisher *Publisher) error {
	conn, err := nats.Connect(url, nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.Name("sampan-publisher"))
	if err != nil {
		return fmt.Errorf("connecting to %s: %w", url, err)
	}
	defer conn.Close()
	if err := publisher.Run(ctx, conn); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
