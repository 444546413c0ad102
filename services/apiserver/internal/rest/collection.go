package rest

import (
	"context"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
