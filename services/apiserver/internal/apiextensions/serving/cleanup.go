package serving

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sampan-io/sampan/services/apiserver/internal/apiextensions/crd"
)

// Instances are the objects of a resource.
type Instances interface {
	// DeleteAll deletes every object, and returns how many are left, which
	// finalizers hold.
	DeleteAll(ctx context.Context) (left int, err error)
}

// retryCleanup is the pause after which objects that are held are looked at
// again.
const retryCleanup = time.Second

// cleanUp deletes the objects of a definition that is being deleted, and then
// lets it go. It goes on beside the worker.
func (s *Server) cleanUp(ctx context.Context, definition *apiextensionsv1.CustomResourceDefinition) {
	if !apihelpers.CRDHasFinalizer(definition, apiextensionsv1.CustomResourceCleanupFinalizer) {
		return
	}
	served := s.served[definition.Name]
	if served != nil {
		if served.clean {
			return
		}
		served.clean = true
	}
	s.cleanups.Go(func() {
		for {
			err := s.cleanUpOnce(ctx, definition, served)
			if err == nil || ctx.Err() != nil {
				return
			}
			s.config.Log.Debug("Deleting custom resources", "definition", definition.Name, "err", err)
			select {
			case <-ctx.Done():
				return
			case <-time.After(retryCleanup):
			}
		}
	})
}

func (s *Server) cleanUpOnce(ctx context.Context, definition *apiextensionsv1.CustomResourceDefinition, served *resource) error {
	if served == nil {
		return s.finish(ctx, definition, "NeverEstablished", "resource was never established")
	}
	left, err := s.config.Surface.Instances(served.name).DeleteAll(ctx)
	if err != nil {
		return s.terminating(ctx, definition, "InstanceDeletionFailed", fmt.Errorf("could not issue all deletes: %w", err))
	}
	if left > 0 {
		return s.terminating(ctx, definition, "InstanceDeletionInProgress",
			fmt.Errorf("CustomResource deletion is in progress: %d instances are held by their finalizers", left))
	}
	return s.finish(ctx, definition, "InstanceDeletionCompleted", "removed all instances")
}

// terminating notes why the definition is still there, and returns cause.
func (s *Server) terminating(ctx context.Context, definition *apiextensionsv1.CustomResourceDefinition, reason string, cause error) error {
	err := s.change(ctx, definition, "status", func(fresh *apiextensionsv1.CustomResourceDefinition) {
		set(fresh, condition{Type: apiextensionsv1.Terminating, Status: apiextensionsv1.ConditionTrue, Reason: reason, Message: cause.Error()})
	})
	if err != nil {
		return err
	}
	return cause
}

// finish takes the finalizer off, and says why nothing holds the definition.
func (s *Server) finish(ctx context.Context, definition *apiextensionsv1.CustomResourceDefinition, reason, message string) error {
	return s.change(ctx, definition, "status", func(fresh *apiextensionsv1.CustomResourceDefinition) {
		set(fresh, condition{
			Type: apiextensionsv1.Terminating, Status: apiextensionsv1.ConditionFalse, Reason: reason, Message: message,
		})
		apihelpers.CRDRemoveFinalizer(fresh, apiextensionsv1.CustomResourceCleanupFinalizer)
	})
}

func (s *Server) change(ctx context.Context, definition *apiextensionsv1.CustomResourceDefinition, subresource string, change func(*apiextensionsv1.CustomResourceDefinition)) error {
	_, err := s.config.State.Update(ctx, crd.Resource, subresource, "", definition.Name, false, func(obj runtime.Object) error {
		fresh, ok := obj.(*apiextensionsv1.CustomResourceDefinition)
		if !ok || fresh.UID != definition.UID {
			return apierrors.NewNotFound(crd.Resource, definition.Name)
		}
		change(fresh)
		return nil
	})
	if apierrors.IsNotFound(err) {
		return nil // it is gone, or another by now
	}
	return err
}
