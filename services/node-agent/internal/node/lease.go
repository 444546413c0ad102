package node

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// keepLease renews the node's lease four times in its duration.
func (n *Node) keepLease(ctx context.Context) error {
	const parts = 4
	every := n.cfg.LeaseFor / parts
	const retry = 200 * time.Millisecond
	var lease *coordinationv1.Lease
	for {
		wait := every
		renewed, err := n.renew(ctx, lease)
		if err != nil {
			lease, wait = nil, retry
			if ctx.Err() == nil {
				n.cfg.Log.WarnContext(ctx, "Renewing the node's lease", "err", err)
				wait = min(every, time.Second)
			}
		} else {
			lease = renewed
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}

// renew updates the lease that was last seen, or finds or makes it.
func (n *Node) renew(ctx context.Context, last *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	leases := n.cfg.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	seconds := int32(n.cfg.LeaseFor / time.Second)
	now := metav1.NowMicro()
	spec := coordinationv1.LeaseSpec{HolderIdentity: &n.cfg.Name, LeaseDurationSeconds: &seconds, RenewTime: &now}
	if last == nil {
		existing, err := leases.Get(ctx, n.cfg.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: n.cfg.Name, Namespace: corev1.NamespaceNodeLease, OwnerReferences: n.owner()}, Spec: spec}, metav1.CreateOptions{})
		}
		if err != nil {
			return nil, err
		}
		last = existing
	}
	updated := last.DeepCopy()
	updated.Spec = spec
	if len(updated.OwnerReferences) == 0 {
		updated.OwnerReferences = n.owner()
	}
	return leases.Update(ctx, updated, metav1.UpdateOptions{})
}

// owner lets the lease go with the node.
func (n *Node) owner() []metav1.OwnerReference {
	object := n.Object()
	if object == nil || object.UID == "" {
		return nil
	}
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: object.Name, UID: object.UID}}
}
