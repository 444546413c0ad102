package bus_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	contract "github.com/sampan-io/sampan/proto/bus"
	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

func freeAddress(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

// askToken asks for a token of kube-system/kube-proxy as the proxy does.
func askToken(s *testserver.Server, audience string) (string, error) {
	client, err := kubernetes.NewForConfig(s.As("system:kube-proxy"))
	if err != nil {
		return "", err
	}
	answer, err := client.CoreV1().ServiceAccounts("kube-system").CreateToken(context.Background(), "kube-proxy", &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return answer.Status.Token, nil
}

func mustToken(t testing.TB, s *testserver.Server, audience string) string {
	t.Helper()
	token, err := askToken(s, audience)
	if err != nil {
		t.Fatalf("asking for a token: %v", err)
	}
	return token
}

func mustServe(t testing.TB, s *testserver.Server, name string) {
	t.Helper()
	_, err := s.Client.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("creating service: %v", err)
	}
}

func TestTokensOfTheProxyOpenTheBus(t *testing.T) {
	t.Parallel()
	address := freeAddress(t)
	s := testserver.Start(t, "--nats-listen-address="+address)
	if _, err := nats.Connect("nats://"+address, nats.Token(mustToken(t, s, "")), nats.NoReconnect()); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("a token for the API server: got %v", err)
	}
	problems := make(chan error, 10)
	conn, err := nats.Connect("nats://"+address, nats.Token(mustToken(t, s, contract.TokenAudience)), nats.NoReconnect(),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { problems <- err }))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	mustSubscribe(t, conn, contract.Pattern(services(), ""))
	mustSubscribe(t, conn, contract.Pattern(corev1.Resource("namespaces"), "")) // not the proxy's
	if err := <-problems; !errors.Is(err, nats.ErrPermissionViolation) || len(problems) > 0 {
		t.Errorf("got %v and %d more", err, len(problems))
	}
	// Other bindings do not matter to it; its own does.
	other := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "other"}}
	if _, err := s.Client.RbacV1().ClusterRoles().Create(t.Context(), other, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	mustServe(t, s, "one")
	if conn.IsClosed() {
		t.Fatal("the connection was closed for nothing")
	}
	if err := s.Client.CoreV1().ServiceAccounts("kube-system").Delete(t.Context(), "kube-proxy", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the connection is closed", conn.IsClosed)
}

func TestInformerFollowsServicesAcrossARestartOfTheAPIServer(t *testing.T) {
	t.Parallel()
	address, dir := freeAddress(t), t.TempDir()
	_, port, _ := net.SplitHostPort(freeAddress(t))
	flags := []string{"--nats-listen-address=" + address, "--secure-port=" + port}
	s := testserver.StartIn(t, dir, flags...)
	var mu sync.Mutex // of s, whose place a later server takes
	conn, err := contract.Connect(contract.Options{URL: "nats://" + address, Log: slog.New(slog.DiscardHandler), Token: func() (string, error) {
		mu.Lock()
		defer mu.Unlock()
		return askToken(s, contract.TokenAudience)
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	source := cache.NewListWatchFromClient(s.Client.CoreV1().RESTClient(), "services", "", fields.Everything())
	informer := cache.NewSharedInformer(conn.ListerWatcher(services(), "", source), &corev1.Service{}, 0)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { informer.RunWithContext(ctx) })
	defer running.Wait()
	defer cancel()
	onTheBus := func() bool { stats := conn.Stats(); return stats.Connected && stats.Following == 0 }
	eventually(t, "the bus feeds the informer", func() bool { return informer.HasSynced() && onTheBus() })
	before := conn.Stats().Events
	for i := range 20 {
		mustServe(t, s, "a"+strconv.Itoa(i))
	}
	same := func() bool {
		list, err := s.Client.CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		have := informer.GetStore().List()
		for _, service := range list.Items {
			obj, _, _ := informer.GetStore().GetByKey(service.Namespace + "/" + service.Name)
			if !equality.Semantic.DeepEqual(obj, &service) {
				return false
			}
		}
		return len(have) == len(list.Items)
	}
	eventually(t, "the informer has all", same)
	if events := conn.Stats().Events - before; events != 20 || conn.Stats().Repairs != 0 {
		t.Errorf("stats are %+v", conn.Stats())
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	again := testserver.StartIn(t, dir, flags...)
	mu.Lock()
	s = again
	mu.Unlock()
	mustServe(t, s, "b")
	eventually(t, "the informer has all after the restart", same)
	eventually(t, "the bus feeds the informer after the restart", onTheBus)
	before = conn.Stats().Events
	mustServe(t, s, "c")
	eventually(t, "the informer has the last one", same)
	if conn.Stats().Events != before+1 {
		t.Errorf("stats are %+v", conn.Stats())
	}
}
