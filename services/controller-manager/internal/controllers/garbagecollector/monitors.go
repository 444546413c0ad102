package garbagecollector

import (
	"context"
	"log/slog"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"github.com/sampan-io/sampan/services/controller-manager/internal/controller"
)

// served is a resource of the API.
type served struct {
	resource   schema.GroupVersionResource
	kind       string
	namespaced bool
	watched    bool // it can be listed, watched and deleted, and is worth it
}

// monitors watch the metadata of all objects that can be deleted.
type monitors struct {
	client  metadata.Interface
	set     func(*node)
	removed func(metav1.Object)
	defined func() // an object that defines resources has changed
	log     *slog.Logger

	mu      sync.Mutex
	kinds   map[schema.GroupKind]served
	running map[schema.GroupVersionResource]*monitor
	group   sync.WaitGroup
}

type monitor struct {
	stop   context.CancelFunc
	synced cache.InformerSynced
}

// discover is what the API serves now, each kind in its preferred version. Groups
// that fail are left out, with the error.
func discover(api discovery.DiscoveryInterface) ([]served, error) {
	lists, err := discovery.ServerPreferredResources(api)
	var found []served
	for _, list := range lists {
		version, parseErr := schema.ParseGroupVersion(list.GroupVersion)
		if parseErr != nil {
			continue
		}
		for _, r := range list.APIResources {
			verbs := []string(r.Verbs)
			found = append(found, served{
				resource: version.WithResource(r.Name), kind: r.Kind, namespaced: r.Namespaced,
				watched: slices.Contains(verbs, "list") && slices.Contains(verbs, "watch") && slices.Contains(verbs, "delete") && r.Name != "events",
			})
		}
	}
	return found, err
}

// update starts monitors for what is new and stops those of what is gone. Complete
// says that resources are all there are: nothing is stopped otherwise. It returns
// the resources that were stopped.
func (m *monitors) update(ctx context.Context, resources []served, complete bool) []schema.GroupVersionResource {
	m.mu.Lock()
	defer m.mu.Unlock()
	current := map[schema.GroupVersionResource]bool{}
	for _, r := range resources {
		m.kinds[schema.GroupKind{Group: r.resource.Group, Kind: r.kind}] = r
		if !r.watched {
			continue
		}
		current[r.resource] = true
		if m.running[r.resource] == nil {
			m.running[r.resource] = m.start(ctx, r)
		}
	}
	if !complete {
		return nil
	}
	var stopped []schema.GroupVersionResource
	for resource, running := range m.running {
		if !current[resource] {
			running.stop()
			delete(m.running, resource)
			stopped = append(stopped, resource)
		}
	}
	for kind, r := range m.kinds {
		if r.watched && !current[r.resource] {
			delete(m.kinds, kind)
		}
	}
	return stopped
}

func (m *monitors) start(ctx context.Context, r served) *monitor {
	ctx, stop := context.WithCancel(ctx)
	informer := metadatainformer.NewFilteredMetadataInformer(m.client, r.resource, metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer()
	defines := r.resource.Resource == "customresourcedefinitions" || r.resource.Resource == "apiservices"
	note := func(object *metav1.PartialObjectMetadata) {
		if defines {
			m.defined()
		}
		m.set(newNode(r.resource, r.kind, object))
	}
	synced, err := controller.Watch(informer, note,
		func(old, object *metav1.PartialObjectMetadata) {
			if old.UID != object.UID { // deleted and made again between two looks
				m.removed(old)
			}
			note(object)
		},
		func(object *metav1.PartialObjectMetadata) {
			if defines {
				m.defined()
			}
			m.removed(object)
		})
	if err == nil {
		err = informer.SetTransform(slim)
	}
	if err != nil { // only for an informer that has run already
		m.log.Error("Watching a resource for garbage", "resource", r.resource.String(), "err", err)
	}
	m.group.Go(func() { informer.RunWithContext(ctx) })
	return &monitor{stop: stop, synced: synced}
}

// slim keeps what the graph needs: there may be very many objects.
func slim(object any) (any, error) {
	meta, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return object, nil
	}
	meta.ManagedFields, meta.Annotations, meta.Labels = nil, nil, nil
	return meta, nil
}

// kind is the resource of an owner's kind.
func (m *monitors) kind(apiVersion, kind string) (served, bool) {
	version, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return served{}, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.kinds[schema.GroupKind{Group: version.Group, Kind: kind}]
	return r, ok
}

func (m *monitors) synced() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, running := range m.running {
		if running.synced != nil && !running.synced() {
			return false
		}
	}
	return true
}
