package resourcequota

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/internal/quota"
)

// errNotServed says that the API serves no such resource.
var errNotServed = errors.New("the API does not serve it")

// version is the version in which a resource is listed.
func (c *Controller) version(resource schema.GroupResource) (schema.GroupVersionResource, error) {
	gvr, err := c.mapper.ResourceFor(resource.WithVersion(""))
	if meta.IsNoMatchError(err) {
		c.mapper.Reset() // it may have come since
		gvr, err = c.mapper.ResourceFor(resource.WithVersion(""))
	}
	switch {
	case meta.IsNoMatchError(err) || err == nil && gvr.Resource != resource.Resource:
		return gvr, fmt.Errorf("%s: %w", resource, errNotServed)
	case err != nil:
		return gvr, fmt.Errorf("finding the version of %s: %w", resource, err)
	}
	return gvr, nil
}

// monitor watches a resource that some quota is about, from then on.
func (c *Controller) monitor(resource schema.GroupResource) error {
	if whole(resource) || c.monitors.has(resource) {
		return nil
	}
	gvr, err := c.version(resource)
	if err != nil {
		return err
	}
	c.monitors.start(gvr)
	return nil
}

// whole says whether a resource's objects are watched whole, for other controllers
// do, too.
func whole(resource schema.GroupResource) bool {
	return resource == corev1.Resource("pods") || resource == corev1.Resource("services") || resource == corev1.Resource("persistentvolumeclaims")
}

// cached lists what the caches have.
func (c *Controller) cached(namespace string) quota.List {
	return func(resource schema.GroupResource) ([]runtime.Object, error) {
		switch resource {
		case corev1.Resource("pods"):
			return objects(c.pods.Pods(namespace).List(labels.Everything()))
		case corev1.Resource("services"):
			return objects(c.services.Services(namespace).List(labels.Everything()))
		case corev1.Resource("persistentvolumeclaims"):
			return objects(c.claims.PersistentVolumeClaims(namespace).List(labels.Everything()))
		}
		if resource == resourcev1.Resource("resourceclaims") {
			return nil, errNotSynced // only their metadata is watched
		}
		return c.monitors.list(resource, namespace)
	}
}

func objects[T runtime.Object](list []T, err error) ([]runtime.Object, error) {
	out := make([]runtime.Object, 0, len(list))
	for _, obj := range list {
		out = append(out, obj)
	}
	return out, err
}

// live lists what the API server has; of what it does not serve there is nothing.
func (c *Controller) live(ctx context.Context, namespace string) quota.List {
	return func(resource schema.GroupResource) ([]runtime.Object, error) {
		gvr, err := c.version(resource)
		if errors.Is(err, errNotServed) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		list, err := c.listVersion(ctx, gvr, namespace)
		if err != nil {
			return nil, err
		}
		return meta.ExtractList(list)
	}
}

// listVersion lists whole objects of what is measured, and the metadata of what is
// only counted.
func (c *Controller) listVersion(ctx context.Context, gvr schema.GroupVersionResource, namespace string) (runtime.Object, error) {
	switch gvr.GroupResource() {
	case corev1.Resource("pods"):
		return c.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	case corev1.Resource("services"):
		return c.client.CoreV1().Services(namespace).List(ctx, metav1.ListOptions{})
	case corev1.Resource("persistentvolumeclaims"):
		return c.client.CoreV1().PersistentVolumeClaims(namespace).List(ctx, metav1.ListOptions{})
	case resourcev1.Resource("resourceclaims"):
		return c.client.ResourceV1().ResourceClaims(namespace).List(ctx, metav1.ListOptions{})
	}
	return c.metadata.Resource(gvr).Namespace(namespace).List(ctx, metav1.ListOptions{})
}
