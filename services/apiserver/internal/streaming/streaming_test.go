package streaming

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	proxyutil "k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/utils/ptr"
)

// fakeReader holds one pod and its node.
type fakeReader struct {
	pod  *corev1.Pod
	node *corev1.Node
}

func (f fakeReader) Get(_ context.Context, resource schema.GroupResource, _, name string) (runtime.Object, error) {
	switch {
	case resource == podResource && f.pod.Name == name:
		return f.pod, nil
	case resource == nodeResource && f.node.Name == name:
		return f.node, nil
	}
	return nil, apierrors.NewNotFound(resource, name)
}

func (f fakeReader) List(context.Context, schema.GroupResource, string) ([]runtime.Object, error) {
	return nil, nil
}

// newConnections has a pod "web" on a node whose agent is agent.
func newConnections(t *testing.T, agent http.Handler) (*Connections, *corev1.Pod) {
	t.Helper()
	server := httptest.NewTLSServer(agent)
	t.Cleanup(server.Close)
	at, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(at.Port())
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "app"}}},
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{
		Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: at.Hostname()}},
		DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(port)}},
	}}
	connections := New(fakeReader{pod, node}, Config{TLS: &tls.Config{RootCAs: server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}})
	t.Cleanup(connections.Close)
	return connections, pod
}

func serveOnce(t *testing.T, handler http.Handler) *http.Response {
	t.Helper()
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/", nil))
	return recorder.Result()
}

func TestLogPassesOptionsAndBytesOn(t *testing.T) {
	var asked *url.URL
	connections, _ := newConnections(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL
		fmt.Fprint(w, "one\ntwo\n")
	}))
	handler, err := connections.Log(t.Context(), "default", "web", "", &corev1.PodLogOptions{Timestamps: true, TailLines: ptr.To(int64(7))})
	if err != nil {
		t.Fatal(err)
	}
	answer := serveOnce(t, handler)
	body, _ := io.ReadAll(answer.Body)
	if string(body) != "one\ntwo\n" || answer.Header.Get("Content-Type") != "text/plain" {
		t.Errorf("answer is %q, %v", body, answer.Header)
	}
	if got := asked.String(); got != "/containerLogs/default/web/app?tailLines=7&timestamps=true" {
		t.Errorf("agent was asked for %s", got)
	}
}

func TestLogIsSentOverWebSocket(t *testing.T) {
	connections, _ := newConnections(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "one\ntwo\n")
	}))
	handler, err := connections.Log(t.Context(), "default", "web", "", &corev1.PodLogOptions{})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	dialer := websocket.Dialer{Subprotocols: []string{"binary.k8s.io"}}
	socket, _, err := dialer.DialContext(t.Context(), strings.Replace(server.URL, "http", "ws", 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = socket.Close() }()
	read := ""
	for {
		_, message, err := socket.ReadMessage()
		if err != nil {
			break
		}
		read += string(message)
	}
	if read != "one\ntwo\n" {
		t.Errorf("the messages hold %q", read)
	}
}

func TestLogErrorsOfTheAgentBecomeStatuses(t *testing.T) {
	connections, _ := newConnections(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "container \"app\" is waiting to start", http.StatusBadRequest)
	}))
	handler, err := connections.Log(t.Context(), "default", "web", "", &corev1.PodLogOptions{})
	if err != nil {
		t.Fatal(err)
	}
	answer := serveOnce(t, handler)
	var status metav1.Status
	if err := json.NewDecoder(answer.Body).Decode(&status); err != nil {
		t.Fatal(err)
	}
	if answer.StatusCode != http.StatusBadRequest || status.Kind != "Status" || !strings.Contains(status.Message, "waiting to start") {
		t.Errorf("answer %d: %+v", answer.StatusCode, status)
	}
}

func TestRedirectsOfAnAgentAreNotFollowed(t *testing.T) {
	followed := false
	connections, _ := newConnections(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/elsewhere" {
			followed = true
			return
		}
		http.Redirect(w, r, "/elsewhere", http.StatusFound)
	}))
	handler, err := connections.Log(t.Context(), "default", "web", "", &corev1.PodLogOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if answer := serveOnce(t, handler); answer.StatusCode < 400 || followed {
		t.Errorf("answer is %d, followed: %v", answer.StatusCode, followed)
	}
}

