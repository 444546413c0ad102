package upstreamtest

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
	"github.com/sampan-io/sampan/services/e2e/robustness"
)

// Clients of two servers over one etcd see what clients of one machine could,
// also while one of the servers is cut off from etcd.
func TestHistoriesOfTwoServersAreLinearizable(t *testing.T) {
	endpoint := startEtcd(t)
	cable, far := newCable(t, endpoint)
	a, b := testserver.Start(t, "--etcd-servers="+endpoint), testserver.Start(t, "--etcd-servers="+far)
	for range 2 {
		namespace, err := a.Client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "linear-"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		report, err := robustness.Check{
			Servers: []kubernetes.Interface{a.Client, b.Client}, Namespace: namespace.Name, Operations: 400,
			Disturb: func(ctx context.Context) error {
				cable.set(true)
				defer cable.set(false)
				select {
				case <-time.After(500 * time.Millisecond):
				case <-ctx.Done():
				}
				return ctx.Err()
			},
		}.Run(t.Context())
		t.Log(report)
		if errors.Is(err, robustness.ErrNotLinearizable) {
			path := t.ArtifactDir() + "/history.html"
			t.Fatalf("%v; it is drawn in %s (%v)", err, path, report.Draw(path))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
