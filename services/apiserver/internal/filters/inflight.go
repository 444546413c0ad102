package filters

import (
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
	"github.com/sampan-io/sampan/services/apiserver/internal/response"
)

// InFlight bounds how many requests are served at a time, mutating and
// read-only apart, and answers 429 to those beyond. Long requests, health checks
// and administrators are exempt.
func InFlight(maxRead, maxMutating int, long func(*http.Request, *request.Info) bool, metrics *Metrics) Filter {
	read := newGate(maxRead, "readOnly", metrics)
	mutating := newGate(maxMutating, "mutating", metrics)
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			info := request.InfoFrom(r.Context())
			if exempt(r, info) || info.IsResourceRequest && long(r, info) {
				next.ServeHTTP(w, r)
				return
			}
			gate := mutating
			switch r.Method {
			case http.MethodGet, http.MethodHead, http.MethodOptions:
				gate = read
			}
			if !gate.enter() {
				metrics.dropped.WithLabelValues(gate.name).Inc()
				metrics.terminated.WithLabelValues(httpVerb(r.Method), "429").Inc()
				response.Error(w, r, apierrors.NewTooManyRequests("too many requests, please try again later", 1))
				return
			}
			defer gate.leave()
			next.ServeHTTP(w, r)
		})
	}
}

// Await holds resource requests of all but administrators until ready is closed:
// a client that is faster than the start must not read that it may do nothing.
func Await(ready <-chan struct{}) Filter {
	return func(next http.Handler) http.Handler {
		if ready == nil {
			return next
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if info := request.InfoFrom(r.Context()); info.IsResourceRequest && !exempt(r, info) {
				select {
				case <-ready:
				case <-r.Context().Done():
					response.Error(w, r, apierrors.NewServiceUnavailable("the server is starting"))
					return
				}
			}
			next.ServeHTTP(w, r)
		})
	}
}

func exempt(r *http.Request, info *request.Info) bool {
	if !info.IsResourceRequest && isHealth(info.Path) {
		return true
	}
	user := request.UserFrom(r.Context())
	return user != nil && user.InGroup(authn.MastersGroup)
}

// gate lets a number of requests through at a time.
type gate struct {
	name  string
	slots chan struct{} // nil is without a bound
	gauge interface {
		Inc()
		Dec()
	}
}

func newGate(limit int, name string, metrics *Metrics) *gate {
	g := &gate{name: name, gauge: metrics.inflight.WithLabelValues(name)}
	if limit > 0 {
		g.slots = make(chan struct{}, limit)
	}
	return g
}

func (g *gate) enter() bool {
	if g.slots != nil {
		select {
		case g.slots <- struct{}{}:
		default:
			return false
		}
	}
	g.gauge.Inc()
	return true
}

func (g *gate) leave() {
	g.gauge.Dec()
	if g.slots != nil {
		<-g.slots
	}
}
