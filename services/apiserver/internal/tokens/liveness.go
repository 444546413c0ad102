package tokens

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
)

// deletionLeeway is how long after its deletion time an object that still exists
// carries a token: a pod's last seconds need one.
const deletionLeeway = time.Minute

var errGone = errors.New("service account token has been invalidated")

// liveness looks up whether what a token is bound to still exists.
type liveness struct {
	getter authn.Getter
	now    func() time.Time
}

func (l *liveness) check(ctx context.Context, bound *Bound) error {
	if err := l.same(ctx, corev1.Resource("serviceaccounts"), bound.Namespace, bound.ServiceAccount); err != nil {
		return err
	}
	switch {
	case bound.Secret != nil:
		return l.same(ctx, corev1.Resource("secrets"), bound.Namespace, *bound.Secret)
	case bound.Pod != nil:
		// The node is then only where the pod runs: the pod goes with it.
		return l.same(ctx, corev1.Resource("pods"), bound.Namespace, *bound.Pod)
	case bound.Node != nil:
		return l.same(ctx, corev1.Resource("nodes"), "", *bound.Node)
	}
	return nil
}

// same says whether the object exists, has the uid and is not long deleted.
func (l *liveness) same(ctx context.Context, resource schema.GroupResource, namespace string, ref Ref) error {
	obj, err := l.getter.Get(ctx, resource, namespace, ref.Name)
	if err != nil {
		return fmt.Errorf("%w: %w", errGone, err)
	}
	meta, ok := obj.(metav1.Object)
	if !ok {
		return fmt.Errorf("%w: %s %s is a %T", errGone, resource, ref.Name, obj)
	}
	if meta.GetUID() != ref.UID {
		return fmt.Errorf("%w: %s %s has been deleted and made anew", errGone, resource, ref.Name)
	}
	if deleted := meta.GetDeletionTimestamp(); deleted != nil && deleted.Add(deletionLeeway).Before(l.now()) {
		return fmt.Errorf("%w: %s %s has been deleted", errGone, resource, ref.Name)
	}
	return nil
}
