package plugins

import (
	"context"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// listOf lists the objects of one type. A kind that the server does not serve has
// none.
func listOf[T runtime.Object](ctx context.Context, reader registry.Reader, resource schema.GroupResource, namespace string) ([]T, error) {
	objects, err := reader.List(ctx, resource, namespace)
	if err != nil {
		return nil, ignoreNotFound(err)
	}
	list := make([]T, 0, len(objects))
	for _, obj := range objects {
		if typed, ok := obj.(T); ok {
			list = append(list, typed)
		}
	}
	return list, nil
}

// newestDefault is the object that one of the annotations marks as the default:
// the newest, and of several the first by name. ok is false without one.
func newestDefault[T metav1.Object](list []T, annotations ...string) (found T, ok bool) {
	for _, obj := range list {
		marked := false
		for _, key := range annotations {
			marked = marked || obj.GetAnnotations()[key] == "true"
		}
		if !marked {
			continue
		}
		if ok {
			have, new := found.GetCreationTimestamp(), obj.GetCreationTimestamp()
			if new.Before(&have) || new.Equal(&have) && strings.Compare(obj.GetName(), found.GetName()) > 0 {
				continue
			}
		}
		found, ok = obj, true
	}
	return found, ok
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
