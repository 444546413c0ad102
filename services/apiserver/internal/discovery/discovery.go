// Package discovery tells clients what the server serves: the plain lists per
// group and version, and the aggregated one that answers all in one request.
package discovery

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// Service answers the discovery paths, for resources that may change.
type Service struct {
	address string
	current atomic.Pointer[snapshot]

	mu        sync.Mutex
	resources []*registry.Resource
	remote    []Remote
}

// group is one API group with its versions, the preferred one first.
type group struct {
	name     string
	versions []groupVersion
}

type groupVersion struct {
	version   string
	resources []*registry.Resource // by name
	remote    *Remote              // instead of resources
}

// New describes resources. Address is the server's, host and port, for clients
// that ask where to find it.
func New(resources []*registry.Resource, address string) *Service {
	s := &Service{address: address}
	s.Set(resources)
	return s
}

// Set describes other resources from now on. It costs little: documents are made
// when they are asked for.
func (s *Service) Set(resources []*registry.Resource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resources = resources
	s.current.Store(newSnapshot(s.resources, s.remote, s.address))
}

// SetRemote describes what other servers serve from now on.
func (s *Service) SetRemote(remote []Remote) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remote = remote
	s.current.Store(newSnapshot(s.resources, s.remote, s.address))
}

// order of groups is upstream's; others follow by name.
func order() []string {
	return []string{
		"", "apiregistration.k8s.io", "apps", "events.k8s.io", "authentication.k8s.io", "authorization.k8s.io", "autoscaling",
		"batch", "certificates.k8s.io", "networking.k8s.io", "policy", "rbac.authorization.k8s.io", "storage.k8s.io",
		"admissionregistration.k8s.io", "apiextensions.k8s.io", "scheduling.k8s.io", "coordination.k8s.io", "node.k8s.io",
		"discovery.k8s.io", "flowcontrol.apiserver.k8s.io", "resource.k8s.io", "storagemigration.k8s.io",
	}
}

func grouped(resources []*registry.Resource) []group {
	byVersion := map[schema.GroupVersion][]*registry.Resource{}
	versions := map[string][]string{}
	for _, r := range resources {
		gv := r.GroupVersion()
		if byVersion[gv] == nil {
			versions[gv.Group] = append(versions[gv.Group], gv.Version)
		}
		byVersion[gv] = append(byVersion[gv], r)
	}
	var groups []group
	for name, list := range versions {
		sort.Slice(list, func(i, j int) bool { return version.CompareKubeAwareVersionStrings(list[i], list[j]) > 0 })
		g := group{name: name}
		for _, v := range list {
			served := byVersion[schema.GroupVersion{Group: name, Version: v}]
			slices.SortFunc(served, func(a, b *registry.Resource) int {
				return strings.Compare(a.Resource, b.Resource)
			})
			g.versions = append(g.versions, groupVersion{version: v, resources: served})
		}
		groups = append(groups, g)
	}
	rank := order()
	slices.SortFunc(groups, func(a, b group) int {
		i, j := slices.Index(rank, a.name), slices.Index(rank, b.name)
		switch {
		case i >= 0 && j >= 0:
			return i - j
		case i >= 0:
			return -1
		case j >= 0:
			return 1
		}
		return strings.Compare(a.name, b.name)
	})
	return groups
}

func versionPath(group, version string) string {
	if group == "" {
		return "/api/" + version
	}
	return "/apis/" + group + "/" + version
}

func coreVersions(g group, address string) *metav1.APIVersions {
	out := &metav1.APIVersions{
		TypeMeta:                   metav1.TypeMeta{Kind: "APIVersions"},
		ServerAddressByClientCIDRs: []metav1.ServerAddressByClientCIDR{{ClientCIDR: "0.0.0.0/0", ServerAddress: address}},
	}
	for _, v := range g.versions {
		out.Versions = append(out.Versions, v.version)
	}
	return out
}

func apiGroup(g group) metav1.APIGroup {
	out := metav1.APIGroup{Name: g.name}
	for _, v := range g.versions {
		out.Versions = append(out.Versions, metav1.GroupVersionForDiscovery{GroupVersion: g.name + "/" + v.version, Version: v.version})
	}
	out.PreferredVersion = out.Versions[0]
	return out
}

