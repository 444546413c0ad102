// Package resources is the list of what the server serves.
package resources

import (
	"net/netip"
	"time"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/apps"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/coordination"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/core"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/discovery"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/events"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/scheduling"
)

// Deps is what resources need of the rest of the server.
type Deps struct {
	// State gives access to stored objects. It is called when a request needs it,
	// not by New, so that it may be bound after the list was made.
	State func() registry.State
	// ServiceCIDRs are the ranges of cluster IPs, the primary family's first; one
	// per IP family.
	ServiceCIDRs []netip.Prefix
	// FirstNodePort and LastNodePort bound node ports, both included.
	FirstNodePort, LastNodePort int
	// EventTTL is how long events are kept.
	EventTTL time.Duration
	// Streaming and Proxying serve the subresources that reach into pods, nodes and
	// services. Nil leaves those subresources out.
	Streaming core.Streaming
	Proxying  core.Proxying
	// Token answers POSTs to serviceaccounts/token; nil leaves it out.
	Token *registry.Create
	// Others are resources that are made elsewhere.
	Others []*registry.Resource
}

// New is every resource, one a line.
func New(d Deps) []*registry.Resource {
	return append([]*registry.Resource{
		core.Bindings(d.State),
		core.ConfigMaps(),
		core.Endpoints(),
		core.Events(d.EventTTL),
		core.Namespaces(),
		core.Nodes(d.Proxying),
		core.Pods(core.PodDeps{State: d.State, Streaming: d.Streaming, Proxying: d.Proxying}),
		core.Secrets(),
		core.ServiceAccounts(d.Token),
		apps.Deployments(),
		apps.ReplicaSets(),
		coordination.Leases(),
		discovery.EndpointSlices(),
		events.Events(d.EventTTL),
		scheduling.PriorityClasses(),
	}, d.Others...)
}
