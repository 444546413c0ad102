// Package state holds what the proxy knows of Services, EndpointSlices and
// Nodes, and tells which Services changed.
package state

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Sources are where informers are fed from. Services and EndpointSlices may
// come from the watch bus; Nodes come from the API server.
type Sources struct {
	Services, EndpointSlices, Nodes cache.ListerWatcher
}

// FromAPI feeds everything from the API server's watch.
func FromAPI(client kubernetes.Interface) Sources {
	return Sources{
		Services:       listerWatcher(client, client.CoreV1().Services("").List, client.CoreV1().Services("").Watch),
		EndpointSlices: listerWatcher(client, client.DiscoveryV1().EndpointSlices("").List, client.DiscoveryV1().EndpointSlices("").Watch),
		Nodes:          listerWatcher(client, client.CoreV1().Nodes().List, client.CoreV1().Nodes().Watch),
	}
}

func listerWatcher[L runtime.Object](client kubernetes.Interface, list func(context.Context, metav1.ListOptions) (L, error), follow cache.WatchFuncWithContext) cache.ListerWatcher {
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return list(ctx, options)
		},
		WatchFuncWithContext: follow,
	}, client)
}

// Names of indexes.
const (
	byService = "service" // slices by "namespace/name" of their Service
	byAddress = "address" // Services and slices by IP
)

// State is the informers' content. Its objects are shared and not changed.
type State struct {
	services, slices, nodes cache.SharedIndexInformer

	handled []cache.InformerSynced // what existed has been handled

	mu       sync.Mutex
	changed  map[string]time.Time // Services by key → oldest trigger
	nodesAt  bool
	revision uint64 // of the newest slice that was handled
	wake     chan struct{}

	// SliceSeen is called with the revision of each slice that has been handled, if
	// it is set; it must not block.
	SliceSeen func(revision uint64)
}

// New makes informers; Run fills them.
func New(sources Sources) (*State, error) {
	s := &State{changed: map[string]time.Time{}, wake: make(chan struct{}, 1)}
	s.services = cache.NewSharedIndexInformer(sources.Services, &corev1.Service{}, 0, cache.Indexers{byAddress: serviceAddresses, cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	s.slices = cache.NewSharedIndexInformer(sources.EndpointSlices, &discoveryv1.EndpointSlice{}, 0, cache.Indexers{byService: sliceService, byAddress: sliceAddresses, cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	s.nodes = cache.NewSharedIndexInformer(sources.Nodes, &corev1.Node{}, 0, cache.Indexers{})
	for informer, handle := range map[cache.SharedIndexInformer]func(obj any){s.services: s.serviceChanged, s.slices: s.sliceChanged, s.nodes: s.nodeChanged} {
		if err := informer.SetTransform(trim); err != nil {
			return nil, fmt.Errorf("setting up informer: %w", err)
		}
		registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: handle, DeleteFunc: handle,
			UpdateFunc: func(before, after any) { handle(before); handle(after) },
		})
		if err != nil {
			return nil, fmt.Errorf("setting up informer: %w", err)
		}
		s.handled = append(s.handled, registration.HasSynced)
	}
	return s, nil
}

// trim drops what is never looked at, which is most of an object's memory.
func trim(obj any) (any, error) {
	switch o := obj.(type) {
	case *corev1.Service:
		o.ManagedFields, o.Annotations, o.OwnerReferences, o.Spec.Selector = nil, nil, nil, nil
	case *discoveryv1.EndpointSlice:
		trigger := o.Annotations[corev1.EndpointsLastChangeTriggerTime]
		o.ManagedFields, o.Annotations, o.OwnerReferences = nil, nil, nil
		for i := range o.Endpoints {
			o.Endpoints[i].TargetRef, o.Endpoints[i].DeprecatedTopology, o.Endpoints[i].Zone = nil, nil, nil
		}
		if trigger != "" {
			o.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: trigger}
		}
	case *corev1.Node:
		o.ManagedFields, o.Annotations, o.Status.Images = nil, nil, nil
	}
	return obj, nil
}

// Run fills and follows until ctx ends.
func (s *State) Run(ctx context.Context) {
	var group sync.WaitGroup
	for _, informer := range []cache.SharedIndexInformer{s.services, s.slices, s.nodes} {
		group.Go(func() { informer.Run(ctx.Done()) })
	}
	group.Wait()
}

// AwaitSync waits until everything that existed is known.
func (s *State) AwaitSync(ctx context.Context) bool {
	return cache.WaitForCacheSync(ctx.Done(), s.handled...)
}

// Synced says whether everything that existed is known.
func (s *State) Synced() bool {
	return s.services.HasSynced() && s.slices.HasSynced() && s.nodes.HasSynced()
}

// Changed tells of changes: receive, then Take.
func (s *State) Changed() <-chan struct{} { return s.wake }

// Changes is what has changed since the last Take.
type Changes struct {
	// Services that changed, with the moment of the change that caused each where it
	// is known.
	Services map[string]time.Time
	Nodes    bool
	// Revision is the newest one of all EndpointSlices so far.
	Revision uint64
}

// Take are the changes since the last call.
func (s *State) Take() Changes {
	s.mu.Lock()
	defer s.mu.Unlock()
	changes := Changes{Services: s.changed, Nodes: s.nodesAt, Revision: s.revision}
	s.changed, s.nodesAt = map[string]time.Time{}, false
	return changes
}

func (s *State) mark(key string, trigger time.Time) {
	s.mu.Lock()
	if have, ok := s.changed[key]; !ok || (!trigger.IsZero() && (have.IsZero() || trigger.Before(have))) {
		s.changed[key] = trigger
	}
	s.mu.Unlock()
	s.ring()
}

func (s *State) ring() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *State) serviceChanged(obj any) {
	if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
		s.mark(key, time.Time{})
	}
}