func resourceList(group string, v groupVersion) *metav1.APIResourceList {
	gv := schema.GroupVersion{Group: group, Version: v.version}
	out := &metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: gv.String(), APIResources: []metav1.APIResource{},
	}
	for _, r := range v.resources {
		name := r.Resource
		out.APIResources = append(out.APIResources, metav1.APIResource{
			Name: name, SingularName: r.Singular, Namespaced: r.Namespaced, Kind: r.Kind, Verbs: verbs(r),
			ShortNames: r.ShortNames, Categories: r.Categories, StorageVersionHash: storageVersionHash(r),
		})
		for i := range r.Subresources {
			sub := &r.Subresources[i]
			if len(sub.Verbs) == 0 {
				continue
			}
			one := metav1.APIResource{Name: name + "/" + sub.Name, Namespaced: r.Namespaced, Kind: r.Kind, Verbs: sub.Verbs}
			if kind := subresourceKind(r, sub); kind != r.GroupVersion().WithKind(r.Kind) {
				one.Kind = kind.Kind
				if kind.GroupVersion() != gv {
					one.Group, one.Version = kind.Group, kind.Version
				}
			}
			out.APIResources = append(out.APIResources, one)
		}
	}
	sort.SliceStable(out.APIResources, func(i, j int) bool { return out.APIResources[i].Name < out.APIResources[j].Name })
	return out
}

func verbs(r *registry.Resource) []string {
	if r.Verbs != nil {
		return r.Verbs
	}
	return []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
}

func subresourceKind(r *registry.Resource, sub *registry.Subresource) schema.GroupVersionKind {
	switch {
	case !sub.Kind.Empty():
		return sub.Kind
	case sub.Scale != nil:
		return schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"}
	}
	return r.GroupVersion().WithKind(r.Kind)
}

// storageVersionHash lets clients notice when the stored version changes.
func storageVersionHash(r *registry.Resource) string {
	if r.KeyPrefix == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(r.StoredVersion.WithKind(r.Kind).String()))
	return base64.StdEncoding.EncodeToString(sum[:8])
}

func aggregatedType(version string) metav1.TypeMeta {
	return metav1.TypeMeta{Kind: "APIGroupDiscoveryList", APIVersion: "apidiscovery.k8s.io/" + version}
}

func aggregated(g group) apidiscovery.APIGroupDiscovery {
	out := apidiscovery.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: g.name}}
	for _, v := range g.versions {
		if v.remote != nil {
			out.Versions = append(out.Versions, v.remote.aggregatedVersion())
			continue
		}
		one := apidiscovery.APIVersionDiscovery{Version: v.version, Freshness: apidiscovery.DiscoveryFreshnessCurrent}
		for _, r := range v.resources {
			one.Resources = append(one.Resources, aggregatedResource(r))
		}
		out.Versions = append(out.Versions, one)
	}
	return out
}

func aggregatedResource(r *registry.Resource) apidiscovery.APIResourceDiscovery {
	out := apidiscovery.APIResourceDiscovery{
		Resource: r.Resource, ResponseKind: responseKind(r.GroupVersion().WithKind(r.Kind), r.GroupVersion()),
		Scope: apidiscovery.ScopeCluster, SingularResource: r.Singular, Verbs: verbs(r),
		ShortNames: r.ShortNames, Categories: r.Categories,
	}
	if r.Namespaced {
		out.Scope = apidiscovery.ScopeNamespace
	}
	for i := range r.Subresources {
		sub := &r.Subresources[i]
		if len(sub.Verbs) == 0 {
			continue
		}
		out.Subresources = append(out.Subresources, apidiscovery.APISubresourceDiscovery{
			Subresource: sub.Name, ResponseKind: responseKind(subresourceKind(r, sub), r.GroupVersion()), Verbs: sub.Verbs,
		})
	}
	sort.SliceStable(out.Subresources, func(i, j int) bool { return out.Subresources[i].Subresource < out.Subresources[j].Subresource })
	return out
}

// responseKind names group and version where they are others than those of the
// list, as upstream does.
func responseKind(kind schema.GroupVersionKind, list schema.GroupVersion) *metav1.GroupVersionKind {
	if kind.GroupVersion() == list {
		return &metav1.GroupVersionKind{Kind: kind.Kind}
	}
	return &metav1.GroupVersionKind{Group: kind.Group, Version: kind.Version, Kind: kind.Kind}
}

// Groups are the paths of all group versions, for the index of paths.
func (s *Service) Groups() []string { return s.current.Load().paths() }

// Handler serves /api, /apis and the paths of groups and versions below; next
// serves what is none of them.
func (s *Service) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		now := s.current.Load()
		path := strings.TrimSuffix(r.URL.Path, "/")
		plain, ok := now.plain[path]
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "discovery can only be read", http.StatusMethodNotAllowed)
			return
		}
		switch path {
		case "/api":
			serve(w, r, plain(), now.core)
		case "/apis":
			serve(w, r, plain(), now.named)
		default:
			serve(w, r, plain(), nil)
		}
	})
}
