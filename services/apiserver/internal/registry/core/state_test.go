package core

import (
	"context"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// fakeState keeps objects by resource and name.
type fakeState struct {
	registry.State
	mu      sync.Mutex
	objects map[schema.GroupResource]map[string]runtime.Object
	deleted []*metav1.DeleteOptions
}

func newFakeState() *fakeState {
	return &fakeState{objects: map[schema.GroupResource]map[string]runtime.Object{}}
}

func (f *fakeState) add(resource schema.GroupResource, objs ...registry.Object) {
	if f.objects[resource] == nil {
		f.objects[resource] = map[string]runtime.Object{}
	}
	for _, obj := range objs {
		f.objects[resource][obj.GetNamespace()+"/"+obj.GetName()] = obj
	}
}

func (f *fakeState) Get(_ context.Context, resource schema.GroupResource, namespace, name string) (runtime.Object, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	obj := f.objects[resource][namespace+"/"+name]
	if obj == nil {
		return nil, apierrors.NewNotFound(resource, name)
	}
	return obj, nil
}

func (f *fakeState) List(_ context.Context, resource schema.GroupResource, namespace string) ([]runtime.Object, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []runtime.Object
	for _, obj := range f.objects[resource] {
		if namespace == "" || obj.(registry.Object).GetNamespace() == namespace {
			list = append(list, obj)
		}
	}
	return list, nil
}

func (f *fakeState) Update(ctx context.Context, resource schema.GroupResource, _, namespace, name string, dryRun bool, change func(runtime.Object) error) (runtime.Object, error) {
	obj, err := f.Get(ctx, resource, namespace, name)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	obj = obj.DeepCopyObject()
	if err := change(obj); err != nil {
		return nil, err
	}
	if !dryRun {
		f.objects[resource][namespace+"/"+name] = obj
	}
	return obj, nil
}

func (f *fakeState) Delete(_ context.Context, resource schema.GroupResource, namespace, name string, options *metav1.DeleteOptions, dryRun bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.deleted = append(f.deleted, options)
	if !dryRun {
		delete(f.objects[resource], namespace+"/"+name)
	}
	return nil
}
