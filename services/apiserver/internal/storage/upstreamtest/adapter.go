package upstreamtest

import (
	"context"
	"errors"
	"reflect"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	upstream "k8s.io/apiserver/pkg/storage"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
	"github.com/sampan-io/sampan/services/apiserver/internal/watch"
)

const (
	root     = "/registry"
	resource = "/pods/"
)

// Adapter is a store and its watch cache, for pods of upstream's example group,
// behind the interface that upstream's suites drive. What upstream's store does
// besides storing, which is to update in a loop and to check preconditions, the
// adapter does; in the server that is the engine's part.
type Adapter struct {
	store   storage.Interface
	cache   *watch.Cache
	codec   runtime.Codec
	version upstream.APIObjectVersioner
}

var _ upstream.Interface = (*Adapter)(nil)

// NewAdapter fills a cache from store and follows it until ctx ends. Namespaced
// says whether the keys of pods have a namespace in them.
func NewAdapter(ctx context.Context, store storage.Interface, codec runtime.Codec, namespaced bool) (*Adapter, error) {
	a := &Adapter{store: store, codec: codec}
	a.cache = watch.NewCache(watch.Config{
		Resource: schema.GroupResource{Resource: "pods"}, Prefix: root + resource, Namespaced: namespaced,
		Decode:       func(stored []byte) (runtime.Object, error) { return runtime.Decode(codec, stored) },
		AttributesOf: attributesOf,
		Indexed:      []string{"spec.nodeName"},
	}, store, watch.Options{BookmarkEvery: time.Minute})
	return a, a.cache.Start(ctx)
}

func attributesOf(obj runtime.Object) watch.Attributes {
	pod, ok := obj.(*example.Pod)
	if !ok {
		return watch.Attributes{}
	}
	return watch.Attributes{
		Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID), Labels: labels.Set(pod.Labels),
		Fields: fields.Set{"metadata.name": pod.Name, "metadata.namespace": pod.Namespace, "spec.nodeName": pod.Spec.NodeName},
	}
}

// key checks a key and splits it.
func (a *Adapter) key(key string) (namespace, name string, err error) {
	prepared, err := upstream.PrepareKey(resource, key, false)
	if err != nil {
		return "", "", err
	}
	namespace, name, found := strings.Cut(strings.TrimPrefix(prepared, resource), "/")
	if !found {
		return "", namespace, nil
	}
	return namespace, name, nil
}

// Versioner implements upstream's interface.
func (a *Adapter) Versioner() upstream.Versioner { return a.version }

// Create implements upstream's interface.
func (a *Adapter) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	namespace, name, err := a.key(key)
	if err != nil {
		return err
	}
	if version, err := a.version.ObjectResourceVersion(obj); err == nil && version != 0 {
		return upstream.ErrResourceVersionSetOnCreate
	}
	put, err := a.put(namespace, name, obj, ttl)
	if err != nil {
		return err
	}
	created, err := a.cache.Create(ctx, put)
	var exists *storage.ExistsError
	if errors.As(err, &exists) {
		return upstream.NewKeyExistsError(key, 0)
	}
	if err != nil {
		return err
	}
	return a.read(created, out)
}

func (a *Adapter) put(namespace, name string, obj runtime.Object, ttl uint64) (watch.Put, error) {
	obj = obj.DeepCopyObject()
	if err := a.version.PrepareObjectForStorage(obj); err != nil {
		return watch.Put{}, err
	}
	data, err := runtime.Encode(a.codec, obj)
	return watch.Put{Namespace: namespace, Name: name, Stored: data, Object: obj, TTL: time.Duration(ttl) * time.Second}, err
}

// read copies an object into out, which may be nil.
func (a *Adapter) read(from *watch.Object, out runtime.Object) error {
	if out == nil {
		return nil
	}
	obj, err := from.Decode()
	if err != nil {
		return err
	}
	reflect.ValueOf(out).Elem().Set(reflect.ValueOf(obj).Elem())
	return nil
}

// Get implements upstream's interface.
func (a *Adapter) Get(ctx context.Context, key string, opts upstream.GetOptions, out runtime.Object) error {
	namespace, name, err := a.key(key)
	if err != nil {
		return err
	}
	versions, err := a.versions(opts.ResourceVersion)
	if err != nil {
		return err
	}
	found, err := a.cache.Get(ctx, namespace, name, versions)
	if errors.Is(err, storage.ErrNotFound) {
		if opts.IgnoreNotFound {
			return runtime.SetZeroValue(out)
		}
		return upstream.NewKeyNotFoundError(key, 0)
	}
	if err != nil {
		return err
	}
	return a.read(found, out)
}

func (a *Adapter) versions(resourceVersion string) (watch.Versions, error) {
	n, err := a.version.ParseResourceVersion(resourceVersion)
	switch {
	case err != nil:
		return watch.Versions{}, err
	case resourceVersion == "":
		return watch.Versions{Match: watch.MostRecent}, nil
	case n == 0:
		return watch.Versions{Match: watch.Any}, nil
	}
	return watch.Versions{Match: watch.NotOlderThan, Revision: int64(n)}, nil
}

