package discovery

import (
	"slices"
	"strings"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// Remote is a group version that another server serves, in place of this one.
type Remote struct {
	Group, Version string
	// GroupPriority and VersionPriority order groups, and versions in a group: the
	// higher comes first.
	GroupPriority, VersionPriority int32
	// Resources is how the server described it last; nil is never.
	Resources *metav1.APIResourceList
	// Stale says that the server does not answer now.
	Stale bool
}

// Priorities of groups and versions that are served here.
const (
	builtInGroup, customGroup     = 18000, 1000
	customVersion                 = 100
	stableVersion, earlierVersion = 15, 9
)

// merge puts the versions of remote servers into groups, in place of local ones
// of the same name, and orders all by priority.
func merge(groups []group, remote []Remote) []group {
	if len(remote) == 0 {
		return groups
	}
	priorities := map[string]int32{}
	for i := range remote {
		r := &remote[i]
		at := slices.IndexFunc(groups, func(g group) bool { return g.name == r.Group })
		if at < 0 {
			at = len(groups)
			groups = append(groups, group{name: r.Group})
		}
		g := &groups[at]
		g.versions = slices.DeleteFunc(slices.Clone(g.versions), func(v groupVersion) bool { return v.version == r.Version })
		g.versions = append(g.versions, groupVersion{version: r.Version, remote: r})
		slices.SortFunc(g.versions, func(a, b groupVersion) int {
			if x, y := a.priority(), b.priority(); x != y {
				return int(y - x)
			}
			return version.CompareKubeAwareVersionStrings(b.version, a.version)
		})
		priorities[r.Group] = max(priorities[r.Group], r.GroupPriority)
	}
	rank := order()
	of := func(g group) int32 {
		if slices.Contains(rank, g.name) {
			return max(builtInGroup, priorities[g.name])
		}
		if p, ok := priorities[g.name]; ok {
			return p
		}
		return customGroup
	}
	slices.SortStableFunc(groups, func(a, b group) int {
		x, y := of(a), of(b)
		if x != y {
			return int(y - x)
		}
		if x == builtInGroup {
			return 0 // in their order
		}
		return strings.Compare(a.name, b.name)
	})
	return groups
}

func (v *groupVersion) priority() int32 {
	switch {
	case v.remote != nil:
		return v.remote.VersionPriority
	case slices.ContainsFunc(v.resources, func(r *registry.Resource) bool { return r.Untyped != nil }):
		return customVersion
	case strings.ContainsAny(strings.TrimPrefix(v.version, "v"), "abcdefghijklmnopqrstuvwxyz"):
		return earlierVersion
	}
	return stableVersion
}

// aggregatedVersion describes a remote version.
func (r *Remote) aggregatedVersion() apidiscovery.APIVersionDiscovery {
	out := apidiscovery.APIVersionDiscovery{Version: r.Version, Freshness: apidiscovery.DiscoveryFreshnessCurrent}
	if r.Stale || r.Resources == nil {
		out.Freshness = apidiscovery.DiscoveryFreshnessStale
	}
	if r.Resources == nil {
		return out
	}
	at := map[string]int{}
	for i := range r.Resources.APIResources {
		one := &r.Resources.APIResources[i]
		if strings.Contains(one.Name, "/") {
			continue
		}
		described := apidiscovery.APIResourceDiscovery{
			Resource: one.Name, ResponseKind: r.kindOf(one), Scope: apidiscovery.ScopeCluster, SingularResource: one.SingularName,
			Verbs: one.Verbs, ShortNames: one.ShortNames, Categories: one.Categories,
		}
		if one.Namespaced {
			described.Scope = apidiscovery.ScopeNamespace
		}
		at[one.Name] = len(out.Resources)
		out.Resources = append(out.Resources, described)
	}
	for i := range r.Resources.APIResources {
		one := &r.Resources.APIResources[i]
		parent, name, ok := strings.Cut(one.Name, "/")
		place, known := at[parent]
		if !ok || !known {
			continue
		}
		out.Resources[place].Subresources = append(out.Resources[place].Subresources, apidiscovery.APISubresourceDiscovery{
			Subresource: name, ResponseKind: r.kindOf(one), Verbs: one.Verbs,
		})
	}
	return out
}

// kindOf is the kind of a resource, which is of the version's own group and version
// unless it says otherwise.
func (r *Remote) kindOf(one *metav1.APIResource) *metav1.GroupVersionKind {
	kind := &metav1.GroupVersionKind{Group: r.Group, Version: r.Version, Kind: one.Kind}
	if one.Group != "" || one.Version != "" {
		kind.Group, kind.Version = one.Group, one.Version
	}
	return kind
}
