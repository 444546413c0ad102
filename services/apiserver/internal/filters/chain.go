// Package filters is the ordered chain that each request passes before its
// handler.
package filters

import (
	"net/http"
	"slices"
	"time"

	"log/slog"

	"github.com/sampan-io/sampan/services/apiserver/internal/audit"
	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/apiserver/internal/authz"
	"github.com/sampan-io/sampan/services/apiserver/internal/fairness"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
)

// Filter wraps the handler that comes after it.
type Filter func(next http.Handler) http.Handler

// Config is what the chain needs.
type Config struct {
	Log           *slog.Logger
	Metrics       *Metrics
	Authenticator authn.Authenticator
	Authorizer    authz.Authorizer
	// Long says that a request has no deadline.
	Long           func(r *http.Request, info *request.Info) bool
	RequestTimeout time.Duration
	// CORSAllowed are patterns of origins; none allows no origin.
	CORSAllowed []string
	// Ready is closed when the cluster's own objects are there: until then,
	// requests wait whose rights may be among them. Nil waits for nothing.
	Ready <-chan struct{}
	// MaxRequests and MaxMutating bound what is in flight where there is no
	// Fairness; 0 is without a bound.
	MaxRequests, MaxMutating int
	// Fairness divides what is in flight between priority levels; may be nil.
	Fairness *fairness.Dispatcher
	// Auditor records requests; may be nil.
	Auditor *audit.Auditor
	// Objects says how much a list reads, for Fairness.
	Objects Objects
}

// bound is the filter that bounds what is in flight.
func (c *Config) bound() Filter {
	if c.Fairness == nil {
		return InFlight(c.MaxRequests, c.MaxMutating, c.Long, c.Metrics)
	}
	return Fairness(c.Fairness, c.Long, c.Objects, c.Metrics)
}

// Chain is handler behind all filters. The list is the order in which a request
// passes them.
func Chain(handler http.Handler, c Config) http.Handler {
	filters := []Filter{
		Recovery(c.Log, c.Metrics),
		Info(),
		Observe(c.Log, c.Metrics),
		Deadline(c.RequestTimeout, c.Long),
		Warnings(),
		CORS(c.CORSAllowed),
		Authentication(c.Authenticator, c.Auditor, c.Log, c.Metrics),
		Audit(c.Auditor, c.Long), // after it is known who asks, before they act as another
		Impersonation(c.Authorizer),
		Await(c.Ready),
		c.bound(),
		Authorization(c.Authorizer),
	}
	for _, filter := range slices.Backward(filters) {
		handler = filter(handler)
	}
	return handler
}
