package bus

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// Options of a connection to the bus.
type Options struct {
	URL string // "tls://10.0.0.1:4222"
	TLS *tls.Config
	// Token is asked for at every connect: a service-account token with the audience
	// TokenAudience. Nil on a bus without authentication.
	Token func() (string, error)
	Log   *slog.Logger
	// Received, when set, sees each message before it is taken in and says whether
	// to go on; tests lose messages with it.
	Received func(subject string) bool
}

// Conn is a connection to the bus. It reconnects by itself for as long as it is
// open; what is missed meanwhile is repaired by the listeners.
type Conn struct {
	nats    *nats.Conn
	options Options
	// life ends with Close, and ends all watches.
	life context.Context
	end  context.CancelFunc

	mu        sync.Mutex
	listeners map[*listener]struct{}

	events, repairs, following atomic.Int64
}

// Stats count what happened on a connection.
type Stats struct {
	Connected bool
	Events    int64 // taken from the bus
	Repairs   int64 // gaps that the API server had to fill
	Following int64 // watches that are fed by the API server now
}

const (
	connectTimeout  = 5 * time.Second
	reconnectPause  = 250 * time.Millisecond
	reconnectMaxLog = 5 // the pause doubles that often
)

// Connect opens a connection. A bus that cannot be reached yet is no error:
// until it can, listeners are fed from the API server.
func Connect(options Options) (*Conn, error) {
	if options.Log == nil {
		options.Log = slog.Default()
	}
	c := &Conn{options: options, listeners: map[*listener]struct{}{}}
	c.life, c.end = context.WithCancel(context.Background())
	conn, err := nats.Connect(options.URL, c.settings()...)
	if err != nil {
		c.end()
		return nil, fmt.Errorf("connecting to the bus %s: %w", options.URL, err)
	}
	c.nats = conn
	return c, nil
}

func (c *Conn) settings() []nats.Option {
	log := c.options.Log
	settings := []nats.Option{
		nats.Name("sampan"), nats.Timeout(connectTimeout), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1),
		nats.CustomReconnectDelay(reconnectDelay), nats.ReconnectBufSize(-1),
		nats.PingInterval(5 * time.Second), nats.MaxPingsOutstanding(2),
		nats.ConnectHandler(func(*nats.Conn) { log.Info("Bus connected", "url", c.options.URL); c.catchUp() }),
		nats.ReconnectHandler(func(*nats.Conn) { log.Info("Bus connected again", "url", c.options.URL); c.catchUp() }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if c.life.Err() == nil {
				log.Info("Bus disconnected", "err", err)
			}
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { log.Warn("Bus reports an error", "err", err) }),
		// A refused token may be an old one: the next try asks for a new one.
		nats.IgnoreAuthErrorAbort(),
	}
	if c.options.TLS != nil {
		settings = append(settings, nats.Secure(c.options.TLS))
	}
	if c.options.Token != nil {
		settings = append(settings, nats.TokenHandler(func() string {
			token, err := c.options.Token()
			if err != nil {
				log.Warn("No token for the bus", "err", err)
			}
			return token
		}))
	}
	return settings
}

// reconnectDelay doubles with every vain attempt and is drawn at random, so that
// the listeners of a bus that comes back do not come all at once.
func reconnectDelay(attempts int) time.Duration {
	longest := reconnectPause << min(attempts, reconnectMaxLog)
	return longest/2 + rand.N(longest/2)
}

// catchUp makes all listeners ask the API server for what they may have missed.
func (c *Conn) catchUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for l := range c.listeners {
		select {
		case l.reconnected <- struct{}{}:
		default:
		}
	}
}

func (c *Conn) add(l *listener) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listeners[l] = struct{}{}
}

func (c *Conn) remove(l *listener) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.listeners, l)
}

// Stats are the connection's counts so far.
func (c *Conn) Stats() Stats {
	return Stats{Connected: c.nats.IsConnected(), Events: c.events.Load(), Repairs: c.repairs.Load(), Following: c.following.Load()}
}

// Close ends the connection and with it all watches.
func (c *Conn) Close() {
	c.end()
	c.nats.Close()
}
