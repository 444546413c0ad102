package registry

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Late is a State that is bound after those who use it were made: the resources
// need the state, and the state needs the resources. It is called on every use.
type Late func() State

// Get implements Reader.
func (l Late) Get(ctx context.Context, resource schema.GroupResource, namespace, name string) (runtime.Object, error) {
	return l().Get(ctx, resource, namespace, name)
}

// List implements Reader.
func (l Late) List(ctx context.Context, resource schema.GroupResource, namespace string) ([]runtime.Object, error) {
	return l().List(ctx, resource, namespace)
}

// Subscribe implements Subscriber.
func (l Late) Subscribe(ctx context.Context, resource schema.GroupResource, handle func(old, new runtime.Object)) error {
	return l().Subscribe(ctx, resource, handle)
}

// Create implements Writer.
func (l Late) Create(ctx context.Context, resource schema.GroupResource, obj runtime.Object) (runtime.Object, error) {
	return l().Create(ctx, resource, obj)
}

// Update implements Writer.
func (l Late) Update(ctx context.Context, resource schema.GroupResource, subresource, namespace, name string, dryRun bool, change func(obj runtime.Object) error) (runtime.Object, error) {
	return l().Update(ctx, resource, subresource, namespace, name, dryRun, change)
}

// Delete implements Writer.
func (l Late) Delete(ctx context.Context, resource schema.GroupResource, namespace, name string, options *metav1.DeleteOptions, dryRun bool) error {
	return l().Delete(ctx, resource, namespace, name, options, dryRun)
}