func (s *State) sliceChanged(obj any) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	slice, ok := obj.(*discoveryv1.EndpointSlice)
	if !ok {
		return
	}
	trigger, _ := time.Parse(time.RFC3339Nano, slice.Annotations[corev1.EndpointsLastChangeTriggerTime])
	s.mark(slice.Namespace+"/"+slice.Labels[discoveryv1.LabelServiceName], trigger)
	s.seen(slice)
}

// seen notes the revision, after what the slice changes has been marked.
func (s *State) seen(slice *discoveryv1.EndpointSlice) {
	revision := revisionOf(slice)
	s.mu.Lock()
	s.revision = max(s.revision, revision)
	s.mu.Unlock()
	if s.SliceSeen != nil {
		s.SliceSeen(revision)
	}
}

func revisionOf(slice *discoveryv1.EndpointSlice) uint64 {
	revision, err := strconv.ParseUint(slice.ResourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return revision
}

// Membership is what the EndpointSlices of a namespace say of an address.
type Membership struct {
	In          bool   // it is an endpoint of some Service
	Terminating bool   // and is terminating wherever it is one
	Revision    uint64 // the newest of the namespace's slices
}

// Member looks an address up.
func (s *State) Member(namespace, address string) Membership {
	m := Membership{Terminating: true}
	objs, err := s.slices.GetIndexer().ByIndex(cache.NamespaceIndex, namespace)
	if err != nil {
		return m
	}
	for _, obj := range objs {
		slice := obj.(*discoveryv1.EndpointSlice)
		m.Revision = max(m.Revision, revisionOf(slice))
		for i := range slice.Endpoints {
			endpoint := &slice.Endpoints[i]
			if slices.Contains(endpoint.Addresses, address) {
				m.In = true
				m.Terminating = m.Terminating && endpoint.Conditions.Terminating != nil && *endpoint.Conditions.Terminating
			}
		}
	}
	return m
}

func (s *State) nodeChanged(any) {
	s.mu.Lock()
	s.nodesAt = true
	s.mu.Unlock()
	s.ring()
}

// Service is one Service by key, nil when it is gone.
func (s *State) Service(namespace, name string) *corev1.Service {
	obj, ok, err := s.services.GetStore().GetByKey(namespace + "/" + name)
	if err != nil || !ok {
		return nil
	}
	return obj.(*corev1.Service)
}

// Services are all Services.
func (s *State) Services() []*corev1.Service {
	var out []*corev1.Service
	for _, obj := range s.services.GetStore().List() {
		out = append(out, obj.(*corev1.Service))
	}
	return out
}

// Slices are the slices of a Service.
func (s *State) Slices(namespace, name string) []*discoveryv1.EndpointSlice {
	objs, err := s.slices.GetIndexer().ByIndex(byService, namespace+"/"+name)
	if err != nil {
		return nil
	}
	out := make([]*discoveryv1.EndpointSlice, 0, len(objs))
	for _, obj := range objs {
		out = append(out, obj.(*discoveryv1.EndpointSlice))
	}
	return out
}

// Nodes are all nodes.
func (s *State) Nodes() []*corev1.Node {
	var out []*corev1.Node
	for _, obj := range s.nodes.GetStore().List() {
		out = append(out, obj.(*corev1.Node))
	}
	return out
}

// Namespace says whether a namespace is known to have a Service.
func (s *State) Namespace(name string) bool {
	keys, err := s.services.GetIndexer().IndexKeys(cache.NamespaceIndex, name)
	return err == nil && len(keys) > 0
}

// ServiceByIP is the Service with a cluster IP, nil for none.
func (s *State) ServiceByIP(ip netip.Addr) *corev1.Service {
	objs, err := s.services.GetIndexer().ByIndex(byAddress, ip.String())
	if err != nil || len(objs) == 0 {
		return nil
	}
	return objs[0].(*corev1.Service)
}

// EndpointByIP is the headless Service that an address belongs to, and the
// endpoint's hostname; nil for none.
func (s *State) EndpointByIP(ip netip.Addr) (service *corev1.Service, hostname string) {
	objs, err := s.slices.GetIndexer().ByIndex(byAddress, ip.String())
	if err != nil {
		return nil, ""
	}
	for _, obj := range objs {
		slice := obj.(*discoveryv1.EndpointSlice)
		service := s.Service(slice.Namespace, slice.Labels[discoveryv1.LabelServiceName])
		if service == nil || service.Spec.ClusterIP != corev1.ClusterIPNone {
			continue
		}
		for _, endpoint := range slice.Endpoints {
			for _, address := range endpoint.Addresses {
				if address == ip.String() {
					if endpoint.Hostname != nil {
						hostname = *endpoint.Hostname
					}
					return service, hostname
				}
			}
		}
	}
	return nil, ""
}

func serviceAddresses(obj any) ([]string, error) {
	var out []string
	service, ok := obj.(*corev1.Service)
	if !ok {
		return nil, nil
	}
	for _, ip := range append([]string{service.Spec.ClusterIP}, service.Spec.ClusterIPs...) {
		if ip != "" && ip != corev1.ClusterIPNone {
			out = append(out, ip)
		}
	}
	return out, nil
}

func sliceService(obj any) ([]string, error) {
	slice, ok := obj.(*discoveryv1.EndpointSlice)
	if !ok || slice.Labels[discoveryv1.LabelServiceName] == "" {
		return nil, nil
	}
	return []string{slice.Namespace + "/" + slice.Labels[discoveryv1.LabelServiceName]}, nil
}

// sliceAddresses indexes the slices of headless Services only, for reverse DNS.
func sliceAddresses(obj any) ([]string, error) {
	slice, ok := obj.(*discoveryv1.EndpointSlice)
	if !ok {
		return nil, nil
	}
	if _, headless := slice.Labels[corev1.IsHeadlessService]; !headless {
		return nil, nil
	}
	var out []string
	for _, endpoint := range slice.Endpoints {
		out = append(out, endpoint.Addresses...)
	}
	return out, nil
}