// Delete implements upstream's interface.
func (a *Adapter) Delete(ctx context.Context, key string, out runtime.Object, preconditions *upstream.Preconditions,
	validate upstream.ValidateObjectFunc, _ runtime.Object, _ upstream.DeleteOptions,
) error {
	namespace, name, err := a.key(key)
	if err != nil {
		return err
	}
	for {
		current, obj, err := a.current(ctx, key, namespace, name)
		if err != nil {
			return err
		}
		if err := preconditions.Check(key, obj); err != nil {
			return err
		}
		if err := validate(ctx, obj); err != nil {
			return err
		}
		deleted, err := a.cache.Delete(ctx, namespace, name, current.Revision)
		if again(err) {
			continue
		}
		if err != nil {
			return err
		}
		return a.read(deleted, out)
	}
}

func (a *Adapter) current(ctx context.Context, key, namespace, name string) (*watch.Object, runtime.Object, error) {
	current, err := a.cache.Get(ctx, namespace, name, watch.Versions{})
	if errors.Is(err, storage.ErrNotFound) {
		return nil, nil, upstream.NewKeyNotFoundError(key, 0)
	}
	if err != nil {
		return nil, nil, err
	}
	obj, err := current.Decode()
	return current, obj, err
}

// again says that the object has changed, or gone, since it was read.
func again(err error) bool {
	var conflict *storage.ConflictError
	var exists *storage.ExistsError
	return errors.As(err, &conflict) || errors.As(err, &exists) || errors.Is(err, storage.ErrNotFound)
}

// GuaranteedUpdate implements upstream's interface.
func (a *Adapter) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object, ignoreNotFound bool,
	preconditions *upstream.Preconditions, update upstream.UpdateFunc, _ runtime.Object,
) error {
	namespace, name, err := a.key(key)
	if err != nil {
		return err
	}
	for {
		current, obj, err := a.current(ctx, key, namespace, name)
		if upstream.IsNotFound(err) && ignoreNotFound {
			current, obj, err = nil, reflect.New(reflect.TypeOf(out).Elem()).Interface().(runtime.Object), nil
		}
		if err != nil {
			return err
		}
		if err := preconditions.Check(key, obj); err != nil {
			return err
		}
		before, err := a.put(namespace, name, obj, 0)
		if err != nil {
			return err
		}
		changed, err := a.changed(obj, current, update)
		if err != nil {
			return err
		}
		put, err := a.put(namespace, name, changed.obj, changed.ttl)
		if err != nil {
			return err
		}
		if current != nil && string(put.Stored) == string(before.Stored) {
			return a.read(current, out)
		}
		written, err := a.write(ctx, put, current)
		if again(err) {
			continue
		}
		if err != nil {
			return err
		}
		return a.read(written, out)
	}
}

type change struct {
	obj runtime.Object
	ttl uint64
}

func (a *Adapter) changed(obj runtime.Object, current *watch.Object, update upstream.UpdateFunc) (change, error) {
	meta := upstream.ResponseMeta{}
	if current != nil {
		meta.ResourceVersion = uint64(current.Revision)
	}
	obj, ttl, err := update(obj, meta)
	if err != nil {
		return change{}, err
	}
	c := change{obj: obj}
	if ttl != nil {
		c.ttl = *ttl
	}
	return c, nil
}

func (a *Adapter) write(ctx context.Context, put watch.Put, current *watch.Object) (*watch.Object, error) {
	if current == nil {
		return a.cache.Create(ctx, put)
	}
	return a.cache.Update(ctx, put, current.Revision)
}

// Stats implements upstream's interface.
func (a *Adapter) Stats(ctx context.Context) (upstream.Stats, error) {
	list, err := a.store.List(ctx, root+resource, storage.ListOptions{})
	if err != nil || len(list.Items) == 0 {
		return upstream.Stats{}, err
	}
	size := 0
	for _, item := range list.Items {
		size += len(item.Value)
	}
	return upstream.Stats{ObjectCount: int64(a.cache.Stats().Objects), EstimatedAverageObjectSizeBytes: int64(size / len(list.Items))}, nil
}

// ReadinessCheck implements upstream's interface.
func (a *Adapter) ReadinessCheck() error { return nil }

// RequestWatchProgress implements upstream's interface.
func (a *Adapter) RequestWatchProgress(ctx context.Context) error {
	_, err := a.store.Current(ctx)
	return err
}

// GetCurrentResourceVersion implements upstream's interface.
func (a *Adapter) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	current, err := a.store.Current(ctx)
	return uint64(current), err
}

// EnableResourceSizeEstimation implements upstream's interface.
func (a *Adapter) EnableResourceSizeEstimation(upstream.KeysFunc) error { return nil }

// CompactRevision implements upstream's interface.
func (a *Adapter) CompactRevision() int64 { return a.store.CompactedRevision() }

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
