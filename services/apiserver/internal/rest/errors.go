package rest

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
)

// errStale is what a client reads whose resourceVersion is not the newest.
var errStale = errors.New("the object has been modified; please apply your changes to the latest version and try again")

// StatusError is an error of the store or of a cache as the API status that the
// client gets; errors that are statuses already pass unchanged.
func StatusError(err error, resource schema.GroupResource, name string) error {
	var status apierrors.APIStatus
	var exists *storage.ExistsError
	var conflict *storage.ConflictError
	var compacted *storage.CompactedError
	var future *storage.FutureRevisionError
	switch {
	case err == nil || errors.As(err, &status):
		return err
	case errors.Is(err, storage.ErrNotFound):
		return apierrors.NewNotFound(resource, name)
	case errors.As(err, &exists):
		return apierrors.NewAlreadyExists(resource, name)
	case errors.As(err, &conflict):
		return apierrors.NewConflict(resource, name, errStale)
	case errors.As(err, &compacted):
		return apierrors.NewResourceExpired(fmt.Sprintf("The resourceVersion for the provided list is too old: %v", err))
	case errors.As(err, &future):
		return tooLargeVersion(future.Requested, future.Current)
	case errors.Is(err, storage.ErrTooLarge):
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the object is larger than the %d bytes that the store takes", storage.MaxValueBytes))
	case errors.Is(err, storage.ErrNoSpace):
		return apierrors.NewInternalError(fmt.Errorf("the API server's disk is full, nothing was written: %w", err))
	case errors.Is(err, storage.ErrClosed):
		return apierrors.NewServiceUnavailable("the API server is shutting down: " + err.Error())
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
	default:
		return apierrors.NewInternalError(err)
	}
}

func (s *Store) statusError(err error, name string) error { return StatusError(err, s.group, name) }
