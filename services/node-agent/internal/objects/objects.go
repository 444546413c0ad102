// Package objects reads the secrets and config maps that this node's pods use,
// each by its name, for a node may read no others, and watches them for as long
// as a pod uses them.
package objects

import (
	"context"
	"fmt"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

type kind string

const (
	configMaps kind = "configmap"
	secrets    kind = "secret"
	// trustBundles stands for all of the cluster, which every node may read.
	trustBundles kind = "clustertrustbundle"
)

type key struct {
	kind            kind
	namespace, name string
}

// Store holds the objects that pods use. Its watches end with the last pod that
// uses the object, or with Close.
type Store struct {
	client kubernetes.Interface
	// changed is called with the pods that use an object which has changed.
	changed func(uid types.UID)

	mu      sync.Mutex
	objects map[key]*object
	pods    map[types.UID]map[key]struct{}
	running sync.WaitGroup
	base    context.Context
	stop    context.CancelFunc
}

type object struct {
	users    map[types.UID]struct{}
	informer cache.SharedIndexInformer
	stop     context.CancelFunc
}

// New makes a store that reads through client. Changed is called from the
// watches' goroutines and must not block.
func New(client kubernetes.Interface, changed func(uid types.UID)) *Store {
	base, stop := context.WithCancel(context.Background())
	return &Store{client: client, changed: changed, objects: map[key]*object{}, pods: map[types.UID]map[key]struct{}{}, base: base, stop: stop}
}

// Close ends all watches and waits for them.
func (s *Store) Close() {
	s.stop()
	s.running.Wait()
}

// Use says which objects the pod refers to now, all of them.
func (s *Store) Use(pod *corev1.Pod) {
	wanted := references(pod)
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.pods[pod.UID] {
		if _, still := wanted[k]; !still {
			s.release(k, pod.UID)
		}
	}
	for k := range wanted {
		s.acquire(k, pod.UID)
	}
	s.pods[pod.UID] = wanted
}

// Forget ends the pod's use of its objects.
func (s *Store) Forget(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.pods[uid] {
		s.release(k, uid)
	}
	delete(s.pods, uid)
}

// acquire starts the watch with the first user. Caller must hold mu.
func (s *Store) acquire(k key, uid types.UID) {
	o, known := s.objects[k]
	if !known {
		ctx, stop := context.WithCancel(s.base)
		o = &object{users: map[types.UID]struct{}{}, informer: s.newInformer(k), stop: stop}
		s.objects[k] = o
		s.running.Go(func() { o.informer.RunWithContext(ctx) })
	}
	o.users[uid] = struct{}{}
}

// release ends the watch with the last user. Caller must hold mu.
func (s *Store) release(k key, uid types.UID) {
	o, known := s.objects[k]
	if !known {
		return
	}
	delete(o.users, uid)
	if len(o.users) == 0 {
		o.stop()
		delete(s.objects, k)
	}
}

func (s *Store) newInformer(k key) cache.SharedIndexInformer {
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, k.name).String()
	var lw *cache.ListWatch
	var example runtime.Object
	switch k.kind {
	case configMaps:
		api := s.client.CoreV1().ConfigMaps(k.namespace)
		example = &corev1.ConfigMap{}
		lw = &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				o.FieldSelector = selector
				return api.List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				o.FieldSelector = selector
				return api.Watch(ctx, o)
			},
		}
	case trustBundles:
		api := s.client.CertificatesV1().ClusterTrustBundles()
		example = &certificatesv1.ClusterTrustBundle{}
		lw = &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return api.List(ctx, o) },
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return api.Watch(ctx, o)
			},
		}
	case secrets:
		api := s.client.CoreV1().Secrets(k.namespace)
		example = &corev1.Secret{}
		lw = &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				o.FieldSelector = selector
				return api.List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				o.FieldSelector = selector
				return api.Watch(ctx, o)
			},
		}
	}
	informer := cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(lw, s.client), example, 0, cache.Indexers{})
	notify := func() { s.notify(k) }
	// Adding a handler fails on a stopped informer only, and this one has not run.
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { notify() }, UpdateFunc: func(any, any) { notify() }, DeleteFunc: func(any) { notify() },
	})
	return informer
}

func (s *Store) notify(k key) {
	s.mu.Lock()
	var users []types.UID
	if o, known := s.objects[k]; known {
		for uid := range o.users {
			users = append(users, uid)
		}
	}
	s.mu.Unlock()
	for _, uid := range users {
		s.changed(uid)
	}
}

// ConfigMap is the config map of that name, from the watch once it has begun.
func (s *Store) ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	return get(ctx, s, key{configMaps, namespace, name}, s.client.CoreV1().ConfigMaps(namespace).Get)
}

// Secret is the secret of that name, from the watch once it has begun.
func (s *Store) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	return get(ctx, s, key{secrets, namespace, name}, s.client.CoreV1().Secrets(namespace).Get)
}

// TrustBundles are all bundles of trust anchors of the cluster, from the watch once it
// has begun.
func (s *Store) TrustBundles(ctx context.Context) ([]*certificatesv1.ClusterTrustBundle, error) {
	s.mu.Lock()
	o, known := s.objects[key{kind: trustBundles}]
	s.mu.Unlock()
	var out []*certificatesv1.ClusterTrustBundle
	if known && o.informer.HasSynced() {
		for _, item := range o.informer.GetStore().List() {
			if bundle, ok := item.(*certificatesv1.ClusterTrustBundle); ok {
				out = append(out, bundle)
			}
		}
		return out, nil
	}
	list, err := s.client.CertificatesV1().ClusterTrustBundles().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading cluster trust bundles: %w", err)
	}
	for i := range list.Items {
		out = append(out, &list.Items[i])
	}
	return out, nil
}

func get[T runtime.Object](ctx context.Context, s *Store, k key, live func(context.Context, string, metav1.GetOptions) (T, error)) (T, error) {
	var none T
	if cached, synced := s.cached(k); synced {
		if typed, ok := cached.(T); ok {
			return typed, nil
		}
	}
	// What the watch does not have may have been made this moment.
	found, err := getPatiently(ctx, k, live)
	if apierrors.IsNotFound(err) {
		return none, apierrors.NewNotFound(schema.GroupResource{Resource: string(k.kind)}, k.name)
	}
	if err != nil {
		return none, fmt.Errorf("reading %s %s/%s: %w", k.kind, k.namespace, k.name, err)
	}
	return found, nil
}

func (s *Store) cached(k key) (found any, synced bool) {
	s.mu.Lock()
	o, known := s.objects[k]
	s.mu.Unlock()
	if !known || !o.informer.HasSynced() {
		return nil, false
	}
	found, exists, err := o.informer.GetStore().GetByKey(k.namespace + "/" + k.name)
	return found, err == nil && exists
}

// getPatiently asks again for a short while when it is refused: the API server's
// authorizer may learn of the pod's binding later than this node.
func getPatiently[T runtime.Object](ctx context.Context, k key, live func(context.Context, string, metav1.GetOptions) (T, error)) (T, error) {
	const tries = 6
	delay := 10 * time.Millisecond
	for try := 1; ; try++ {
		found, err := live(ctx, k.name, metav1.GetOptions{})
		if !apierrors.IsForbidden(err) || try == tries {
			return found, err
		}
		select {
		case <-time.After(delay):
			delay *= 2
		case <-ctx.Done():
			return found, ctx.Err()
		}
	}
}
