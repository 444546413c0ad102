package aggregation_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport/spdy"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/streaming/pkg/httpstream"
	streamingspdy "k8s.io/streaming/pkg/httpstream/spdy"
)

// radio is the subresource that the fleet upgrades.
const radio = "/apis/" + group + "/v1/namespaces/default/boats/a/radio"

func TestWebSocketsArePassedOn(t *testing.T) {
	h := start(t)
	upgrader := websocket.Upgrader{Subprotocols: []string{"v5.channel.k8s.io"}}
	f := newFleet(t, h.Server, func(w http.ResponseWriter, r *http.Request) {
		conn, err := upgrader.Upgrade(w, r, http.Header{"X-Heard": {r.Header.Get("X-Remote-User")}})
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		for {
			kind, data, err := conn.ReadMessage()
			if err != nil || conn.WriteMessage(kind, data) != nil {
				return
			}
		}
	})
	h.register(f)
	h.await("v1."+group, apiregistrationv1.ConditionTrue, "Passed")
	config, err := rest.TLSConfigFor(h.Config)
	if err != nil {
		t.Fatal(err)
	}
	dialer := websocket.Dialer{TLSClientConfig: config, Subprotocols: []string{"v5.channel.k8s.io"}}
	conn, answer, err := dialer.DialContext(t.Context(), "wss"+strings.TrimPrefix(h.Config.Host, "https")+radio, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if conn.Subprotocol() != "v5.channel.k8s.io" || answer.Header.Get("X-Heard") == "" {
		t.Errorf("subprotocol %q, headers %v", conn.Subprotocol(), answer.Header)
	}
	large := strings.Repeat("ahoy ", 100_000)
	for _, text := range []string{"ahoy", large} {
		if err := conn.WriteMessage(websocket.BinaryMessage, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if kind, data, err := conn.ReadMessage(); err != nil || kind != websocket.BinaryMessage || string(data) != text {
			t.Errorf("echo of %d bytes: %d bytes of kind %d, %v", len(text), len(data), kind, err)
		}
	}
}

// Streams of an exec-like subresource.
func TestSPDYStreamsArePassedOn(t *testing.T) {
	h := start(t)
	f := newFleet(t, h.Server, func(w http.ResponseWriter, r *http.Request) {
		if _, err := httpstream.Handshake(r, w, []string{"radio.example.com"}); err != nil {
			return
		}
		streams := make(chan httpstream.Stream, 1)
		conn := streamingspdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
			streams <- s
			return nil
		})
		if conn == nil {
			return
		}
		defer func() { _ = conn.Close() }()
		s := <-streams
		_, _ = io.WriteString(s, s.Headers().Get("name")+": ")
		_, _ = io.Copy(s, s)
		_ = s.Close()
		<-conn.CloseChan()
	})
	h.register(f)
	h.await("v1."+group, apiregistrationv1.ConditionTrue, "Passed")
	transport, upgrader, err := spdy.RoundTripperFor(h.Config)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.Config.Host+radio, nil)
	if err != nil {
		t.Fatal(err)
	}
	conn, protocol, err := spdy.Negotiate(upgrader, &http.Client{Transport: transport}, request, "radio.example.com")
	if err != nil || protocol != "radio.example.com" {
		t.Fatalf("protocol %q, %v", protocol, err)
	}
	defer func() { _ = conn.Close() }()
	s, err := conn.CreateStream(http.Header{"name": {"bridge"}})
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(s, "ahoy")
	_ = s.Close()
	if data, err := io.ReadAll(s); err != nil || string(data) != "bridge: ahoy" {
		t.Errorf("heard %q, %v", data, err)
	}
}
