package discovery

import (
	"sync"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// snapshot describes the resources of one time. Each document is made on first
// use.
type snapshot struct {
	groups []group
	plain  map[string]lazy // by path
	core   lazy            // aggregated, /api
	named  lazy            // aggregated, /apis
}

// lazy is a document that is made once.
type lazy func() document

func later(build func() runtime.Object) lazy {
	return sync.OnceValue(func() document { return newDocument(build()) })
}

// newSnapshot leaves the paths of remote versions to those who serve them.
func newSnapshot(resources []*registry.Resource, remote []Remote, address string) *snapshot {
	s := &snapshot{groups: merge(grouped(resources), remote), plain: map[string]lazy{}}
	for _, g := range s.groups {
		for _, v := range g.versions {
			if v.remote != nil {
				continue
			}
			s.plain[versionPath(g.name, v.version)] = later(func() runtime.Object { return resourceList(g.name, v) })
		}
		if g.name == "" {
			s.plain["/api"] = later(func() runtime.Object { return coreVersions(g, address) })
			continue
		}
		s.plain["/apis/"+g.name] = later(func() runtime.Object {
			described := apiGroup(g)
			described.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
			return &described
		})
	}
	s.plain["/apis"] = later(s.groupList)
	s.core = later(func() runtime.Object { return s.aggregated(func(name string) bool { return name == "" }) })
	s.named = later(func() runtime.Object { return s.aggregated(func(name string) bool { return name != "" }) })
	return s
}

func (s *snapshot) groupList() runtime.Object {
	list := &metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: []metav1.APIGroup{}}
	for _, g := range s.groups {
		if g.name != "" {
			list.Groups = append(list.Groups, apiGroup(g))
		}
	}
	return list
}

func (s *snapshot) aggregated(wanted func(group string) bool) runtime.Object {
	list := &apidiscovery.APIGroupDiscoveryList{TypeMeta: aggregatedType("v2"), Items: []apidiscovery.APIGroupDiscovery{}}
	for _, g := range s.groups {
		if wanted(g.name) {
			list.Items = append(list.Items, aggregated(g))
		}
	}
	return list
}

func (s *snapshot) paths() []string {
	paths := make([]string, 0, len(s.plain))
	for path := range s.plain {
		paths = append(paths, path)
	}
	return paths
}
