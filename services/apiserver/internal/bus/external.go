package bus

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// ExternalConfig is about a NATS server, or a cluster of them, that runs on its
// own.
type ExternalConfig struct {
	Access
	URL string
	TLS *tls.Config // nil uses the system's authorities where the URL says tls
	// User is the key that this server connects with; nil uses what the URL says.
	User nkeys.KeyPair
	// Issuer is the key that NATS knows this server's decisions by ("issuer" of its
	// auth_callout). Without it who may listen is that server's to say.
	Issuer  nkeys.KeyPair
	Account string // of NATS, that listeners are put into
}

// External is a bus on NATS servers that run on their own.
type External struct {
	ExternalConfig
	gate *gate
}

// NewExternal refuses keys that cannot do what they are for.
func NewExternal(c ExternalConfig) (*External, error) {
	for what, key := range map[string]struct {
		pair   nkeys.KeyPair
		prefix func(string) bool
	}{"user": {c.User, nkeys.IsValidPublicUserKey}, "issuer": {c.Issuer, nkeys.IsValidPublicAccountKey}} {
		if key.pair == nil {
			continue
		}
		if public, err := key.pair.PublicKey(); err != nil || !key.prefix(public) {
			return nil, fmt.Errorf("the bus's %s key is of another kind (%w)", what, errors.Join(err, errKind))
		}
	}
	return &External{ExternalConfig: c, gate: newGate(c.Access)}, nil
}

var errKind = errors.New("user seeds begin with SU, issuers', which are accounts', with SA")

// Run publishes, and lets listeners in, until ctx ends. The server may come and
// go meanwhile.
func (e *External) Run(ctx context.Context, publisher *Publisher) error {
	conn, err := nats.Connect(e.URL, e.settings()...)
	if err != nil {
		return fmt.Errorf("connecting to the external bus: %w", err)
	}
	defer conn.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if e.Issuer != nil {
			e.keepGate(ctx, conn)
		}
	}()
	keepPublishing(ctx, publisher, conn, nil)
	<-done
	if err := conn.FlushTimeout(time.Second); err != nil && !errors.Is(err, nats.ErrTimeout) {
		e.Log.Info("The last messages may not have been published", "err", err)
	}
	return nil
}

func (e *External) settings() []nats.Option {
	log := e.Log
	settings := []nats.Option{
		nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(time.Second), nats.IgnoreAuthErrorAbort(),
		nats.Name("sampan-publisher"),
		nats.ConnectHandler(func(*nats.Conn) { log.Info("Publishing to an external bus") }),
		nats.ReconnectHandler(func(*nats.Conn) { log.Info("Publishing to an external bus again") }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { logDisconnect(log, err) }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			log.Warn("External bus reports an error", "err", err)
		}),
	}
	if e.TLS != nil {
		settings = append(settings, nats.Secure(e.TLS))
	}
	if e.User != nil {
		public, err := e.User.PublicKey()
		if err == nil { // NewExternal has seen it
			settings = append(settings, nats.Nkey(public, e.User.Sign))
		}
	}
	return settings
}

func logDisconnect(log *slog.Logger, err error) {
	if err != nil { // nil at the end
		log.Warn("External bus disconnected", "err", err)
	}
}
