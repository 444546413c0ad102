package handlers_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

// next is the next event, with a name; it fails the test after a while.
func next(t *testing.T, w watch.Interface) watch.Event {
	t.Helper()
	select {
	case event, ok := <-w.ResultChan():
		if !ok {
			t.Fatal("watch ended")
		}
		return event
	case <-time.After(10 * time.Second):
		t.Fatal("no event after 10 s")
	}
	panic("unreachable")
}

func wantEvent(t *testing.T, w watch.Interface, kind watch.EventType, name string) *corev1.ConfigMap {
	t.Helper()
	event := next(t, w)
	got, ok := event.Object.(*corev1.ConfigMap)
	if !ok || event.Type != kind || got.Name != name {
		t.Fatalf("got %s %v, want %s %s", event.Type, event.Object, kind, name)
	}
	return got
}

func TestWatchFollowsChanges(t *testing.T) {
	for _, contentType := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
		t.Run(contentType, func(t *testing.T) {
			s := testserver.Start(t)
			config := rest.CopyConfig(s.Config)
			config.ContentType, config.AcceptContentTypes = contentType, contentType
			client, err := kubernetes.NewForConfig(config)
			if err != nil {
				t.Fatal(err)
			}
			maps := client.CoreV1().ConfigMaps("default")
			fill(t, s, 1)
			w, err := maps.Watch(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()
			first := wantEvent(t, w, watch.Added, "m00")
			created, err := maps.Create(t.Context(), configMap("a"), metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if got := wantEvent(t, w, watch.Added, "a"); got.ResourceVersion != created.ResourceVersion || got.Data["key"] != "value" {
				t.Errorf("event: %+v", got)
			}
			created.Data["key"] = "new"
			if _, err := maps.Update(t.Context(), created, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			wantEvent(t, w, watch.Modified, "a")
			if err := maps.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			gone := wantEvent(t, w, watch.Deleted, "a")
			if gone.Data["key"] != "new" || gone.ResourceVersion == created.ResourceVersion {
				t.Errorf("deleted: %+v", gone)
			}
			// A watch from a version has what came after it, and nothing of it.
			again, err := maps.Watch(t.Context(), metav1.ListOptions{ResourceVersion: first.ResourceVersion})
			if err != nil {
				t.Fatal(err)
			}
			defer again.Stop()
			wantEvent(t, again, watch.Added, "a")
			wantEvent(t, again, watch.Modified, "a")
			wantEvent(t, again, watch.Deleted, "a")
		})
	}
}

func TestWatchTurnsSelectorTransitionsIntoAddsAndDeletes(t *testing.T) {
	s := testserver.Start(t)
	maps := s.Client.CoreV1().ConfigMaps("default")
	w, err := maps.Watch(t.Context(), metav1.ListOptions{LabelSelector: "in=yes"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	label := func(value string) {
		t.Helper()
		in := configMap("a")
		in.Labels = map[string]string{"in": value}
		if _, err := maps.Update(t.Context(), in, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := maps.Create(t.Context(), configMap("a"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	label("yes")
	wantEvent(t, w, watch.Added, "a")
	label("no")
	if got := wantEvent(t, w, watch.Deleted, "a"); got.Labels["in"] != "yes" {
		t.Errorf("deleted object has labels %v, want those that were selected", got.Labels)
	}
	label("yes")
	wantEvent(t, w, watch.Added, "a")
}

func TestWatchListEndsInitialEventsWithABookmark(t *testing.T) {
	s := testserver.Start(t)
	fill(t, s, 2)
	yes := true
	w, err := s.Client.CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{
		SendInitialEvents: &yes, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	wantEvent(t, w, watch.Added, "m00")
	wantEvent(t, w, watch.Added, "m01")
	end := wantEvent(t, w, watch.Bookmark, "")
	if end.Annotations[metav1.InitialEventsAnnotationKey] != "true" || end.ResourceVersion == "" {
		t.Errorf("bookmark: %+v", end.ObjectMeta)
	}
}

func TestWatchEndsInTime(t *testing.T) {
	s := testserver.Start(t)
	seconds := int64(1)
	w, err := s.Client.CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{TimeoutSeconds: &seconds})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case _, ok := <-w.ResultChan():
		if ok {
			t.Error("an event of nothing")
		}
	case <-time.After(10 * time.Second):
		t.Error("the watch did not end")
	}
}

func TestStopEndsWatches(t *testing.T) {
	s := testserver.Start(t)
	w, err := s.Client.CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("the server stopped after %v", took)
	}
	for range w.ResultChan() {
	}
}

func TestWatchOfAFutureVersionIsRefused(t *testing.T) {
	if testing.Short() {
		t.Skip("waits three seconds for the version")
	}
	s := testserver.Start(t)
	r := newRaw(t, s)
	status := r.want(504, "GET", configMaps+"?resourceVersion=999999999", nil).status(t)
	if status.Details == nil || status.Details.RetryAfterSeconds != 1 || len(status.Details.Causes) != 1 || status.Details.Causes[0].Type != metav1.CauseTypeResourceVersionTooLarge {
		t.Errorf("status: %+v", status)
	}
}

func TestTableWatchSendsColumnsOnce(t *testing.T) {
	s := testserver.Start(t)
	fill(t, s, 2)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Config.Host+configMaps+"?watch=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	response, err := s.HTTP(t).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	lines := bufio.NewScanner(response.Body)
	for i := range 2 {
		if !lines.Scan() {
			t.Fatal(lines.Err())
		}
		var event struct {
			Type   string
			Object metav1.Table
		}
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			t.Fatalf("%v: %s", err, lines.Bytes())
		}
		if event.Type != "ADDED" || len(event.Object.Rows) != 1 || (len(event.Object.ColumnDefinitions) > 0) != (i == 0) {
			t.Errorf("event %d: %s", i, lines.Bytes())
		}
	}
}

func TestWatchOverWebSocket(t *testing.T) {
	s := testserver.Start(t)
	fill(t, s, 1)
	config, err := rest.TLSConfigFor(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	config.NextProtos = []string{"http/1.1"}
	dialer := websocket.Dialer{TLSClientConfig: config, Subprotocols: []string{"base64.binary.k8s.io"}}
	socket, response, err := dialer.DialContext(t.Context(), strings.Replace(s.Config.Host, "https", "wss", 1)+configMaps+"?watch=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = socket.Close() }()
	if got := response.Header.Get("Sec-WebSocket-Protocol"); got != "base64.binary.k8s.io" {
		t.Errorf("subprotocol %q", got)
	}
	_ = socket.SetReadDeadline(time.Now().Add(10 * time.Second))
	for _, name := range []string{"m00", "later"} {
		kind, message, err := socket.ReadMessage()
		if err != nil || kind != websocket.TextMessage || !strings.HasPrefix(string(message), `{"type":"ADDED","object":{"kind":"ConfigMap"`) || !strings.Contains(string(message), `"name":"`+name+`"`) {
			t.Fatalf("got %d %s: %v", kind, message, err)
		}
		if name == "m00" {
			if _, err := s.Client.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("later"), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := s.Stop(); err != nil { // closes the socket
		t.Fatal(err)
	}
	if _, _, err := socket.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseNormalClosure) {
		t.Errorf("the stopped server's socket: %v", err)
	}
}

func TestOlderWatchPaths(t *testing.T) {
	s := testserver.Start(t)
	fill(t, s, 2)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Config.Host+"/api/v1/watch/namespaces/default/configmaps/m01", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := s.HTTP(t).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	lines := bufio.NewScanner(response.Body)
	if !lines.Scan() || !strings.Contains(lines.Text(), `"name":"m01"`) {
		t.Errorf("got %q, %v", lines.Text(), lines.Err())
	}
}

// TestInformersSeeEverything runs client-go's informers, which use watch-list,
// beside writers.
func TestInformersSeeEverything(t *testing.T) {
	s := testserver.Start(t)
	fill(t, s, 5)
	factory := informers.NewSharedInformerFactoryWithOptions(s.Client, 0, informers.WithNamespace("default"))
	informer := factory.Core().V1().ConfigMaps().Informer()
	var mu sync.Mutex
	deleted := map[string]bool{}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(obj any) {
		mu.Lock()
		defer mu.Unlock()
		if cm, ok := obj.(*corev1.ConfigMap); ok {
			deleted[cm.Name] = true
		}
	}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer factory.Shutdown()
	defer cancel()
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		t.Fatal("informer did not sync")
	}
	if n := len(informer.GetStore().List()); n != 5 {
		t.Errorf("synced with %d objects, want 5", n)
	}
	maps := s.Client.CoreV1().ConfigMaps("default")
	const count = 100
	var group sync.WaitGroup
	for w := range 4 {
		group.Go(func() {
			for i := w; i < count; i += 4 {
				name := fmt.Sprintf("x%d", i)
				if _, err := maps.Create(ctx, configMap(name), metav1.CreateOptions{}); err != nil {
					t.Errorf("create: %v", err)
					return
				}
				if i%2 == 0 {
					if err := maps.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
						t.Errorf("delete: %v", err)
					}
				}
			}
		})
	}
	group.Wait()
	deadline := time.Now().Add(10 * time.Second)
	for {
		mu.Lock()
		gone := len(deleted)
		mu.Unlock()
		have := len(informer.GetStore().List())
		if have == 5+count/2 && gone == count/2 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("informer has %d objects and saw %d deletions, want %d and %d", have, gone, 5+count/2, count/2)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
