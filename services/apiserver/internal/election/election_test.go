package election_test

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/election"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/statetest"
)

// candidate runs for the lease and tells on leads when it begins to lead.
func candidate(ctx context.Context, t *testing.T, state registry.State, name string, leads chan<- string) (ended chan struct{}) {
	t.Helper()
	e := &election.Election{State: state, Name: "publisher", Identity: name, Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	ended = make(chan struct{})
	go func() {
		defer close(ended)
		if err := e.Run(ctx, func(ctx context.Context) error {
			leads <- name
			<-ctx.Done()
			return nil
		}); err != nil {
			t.Error(err)
		}
	}()
	return ended
}

func TestOneLeadsAndAnotherTakesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := statetest.New()
		leads := make(chan string, 10)
		first, stop := context.WithCancel(t.Context())
		firstEnded := candidate(first, t, state, "a", leads)
		if got := <-leads; got != "a" {
			t.Fatalf("%s leads", got)
		}
		second, stopSecond := context.WithCancel(t.Context())
		secondEnded := candidate(second, t, state, "b", leads)
		time.Sleep(10 * time.Minute)
		if len(leads) > 0 {
			t.Fatalf("%s leads, too", <-leads)
		}
		left := time.Now()
		stop()
		<-firstEnded
		if got := <-leads; got != "b" || time.Since(left) > 3*time.Second {
			t.Errorf("%s leads after %s", got, time.Since(left))
		}
		stopSecond()
		<-secondEnded
	})
}

func TestALeaseThatIsNotRenewedIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := statetest.New()
		now := metav1.NowMicro()
		if _, err := state.Create(t.Context(), coordinationv1.Resource("leases"), &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "publisher"},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("dead"), LeaseDurationSeconds: new(int32(15)), RenewTime: &now},
		}); err != nil {
			t.Fatal(err)
		}
		leads := make(chan string, 1)
		ctx, stop := context.WithCancel(t.Context())
		began := time.Now()
		ended := candidate(ctx, t, state, "a", leads)
		<-leads
		if waited := time.Since(began); waited < 15*time.Second || waited > 20*time.Second {
			t.Errorf("it was taken after %s", waited)
		}
		stop()
		<-ended
	})
}
