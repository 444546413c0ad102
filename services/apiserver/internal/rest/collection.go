package rest

import (
	"context"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/watch"
)

// collectionWorkers delete the objects of one collection at the same time, so
// that their writes share commits.
const collectionWorkers = 16

// DeleteCollection deletes what the list selects. Objects that go meanwhile are
// no error. The list is what was selected.
func (s *Store) DeleteCollection(ctx context.Context, selection watch.ListOptions, options *metav1.DeleteOptions, w Write) (*watch.List, error) {
	list, err := s.cache.List(ctx, selection)
	if err != nil {
		return nil, s.statusError(err, "")
	}
	workers, ctx := errgroup.WithContext(ctx)
	workers.SetLimit(collectionWorkers)
	for _, o := range list.Objects {
		workers.Go(func() error {
			_, err := s.Delete(ctx, o.Namespace, o.Name, options.DeepCopy(), w)
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		})
	}
	if err := workers.Wait(); err != nil {
		return nil, err
	}
	return list, nil
}

// Instances are all objects of a resource.
type Instances struct {
	engine   *Engine
	resource schema.GroupResource
}

// Instances are all objects of a resource, by which a custom resource ends.
func (e *Engine) Instances(resource schema.GroupResource) *Instances {
	return &Instances{engine: e, resource: resource}
}

// DeleteAll deletes every object. Those that finalizers hold are left; it
// returns how many.
func (i *Instances) DeleteAll(ctx context.Context) (left int, err error) {
	s, err := i.engine.store(i.resource)
	if err != nil {
		return 0, nil // it is no longer served: there is nothing to delete
	}
	if _, err := s.DeleteCollection(ctx, watch.ListOptions{}, &metav1.DeleteOptions{}, Write{Manager: selfManager}); err != nil {
		return 0, err
	}
	list, err := s.cache.List(ctx, watch.ListOptions{})
	if err != nil {
		return 0, s.statusError(err, "")
	}
	return len(list.Objects), nil
}
