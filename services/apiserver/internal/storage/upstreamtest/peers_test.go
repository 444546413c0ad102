package upstreamtest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

func addressesOf(slice *discoveryv1.EndpointSlice) string {
	var all []string
	for _, endpoint := range slice.Endpoints {
		all = append(all, endpoint.Addresses...)
	}
	return fmt.Sprint(all)
}

func awaitServers(t *testing.T, client kubernetes.Interface, want string) {
	t.Helper()
	var have string
	if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		slice, err := client.DiscoveryV1().EndpointSlices("default").Get(ctx, "kubernetes", metav1.GetOptions{})
		if err == nil {
			have = addressesOf(slice)
		}
		return have == want, nil
	}); err != nil {
		t.Fatalf("the servers are %s, want %s", have, want)
	}
}

func TestEndpointsNameAllServers(t *testing.T) {
	endpoint := startEtcd(t)
	a := testserver.Start(t, "--etcd-servers="+endpoint, "--advertise-address=10.0.0.1")
	b := testserver.Start(t, "--etcd-servers="+endpoint, "--advertise-address=10.0.0.2")
	awaitServers(t, a.Client, "[10.0.0.1 10.0.0.2]")
	if err := b.Stop(); err != nil {
		t.Fatal(err)
	}
	awaitServers(t, a.Client, "[10.0.0.1]")
}

// No two Services get one address, whichever server makes them.
func TestServersOverOneEtcdAllocateApart(t *testing.T) {
	servers, _ := startServers(t, 2, "--service-cluster-ip-range=10.0.0.0/25")
	var mu sync.Mutex
	var got []string
	var group sync.WaitGroup
	for i, server := range servers {
		for worker := range 4 {
			group.Go(func() {
				for n := range 10 {
					made, err := server.Client.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
						ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("s-%d-%d-%d", i, worker, n)},
						Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
					}, metav1.CreateOptions{})
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					got = append(got, made.Spec.ClusterIP)
					mu.Unlock()
				}
			})
		}
	}
	group.Wait()
	slices.Sort(got)
	if n := len(slices.Compact(got)); n != 80 {
		t.Errorf("80 services have %d addresses", n)
	}
}
