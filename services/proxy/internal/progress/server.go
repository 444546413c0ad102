package progress

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"github.com/sampan-io/sampan/services/proxy/internal/state"
)

// Paths of the API.
const (
	AppliedPath = "/endpointslices/applied"
	DrainedPath = "/endpoints/drained"
)

// maxWait is how long a request may ask to wait.
const maxWait = 10 * time.Second

// Applied is the answer at AppliedPath.
type Applied struct {
	Node     string `json:"node"`
	Revision uint64 `json:"revision"`
}

// Drained is the answer at DrainedPath.
type Drained struct {
	// InSlice tells whether the address is an endpoint of any Service.
	InSlice bool `json:"inSlice"`
	// Drained tells that no proxy that has answered sends new connections there.
	Drained bool `json:"drained"`
	// Revision is the one that the proxies were waited for.
	Revision uint64 `json:"revision,omitempty"`
	// Silent are the nodes whose proxies did not tell in time.
	Silent []string `json:"silent,omitempty"`
}

// Members tells of addresses in EndpointSlices.
type Members interface {
	Member(namespace, address string) state.Membership
}

// Peers asks the proxies of other nodes.
type Peers interface {
	// Await waits until all have applied the revision, or ctx ends, and returns the
	// nodes whose proxies have not told so.
	Await(ctx context.Context, revision uint64) (silent []string)
}

// Server answers for one proxy.
type Server struct {
	Node    string
	Members Members
	Seen    *Revision // of the slices that are known
	Applied *Revision // of those that are in the rules
	Peers   Peers
}

// Install adds the paths to a mux.
func (s *Server) Install(mux *http.ServeMux) {
	mux.HandleFunc("GET "+AppliedPath, s.applied)
	mux.HandleFunc("GET "+DrainedPath, s.drained)
}

// applied answers once the rules are at ?revision=, or after ?timeout=.
func (s *Server) applied(w http.ResponseWriter, r *http.Request) {
	ctx, cancel, err := patience(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	defer cancel()
	var least uint64
	if text := r.FormValue("revision"); text != "" {
		if least, err = strconv.ParseUint(text, 10, 64); err != nil {
			http.Error(w, fmt.Sprintf("revision: %q is not a number", text), http.StatusBadRequest)
			return
		}
	}
	answer(w, Applied{Node: s.Node, Revision: s.Applied.Await(ctx, least)})
}

// drained answers once no proxy sends ?address= of ?namespace= new connections, or
// after ?timeout=. Only this host may ask, for it makes requests to all nodes.
func (s *Server) drained(w http.ResponseWriter, r *http.Request) {
	if !fromHere(r) {
		http.Error(w, "only this node may ask", http.StatusForbidden)
		return
	}
	ctx, cancel, err := patience(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	defer cancel()
	namespace, address := r.FormValue("namespace"), r.FormValue("address")
	if _, err := netip.ParseAddr(address); err != nil || namespace == "" {
		http.Error(w, "namespace and address are needed", http.StatusBadRequest)
		return
	}
	answer(w, s.drain(ctx, namespace, address))
}

func (s *Server) drain(ctx context.Context, namespace, address string) Drained {
	var out Drained
	for {
		seen, changed := s.Seen.Now()
		member := s.Members.Member(namespace, address)
		out.InSlice = out.InSlice || member.In
		if !out.InSlice {
			out.Drained = true
			return out
		}
		if member.Terminating || !member.In {
			out.Revision = max(seen, member.Revision)
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return out
		}
	}
	here := make(chan bool, 1)
	go func() { here <- s.Applied.Await(ctx, out.Revision) >= out.Revision }()
	out.Silent = s.Peers.Await(ctx, out.Revision)
	if !<-here {
		out.Silent = append(out.Silent, s.Node)
	}
	out.Drained = len(out.Silent) == 0
	return out
}

func fromHere(r *http.Request) bool {
	remote, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	local, known := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !known {
		return false
	}
	own, err := netip.ParseAddrPort(local.String())
	return err == nil && (remote.Addr().IsLoopback() || remote.Addr() == own.Addr())
}

func patience(r *http.Request) (context.Context, context.CancelFunc, error) {
	wait := time.Duration(0)
	if text := r.FormValue("timeout"); text != "" {
		var err error
		if wait, err = time.ParseDuration(text); err != nil || wait < 0 || wait > maxWait {
			return nil, nil, fmt.Errorf("timeout: %q is not a duration of at most %s", text, maxWait)
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), wait)
	return ctx, cancel, nil
}

func answer(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_ = json.NewEncoder(w).Encode(value)
}
