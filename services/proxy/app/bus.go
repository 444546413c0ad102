package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/sampan-io/sampan/proto/bus"
	"github.com/sampan-io/sampan/services/internal/component"
	"github.com/sampan-io/sampan/services/proxy/internal/state"
)

// BusOptions say whether Services and EndpointSlices come over the watch bus.
type BusOptions struct {
	URL       string
	TokenFile string
}

func (o *BusOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.URL, "bus-url", o.URL, "watch bus that Services and EndpointSlices come from (tls://host:port); empty watches the API server")
	fs.StringVar(&o.TokenFile, "bus-token-file", o.TokenFile, "file with a service-account token of the audience "+bus.TokenAudience+", read at each connect; empty asks the API server for one of kube-system/kube-proxy")
}

// check refuses to send tokens over the network unencrypted.
func (o *BusOptions) check() (secure bool, err error) {
	address, err := url.Parse(o.URL)
	if err != nil || address.Host == "" {
		return false, fmt.Errorf("--bus-url: %q is not of the form tls://host:port", o.URL)
	}
	switch address.Scheme {
	case "tls":
		return true, nil
	case "nats":
		if ip := net.ParseIP(address.Hostname()); ip == nil || !ip.IsLoopback() {
			return false, fmt.Errorf("--bus-url: %s is not encrypted, which is accepted on loopback only; use tls://", o.URL)
		}
		return false, nil
	default:
		return false, fmt.Errorf("--bus-url: the scheme of %s is neither tls nor nats", o.URL)
	}
}

// connect puts Services and EndpointSlices on the bus. Without a bus nothing
// changes. The caller calls disconnect at the end.
func (o *BusOptions) connect(clientset kubernetes.Interface, config *rest.Config, sources *state.Sources, m *metrics, log *slog.Logger) (disconnect func(), err error) {
	if o.URL == "" {
		return func() {}, nil
	}
	secure, err := o.check()
	if err != nil {
		return nil, &component.UsageError{Err: err}
	}
	options := bus.Options{URL: o.URL, Log: log, Token: o.token(clientset)}
	if secure {
		if options.TLS, err = authorityOf(config); err != nil {
			return nil, err
		}
	}
	conn, err := bus.Connect(options)
	if err != nil {
		return nil, &component.UsageError{Err: err}
	}
	m.watchBus(conn)
	sources.Services = conn.ListerWatcher(schema.GroupResource{Resource: "services"}, "", sources.Services)
	sources.EndpointSlices = conn.ListerWatcher(schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}, "", sources.EndpointSlices)
	return conn.Close, nil
}

// authorityOf believes whom the kubeconfig believes; the client certificate is
// not for the bus.
func authorityOf(config *rest.Config) (*tls.Config, error) {
	full, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, fmt.Errorf("reading the API server's authority: %w", err)
	}
	own := &tls.Config{MinVersion: tls.VersionTLS12}
	if full != nil {
		own.RootCAs, own.InsecureSkipVerify = full.RootCAs, full.InsecureSkipVerify
	}
	return own, nil
}

func (o *BusOptions) token(clientset kubernetes.Interface) func() (string, error) {
	if o.TokenFile == "" {
		return (&busToken{clientset: clientset}).get
	}
	return func() (string, error) {
		data, err := os.ReadFile(o.TokenFile)
		if err != nil {
			return "", fmt.Errorf("reading --bus-token-file: %w", err)
		}
		return strings.TrimSpace(string(data)), nil
	}
}

const (
	accountNamespace, accountName = "kube-system", "kube-proxy"

	tokenLifetime = time.Hour
	tokenTimeout  = 5 * time.Second
	// soon is the time within which being asked again means that the token may have
	// been refused.
	soon = 10 * time.Second
)

// busToken asks the API server for tokens, and uses each again while it is
// young and seems to be accepted.
type busToken struct {
	clientset kubernetes.Interface

	mu            sync.Mutex
	token         string
	renew, handed time.Time
}

func (t *busToken) get() (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if t.token != "" && now.Before(t.renew) && now.Sub(t.handed) > soon {
		t.handed = now
		return t.token, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), tokenTimeout)
	defer cancel()
	seconds := int64(tokenLifetime.Seconds())
	answer, err := t.clientset.CoreV1().ServiceAccounts(accountNamespace).CreateToken(ctx, accountName, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: []string{bus.TokenAudience}, ExpirationSeconds: &seconds},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("asking for a token of %s/%s: %w", accountNamespace, accountName, err)
	}
	if answer.Status.Token == "" {
		return "", errors.New("the API server answered without a token")
	}
	t.token, t.handed = answer.Status.Token, now
	t.renew = now.Add(time.Until(answer.Status.ExpirationTimestamp.Time) / 2)
	return t.token, nil
}

// watchBus measures the connection to the bus.
func (m *metrics) watchBus(conn *bus.Conn) {
	counter := func(name, help string, pick func(bus.Stats) int64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(pick(conn.Stats())) })
	}
	gauge := func(name, help string, pick func(bus.Stats) int64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(pick(conn.Stats())) })
	}
	m.registry.MustRegister(
		counter("sampan_bus_events_total", "Events taken from the watch bus.", func(s bus.Stats) int64 { return s.Events }),
		counter("sampan_bus_repairs_total", "Gaps of the watch bus that the API server had to fill.", func(s bus.Stats) int64 { return s.Repairs }),
		gauge("sampan_bus_following", "Watches that the API server feeds, for the bus does not at the moment.", func(s bus.Stats) int64 { return s.Following }),
		gauge("sampan_bus_connected", "Whether the watch bus is connected.", func(s bus.Stats) int64 {
			if s.Connected {
				return 1
			}
			return 0
		}),
	)
}
