package upstreamtest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

// startServers runs API servers over one etcd.
func startServers(t *testing.T, n int, flags ...string) (servers []*testserver.Server, endpoint string) {
	t.Helper()
	endpoint = startEtcd(t)
	for range n {
		servers = append(servers, testserver.Start(t, append(flags, "--etcd-servers="+endpoint)...))
	}
	return servers, endpoint
}

func configMap(name, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Data: map[string]string{"k": value}}
}

// Whoever was answered by one server reads that, or newer, from another at once.
func TestServersOverOneEtcdReadEachOthersWrites(t *testing.T) {
	servers, _ := startServers(t, 2)
	a, b := servers[0].Client.CoreV1().ConfigMaps("default"), servers[1].Client.CoreV1().ConfigMaps("default")
	events, err := b.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	for i := range 100 {
		name := fmt.Sprintf("map-%d", i)
		made, err := a.Create(t.Context(), configMap(name, "1"), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got, err := b.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || got.ResourceVersion != made.ResourceVersion {
			t.Fatalf("%s at the other server is %v, %v; made at %s", name, got, err, made.ResourceVersion)
		}
		got.Data["k"] = "2"
		if got, err = b.Update(t.Context(), got, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		list, err := a.List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		if err != nil || len(list.Items) != 1 || list.Items[0].ResourceVersion != got.ResourceVersion {
			t.Fatalf("the list at the first server is %+v, %v; want %s", list, err, got.ResourceVersion)
		}
		if _, err := a.Update(t.Context(), made, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
			t.Fatalf("an update of an old version: %v", err)
		}
	}
	seen := 0
	for event := range events.ResultChan() {
		if event.Type == watch.Added && strings.HasPrefix(event.Object.(*corev1.ConfigMap).Name, "map-") {
			if seen++; seen == 100 {
				break
			}
		}
	}
}

// Keys and values are upstream's, so that a cluster can be moved.
func TestEtcdHoldsUpstreamsKeysAndValues(t *testing.T) {
	servers, endpoint := startServers(t, 1)
	made, err := servers[0].Client.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("kept", "1"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	answer, err := client.Get(t.Context(), "/registry/configmaps/default/kept")
	if err != nil || len(answer.Kvs) != 1 || fmt.Sprint(answer.Kvs[0].ModRevision) != made.ResourceVersion {
		t.Fatalf("etcd has %v, %v; want version %s", answer, err, made.ResourceVersion)
	}
	obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(answer.Kvs[0].Value, nil, nil)
	if err != nil || !strings.HasPrefix(string(answer.Kvs[0].Value), "k8s\x00") {
		t.Fatalf("etcd has %q, %v", answer.Kvs[0].Value, err)
	}
	if got := obj.(*corev1.ConfigMap); got.Data["k"] != "1" || got.ResourceVersion != "" || got.UID != made.UID {
		t.Errorf("etcd has %+v", got)
	}
	for _, key := range []string{
		"/registry/namespaces/default", "/registry/services/specs/default/kubernetes", "/registry/clusterroles/cluster-admin",
		"/registry/priorityclasses/system-node-critical",
	} {
		if answer, err := client.Get(t.Context(), key); err != nil || len(answer.Kvs) != 1 {
			t.Errorf("%s: %v, %v", key, answer, err)
		}
	}
}

// Events go when their time has come, by leases of etcd.
func TestEventsExpireInEtcd(t *testing.T) {
	servers, endpoint := startServers(t, 1, "--event-ttl=2s", "--etcd-prefix=/elsewhere")
	client := servers[0].Client
	made, err := client.CoreV1().Events("default").Create(t.Context(), &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: "passing", Namespace: "default"},
		InvolvedObject: corev1.ObjectReference{Namespace: "default", Kind: "Pod", Name: "x"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	direct, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = direct.Close() }()
	if answer, err := direct.Get(t.Context(), "/elsewhere/events/default/passing"); err != nil || len(answer.Kvs) != 1 || answer.Kvs[0].Lease == 0 {
		t.Fatalf("etcd has %v, %v", answer, err)
	}
	awaitDeletion(t, client, made)
}

func awaitDeletion(t *testing.T, client kubernetes.Interface, made *corev1.Event) {
	t.Helper()
	events, err := client.CoreV1().Events("default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: made.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	select {
	case event := <-events.ResultChan():
		if event.Type != watch.Deleted {
			t.Errorf("the event's first change is %s", event.Type)
		}
	case <-time.After(20 * time.Second):
		t.Error("the event is still there")
	}
}
