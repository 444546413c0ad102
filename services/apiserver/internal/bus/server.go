// Package bus publishes committed events to NATS, on an embedded server or an
// external one, and lets in only who may watch what it carries.
package bus

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/sampan-io/sampan/services/internal/component"
)

// Config of the embedded bus.
type Config struct {
	Access
	Address string      // host:port; port 0 is a free one
	TLS     *tls.Config // nil only on loopback
}

const (
	startTimeout = 10 * time.Second
	republishMin = time.Second
)

// Server is an embedded NATS server without monitoring, JetStream, routes,
// gateways, leaf nodes, WebSocket and MQTT.
type Server struct {
	nats   *server.Server
	gate   *gate
	secret string // the publisher's own
}

// NewServer makes a server that listens. A taken address is an error that
// names it.
func NewServer(c Config) (*Server, error) {
	options, err := c.options()
	if err != nil {
		return nil, err
	}
	if options.Port != server.RANDOM_PORT {
		// NATS says it less clearly.
		listener, err := component.Listen(context.Background(), c.Address)
		if err != nil {
			return nil, err
		}
		if err := listener.Close(); err != nil {
			return nil, fmt.Errorf("trying the bus's address: %w", err)
		}
	}
	secret := make([]byte, 32)
	if _, err := rand.Read(secret); err != nil {
		return nil, fmt.Errorf("drawing a secret: %w", err)
	}
	s := &Server{gate: newGate(c.Access), secret: hex.EncodeToString(secret)}
	options.CustomClientAuthentication = s
	n, err := server.NewServer(options)
	if err != nil {
		return nil, fmt.Errorf("making the bus: %w", err)
	}
	failed := make(chan string, 1)
	n.SetLoggerV2(&logger{log: c.Log, fatal: failed}, false, false, false)
	n.Start()
	select {
	case problem := <-failed:
		n.Shutdown()
		n.WaitForShutdown()
		return nil, fmt.Errorf("starting the bus on %s: %s", c.Address, problem)
	default:
	}
	if !n.ReadyForConnections(startTimeout) {
		n.Shutdown()
		n.WaitForShutdown()
		return nil, fmt.Errorf("starting the bus on %s: it does not listen after %v", c.Address, startTimeout)
	}
	s.nats = n
	return s, nil
}

func (c *Config) options() (*server.Options, error) {
	host, portText, err := net.SplitHostPort(c.Address)
	if err != nil {
		return nil, fmt.Errorf("address of the bus: %w", err)
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("address of the bus %s: the port is not a number up to 65535", c.Address)
	}
	if c.TLS == nil && !Loopback(c.Address) {
		return nil, fmt.Errorf("address of the bus %s: without TLS only loopback is served", c.Address)
	}
	options := &server.Options{
		ServerName: "sampan", Host: host, Port: int(port), NoSigs: true, NoSystemAccount: true,
		TLS: c.TLS != nil, TLSConfig: c.TLS, TLSTimeout: 5, AuthTimeout: 10,
		MaxPayload: 1 << 20, MaxControlLine: 4096, MaxPending: 16 << 20, WriteDeadline: 10 * time.Second, PingInterval: 20 * time.Second,
	}
	if port == 0 {
		options.Port = server.RANDOM_PORT
	}
	return options, nil
}

// Loopback says whether an address (host:port) is reached from this host only.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && net.ParseIP(host).IsLoopback()
}

// Address is where the bus listens.
func (s *Server) Address() string { return s.nats.Addr().String() }

// Run publishes until ctx ends, and then ends the server.
func (s *Server) Run(ctx context.Context, publisher *Publisher) error {
	defer s.nats.WaitForShutdown()
	defer s.nats.Shutdown()
	conn, err := nats.Connect("", nats.InProcessServer(s.nats), nats.Token(s.secret), nats.MaxReconnects(-1), nats.Name("publisher"))
	if err != nil {
		return fmt.Errorf("connecting the publisher: %w", err)
	}
	defer conn.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		keepPublishing(ctx, publisher, conn, s.interest)
	}()
	s.gate.watch(ctx, s)
	<-done
	return nil
}

// interest says whether anyone has subscribed to a subject.
func (s *Server) interest(subject string) bool { return s.nats.GlobalAccount().Interest(subject) > 0 }

// keepPublishing starts a publisher that has failed again.
func keepPublishing(ctx context.Context, publisher *Publisher, conn *nats.Conn, interest func(string) bool) {
	for pause := republishMin; ; pause = min(2*pause, time.Minute) {
		err := publisher.Run(ctx, conn, interest)
		if err == nil || ctx.Err() != nil {
			return
		}
		publisher.log.Error("The bus publishes nothing for a while; listeners are fed by the API", "err", err, "retryAfter", pause)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// Check implements server.Authentication.
func (s *Server) Check(c server.ClientAuthentication) bool {
	token := c.GetOpts().Token
	if token == "" {
		token = c.GetOpts().Password // of clients that know users and passwords only
	}
	if subtle.ConstantTimeCompare([]byte(token), []byte(s.secret)) == 1 {
		c.RegisterUser(&server.User{Username: "publisher", Permissions: &server.Permissions{
			Publish:   &server.SubjectPermission{Allow: []string{"sampan.>"}},
			Subscribe: &server.SubjectPermission{Deny: []string{">"}},
		}})
		return true
	}
	verified, granted := s.gate.admit(context.Background(), token, c.RemoteAddress().String())
	if len(granted) == 0 {
		return false
	}
	c.RegisterUser(&server.User{
		Username: verified.User.Name, ConnectionDeadline: verified.Expires,
		Permissions: &server.Permissions{
			Publish:   &server.SubjectPermission{Deny: []string{">"}},
			Subscribe: &server.SubjectPermission{Allow: granted},
		},
	})
	s.gate.remember(connection{id: c.GetID()}, listener{token, granted, verified.Expires})
	return true
}

func (s *Server) exists(c connection) bool { return s.nats.GetClient(c.id) != nil }

func (s *Server) disconnect(c connection) error { return s.nats.DisconnectClientByID(c.id) }
