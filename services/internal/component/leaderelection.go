package component

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// LeaderElection is the upstream leader election configuration. The Lease lies
// in ResourceNamespace under ResourceName.
type LeaderElection struct {
	LeaderElect       bool
	LeaseDuration     time.Duration
	RenewDeadline     time.Duration
	RetryPeriod       time.Duration
	ResourceName      string
	ResourceNamespace string
}

// NewLeaderElection has upstream's defaults for a component of that name.
func NewLeaderElection(name string) LeaderElection {
	return LeaderElection{
		LeaderElect: true, LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second,
		RetryPeriod: 2 * time.Second, ResourceName: name, ResourceNamespace: "kube-system",
	}
}

// AddFlags registers the --leader-elect flags.
func (l *LeaderElection) AddFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&l.LeaderElect, "leader-elect", l.LeaderElect, "work only while holding the leader Lease")
	fs.DurationVar(&l.LeaseDuration, "leader-elect-lease-duration", l.LeaseDuration, "how long others wait for a leader that stopped renewing")
	fs.DurationVar(&l.RenewDeadline, "leader-elect-renew-deadline", l.RenewDeadline, "how long the leader tries to renew before it gives up")
	fs.DurationVar(&l.RetryPeriod, "leader-elect-retry-period", l.RetryPeriod, "pause between tries to take or renew the Lease")
	fs.StringVar(&l.ResourceName, "leader-elect-resource-name", l.ResourceName, "name of the Lease")
	fs.StringVar(&l.ResourceNamespace, "leader-elect-resource-namespace", l.ResourceNamespace, "namespace of the Lease")
}

// Run calls work while this process is the leader, and returns when ctx ends or
// the lead is lost. Losing it is an error: the process should end, so that no
// two leaders act at once. The Lease is released on a clean stop.
func (l *LeaderElection) Run(ctx context.Context, client kubernetes.Interface, work func(ctx context.Context) error) error {
	if !l.LeaderElect {
		return work(ctx)
	}
	awaitReady(ctx, client)
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("reading host name: %w", err)
	}
	lock, err := resourcelock.New(resourcelock.LeasesResourceLock, l.ResourceNamespace, l.ResourceName,
		client.CoreV1(), client.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: host + "_" + string(uuid.NewUUID())})
	if err != nil {
		return fmt.Errorf("making leader lock: %w", err)
	}
	electing, cancel := context.WithCancel(ctx)
	defer cancel()
	leading := make(chan context.Context, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: l.LeaseDuration, RenewDeadline: l.RenewDeadline, RetryPeriod: l.RetryPeriod,
		ReleaseOnCancel: true, Name: l.ResourceName,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { leading <- ctx },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("making leader elector: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		elector.Run(electing)
	}()
	select {
	case lead := <-leading:
		err = work(lead)
		lost := lead.Err() != nil && ctx.Err() == nil
		cancel()
		<-ended
		if lost {
			return fmt.Errorf("lost the leader Lease %s/%s", l.ResourceNamespace, l.ResourceName)
		}
		return err
	case <-ended:
		return nil // ctx ended before this process led
	}
}

// readyPause is the pause between looks for the API server.
const readyPause = 50 * time.Millisecond

// awaitReady waits until the API server is ready. The elector itself would find
// out only at its retry period, which makes a cluster that starts all at once
// wait for seconds.
func awaitReady(ctx context.Context, client kubernetes.Interface) {
	set, ok := client.(*kubernetes.Clientset)
	if !ok {
		return // a fake
	}
	for ctx.Err() == nil {
		var code int
		_ = set.RESTClient().Get().AbsPath("/readyz").Do(ctx).StatusCode(&code).Error()
		if code != 0 && code != http.StatusInternalServerError {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(readyPause):
		}
	}
}
