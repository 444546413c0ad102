package resourcequota

import (
	"context"
	"errors"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"github.com/sampan-io/sampan/services/controller-manager/internal/controller"
)

// monitors watch the metadata of the resources that quotas count, and of no
// others.
type monitors struct {
	client  metadata.Interface
	changed func(schema.GroupResource, metav1.Object)

	mu      sync.Mutex
	ctx     context.Context //nolint:containedctx // the life of Run, which monitors that start later must not outlive
	running map[schema.GroupResource]*monitor
	group   sync.WaitGroup
}

type monitor struct {
	informer cache.SharedIndexInformer
	synced   cache.InformerSynced
}

// newMonitors calls changed when an object comes or goes.
func newMonitors(client metadata.Interface, changed func(schema.GroupResource, metav1.Object)) *monitors {
	return &monitors{client: client, changed: changed, running: map[schema.GroupResource]*monitor{}}
}

// begin lets monitors start, until ctx ends.
func (m *monitors) begin(ctx context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ctx = ctx
}

func (m *monitors) wait() { m.group.Wait() }

func (m *monitors) has(resource schema.GroupResource) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.running[resource] != nil
}

// start watches a resource unless it is watched already.
func (m *monitors) start(gvr schema.GroupVersionResource) {
	m.mu.Lock()
	defer m.mu.Unlock()
	resource := gvr.GroupResource()
	if m.running[resource] != nil || m.ctx == nil || m.ctx.Err() != nil {
		return
	}
	indexers := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
	informer := metadatainformer.NewFilteredMetadataInformer(m.client, gvr, metav1.NamespaceAll, 0, indexers, nil).Informer()
	note := func(object *metav1.PartialObjectMetadata) { m.changed(resource, object) }
	synced, err := controller.Watch(informer, note, nil, note)
	if err == nil {
		err = informer.SetTransform(slim)
	}
	if err != nil { // only for an informer that has run already
		return
	}
	m.running[resource] = &monitor{informer: informer, synced: synced}
	ctx := m.ctx
	m.group.Go(func() { informer.RunWithContext(ctx) })
}

// slim keeps what counting needs.
func slim(object any) (any, error) {
	if meta, ok := object.(*metav1.PartialObjectMetadata); ok {
		meta.ManagedFields, meta.Annotations, meta.Labels, meta.OwnerReferences = nil, nil, nil, nil
	}
	return object, nil
}

var errNotSynced = errors.New("the cache has not been filled yet")

// list is what a monitor has seen in a namespace.
func (m *monitors) list(resource schema.GroupResource, namespace string) ([]runtime.Object, error) {
	m.mu.Lock()
	running := m.running[resource]
	m.mu.Unlock()
	if running == nil || !running.synced() {
		return nil, errNotSynced
	}
	found, err := running.informer.GetIndexer().ByIndex(cache.NamespaceIndex, namespace)
	if err != nil {
		return nil, err
	}
	out := make([]runtime.Object, 0, len(found))
	for _, obj := range found {
		if object, ok := obj.(runtime.Object); ok {
			out = append(out, object)
		}
	}
	return out, nil
}