func TestContainerMustBeNamedWhenSeveral(t *testing.T) {
	connections, pod := newConnections(t, http.NotFoundHandler())
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "side"})
	_, err := connections.Exec(t.Context(), "default", "web", "", &corev1.PodExecOptions{Command: []string{"true"}, Stdout: true})
	if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "choose one of: [app side]") {
		t.Errorf("error is %v", err)
	}
	_, err = connections.Exec(t.Context(), "default", "web", "", &corev1.PodExecOptions{Container: "nobody", Command: []string{"true"}, Stdout: true})
	if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "container nobody is not valid for pod web") {
		t.Errorf("error is %v", err)
	}
}

func TestBadLogOptionsAreRefused(t *testing.T) {
	connections, _ := newConnections(t, http.NotFoundHandler())
	for _, options := range []corev1.PodLogOptions{
		{TailLines: ptr.To(int64(-1))}, {LimitBytes: ptr.To(int64(0))}, {SinceSeconds: ptr.To(int64(0))},
		{SinceSeconds: ptr.To(int64(1)), SinceTime: &metav1.Time{}}, {Stream: ptr.To("sideways")},
	} {
		if _, err := connections.Log(t.Context(), "default", "web", "", &options); !apierrors.IsInvalid(err) {
			t.Errorf("%+v: error is %v", options, err)
		}
	}
}

func TestProxyNeverReachesThisHost(t *testing.T) {
	reached := false
	local := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true }))
	defer local.Close()
	address := netip.MustParseAddrPort(strings.TrimPrefix(local.URL, "http://"))
	connections, pod := newConnections(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true }))
	for _, ip := range []string{"127.0.0.1", "::ffff:127.0.0.1", "169.254.169.254", "localhost"} {
		pod.Status.PodIP = ip
		handler, err := connections.PodProxy(t.Context(), "default", fmt.Sprintf("web:%d", address.Port()), "", nil)
		if err != nil {
			t.Fatal(err)
		}
		if answer := serveOnce(t, handler); answer.StatusCode < 400 {
			t.Errorf("%s: answer is %d", ip, answer.StatusCode)
		}
	}
	handler, err := connections.NodeProxy(t.Context(), "", "n1", "pods", nil)
	if err != nil {
		t.Fatal(err)
	}
	if answer := serveOnce(t, handler); answer.StatusCode < 400 {
		t.Errorf("node at loopback: answer is %d", answer.StatusCode)
	}
	if reached {
		t.Error("a server on this host was reached")
	}
}

func TestNodeProxyKeepsThePath(t *testing.T) {
	connections, _ := newConnections(t, http.NotFoundHandler())
	for _, rest := range []string{"/metrics", "metrics"} {
		handler, err := connections.NodeProxy(t.Context(), "", "n1", rest, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := handler.(*proxyutil.UpgradeAwareHandler).Location.Path; got != "/metrics" {
			t.Errorf("%q leads to %q", rest, got)
		}
	}
}

// An agent that refuses to upgrade gets no second request of the client over the
// same connection (CVE-2018-1002105).
func TestRefusedUpgradesCloseTheAgentsConnection(t *testing.T) {
	asked := make(chan string, 10)
	connections, _ := newConnections(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Path
		http.Error(w, "no", http.StatusForbidden)
	}))
	handler, err := connections.Exec(t.Context(), "default", "web", "", &corev1.PodExecOptions{Command: []string{"id"}, Stdout: true})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	defer server.Close()
	connection, err := net.Dial("tcp", strings.TrimPrefix(server.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	if _, err := io.WriteString(connection, "POST / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"+
		"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answers, err := io.ReadAll(connection)
	if err != nil || !strings.HasPrefix(string(answers), "HTTP/1.1 403") || strings.Count(string(answers), "HTTP/1.1 ") != 1 {
		t.Errorf("the answers are %q, %v", answers, err)
	}
	if first := <-asked; first != "/exec/default/web/app" {
		t.Errorf("the agent was asked for %s", first)
	}
	server.Close()
	close(asked)
	for path := range asked {
		t.Errorf("the agent was asked for %s, too", path)
	}
}
