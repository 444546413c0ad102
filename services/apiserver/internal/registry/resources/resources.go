// Package resources is the list of what the server serves.
package resources

import (
	"net/netip"
	"time"

	"github.com/sampan-io/sampan/services/apiserver/internal/apiextensions/crd"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/allocator"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/apiregistration"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/apps"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/autoscaling"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/batch"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/certificates"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/coordination"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/core"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/discovery"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/events"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/flowcontrol"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/networking"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/node"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/policy"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/resource"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/scheduling"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/storage"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/storagemigration"
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
	// Components are shown as componentstatuses; nil leaves that resource out.
	Components []core.Component
	// Allocations give Services their addresses and ports; nil makes them.
	Allocations *allocator.Services
	// Others are resources that are made elsewhere.
	Others []*registry.Resource
}

// NewAllocations checks the ranges of cluster IPs and node ports, and allocates
// from them.
func (d Deps) NewAllocations() (*allocator.Services, error) {
	return allocator.NewServices(d.ServiceCIDRs, d.FirstNodePort, d.LastNodePort, d.State)
}

// New is every resource, one a line. It panics on ranges that NewAllocations
// refuses.
func New(d Deps) []*registry.Resource {
	allocations := d.Allocations
	if allocations == nil {
		var err error
		if allocations, err = d.NewAllocations(); err != nil {
			panic("resources: " + err.Error())
		}
	}
	list := []*registry.Resource{
		core.Bindings(d.State),
		core.ConfigMaps(),
		core.Endpoints(),
		core.Events(d.EventTTL),
		core.LimitRanges(),
		core.Namespaces(),
		core.Nodes(d.Proxying),
		core.PersistentVolumeClaims(),
		core.PersistentVolumes(),
		core.Pods(core.PodDeps{State: d.State, Streaming: d.Streaming, Proxying: d.Proxying}),
		core.PodTemplates(),
		core.ReplicationControllers(),
		core.ResourceQuotas(),
		core.Secrets(),
		core.ServiceAccounts(d.Token),
		core.Services(allocations, d.Proxying),
		crd.Definitions(),
		apiregistration.APIServices(),
		apps.ControllerRevisions(),
		apps.DaemonSets(),
		apps.Deployments(),
		apps.ReplicaSets(),
		apps.StatefulSets(),
		autoscaling.HorizontalPodAutoscalers(),
		autoscaling.HorizontalPodAutoscalersV1(),
		batch.CronJobs(),
		batch.Jobs(),
		certificates.CertificateSigningRequests(),
		certificates.ClusterTrustBundles(),
		certificates.PodCertificateRequests(),
		coordination.Leases(),
		discovery.EndpointSlices(),
		events.Events(d.EventTTL),
		flowcontrol.FlowSchemas(),
		flowcontrol.PriorityLevelConfigurations(),
		networking.IPAddresses(),
		networking.IngressClasses(),
		networking.Ingresses(),
		networking.NetworkPolicies(),
		networking.ServiceCIDRs(),
		node.RuntimeClasses(),
		policy.PodDisruptionBudgets(),
		resource.DeviceClasses(),
		resource.DeviceTaintRules(),
		resource.ResourceClaims(d.State),
		resource.ResourceClaimTemplates(d.State),
		resource.ResourceSlices(),
		scheduling.PriorityClasses(),
		storage.CSIDrivers(),
		storage.CSINodes(),
		storage.CSIStorageCapacities(),
		storage.StorageClasses(),
		storage.VolumeAttachments(),
		storage.VolumeAttributesClasses(),
		storagemigration.StorageVersionMigrations(),
	}
	if d.Components != nil {
		list = append(list, core.ComponentStatuses(d.Components))
	}
	return append(list, d.Others...)
}
