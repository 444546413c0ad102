// Package election chooses, by a Lease, one of several API servers for what
// only one may do.
package election

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// The times are those of client-go's elections.
const (
	duration = 15 * time.Second // for which a Lease is held after its last renewal
	deadline = 10 * time.Second // within which it must be renewed, or leading ends
	retry    = 2 * time.Second
	giveBack = 5 * time.Second
)

// Election is one server's part in an election.
type Election struct {
	State    registry.State
	Name     string // of the Lease, in kube-system
	Identity string // of this server
	Log      *slog.Logger

	// seen is the newest state of another's Lease, and since when it has been so by
	// this server's clock: no two clocks are compared.
	seen  coordinationv1.LeaseSpec
	since time.Time
}

var errHeld = errors.New("another server holds the lease")

// Run calls lead whenever this server is the chosen one, and returns when ctx
// ends, or lead returns before it was told to, with its error. The context of
// lead ends when the Lease could not be renewed in time.
func (e *Election) Run(ctx context.Context, lead func(ctx context.Context) error) error {
	for {
		if e.take(ctx) == nil {
			e.Log.Info("This server leads", "lease", e.Name)
			if err := e.lead(ctx, lead); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retry):
		}
	}
}

// lead leads for as long as the Lease can be renewed.
func (e *Election) lead(ctx context.Context, lead func(ctx context.Context) error) error {
	leading, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- lead(leading) }()
	renewed := time.Now()
	ticker := time.NewTicker(retry)
	defer ticker.Stop()
	for {
		select {
		case err := <-ended:
			e.release(ctx)
			return err
		case <-ticker.C:
		}
		err := e.take(ctx)
		switch {
		case err == nil:
			renewed = time.Now()
		case errors.Is(err, errHeld) || time.Since(renewed) > deadline:
			e.Log.Warn("This server leads no more", "lease", e.Name, "err", err)
			stop()
			return <-ended
		}
	}
}

// take acquires or renews the Lease.
func (e *Election) take(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, deadline/2)
	defer cancel()
	_, err := e.State.Update(ctx, leases(), "", metav1.NamespaceSystem, e.Name, false, func(obj runtime.Object) error {
		lease, ok := obj.(*coordinationv1.Lease)
		if !ok {
			return fmt.Errorf("a Lease is a %T", obj)
		}
		if !e.free(&lease.Spec) {
			return errHeld
		}
		e.hold(&lease.Spec)
		return nil
	})
	if !apierrors.IsNotFound(err) {
		return err
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: e.Name}}
	e.hold(&lease.Spec)
	_, err = e.State.Create(ctx, leases(), lease)
	return err
}

// free says whether this server may have a Lease: it has it, nobody has, or its
// holder has not renewed it for its duration.
func (e *Election) free(spec *coordinationv1.LeaseSpec) bool {
	holder := value(spec.HolderIdentity)
	if holder == "" || holder == e.Identity {
		return true
	}
	if value(e.seen.HolderIdentity) != holder || !e.seen.RenewTime.Equal(spec.RenewTime) {
		e.seen, e.since = *spec.DeepCopy(), time.Now()
	}
	return time.Since(e.since) > time.Duration(value(spec.LeaseDurationSeconds))*time.Second
}

func (e *Election) hold(spec *coordinationv1.LeaseSpec) {
	now := metav1.NowMicro()
	if value(spec.HolderIdentity) != e.Identity {
		spec.AcquireTime = &now
		spec.LeaseTransitions = new(value(spec.LeaseTransitions) + 1)
	}
	spec.HolderIdentity, spec.RenewTime = new(e.Identity), &now
	spec.LeaseDurationSeconds = new(int32(duration / time.Second))
}

// release lets another server take over at once.
func (e *Election) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBack)
	defer cancel()
	_, err := e.State.Update(ctx, leases(), "", metav1.NamespaceSystem, e.Name, false, func(obj runtime.Object) error {
		lease, ok := obj.(*coordinationv1.Lease)
		if !ok || value(lease.Spec.HolderIdentity) != e.Identity {
			return errHeld
		}
		lease.Spec.HolderIdentity = nil
		return nil
	})
	if err != nil && !errors.Is(err, errHeld) {
		e.Log.Warn("A lease is not given back; another server waits until it ends", "lease", e.Name, "err", err)
	}
}

func leases() schema.GroupResource { return coordinationv1.Resource("leases") }

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
