package handlers_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"k8s.io/client-go/rest"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

// dial opens a connection with an administrator's certificate.
func dial(t *testing.T, s *testserver.Server, protocol string) *tls.Conn {
	t.Helper()
	config, err := rest.TLSConfigFor(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	config.NextProtos = []string{protocol}
	connection, err := (&tls.Dialer{Config: config}).DialContext(t.Context(), "tcp", strings.TrimPrefix(s.Config.Host, "https://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	return connection.(*tls.Conn)
}

// endOf reads until the server closes the connection, and tells when that was.
func endOf(t *testing.T, connection net.Conn, began time.Time) (after time.Duration, answer string) {
	t.Helper()
	if err := connection.SetReadDeadline(began.Add(50 * time.Second)); err != nil {
		t.Error(err)
	}
	data, err := io.ReadAll(connection)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		t.Errorf("the connection is still open after %s", time.Since(began))
	}
	return time.Since(began), string(data)
}

// Clients that send nothing, half a header or half a body cost a connection for
// a bounded time.
func TestSlowClientsAreCutOff(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the time that a header may take, 32 seconds")
	}
	t.Parallel()
	s := testserver.Start(t, "--request-timeout=2s")
	began := time.Now()
	send := func(text string) *tls.Conn {
		connection := dial(t, s, "http/1.1")
		if _, err := io.WriteString(connection, text); err != nil {
			t.Fatal(err)
		}
		return connection
	}
	silent, header := send(""), send("GET /api HTTP/1.1\r\nHost: a\r\nX-Slow: ")
	body := send("POST " + configMaps + " HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
	if after, answer := endOf(t, body, began); after > 15*time.Second || !strings.HasPrefix(answer, "HTTP/1.1 4") {
		t.Errorf("half a body is answered after %s with %q", after, answer)
	}
	for name, connection := range map[string]*tls.Conn{"nothing": silent, "half a header": header} {
		if after, answer := endOf(t, connection, began); after < 25*time.Second || after > 45*time.Second || strings.Contains(answer, " 200 ") {
			t.Errorf("a client that sent %s is cut off after %s, with %q", name, after, answer)
		}
	}
}

func TestHeadersAreBounded(t *testing.T) {
	s := testserver.Start(t)
	r := newRaw(t, s)
	config := rest.CopyConfig(s.Config)
	config.NextProtos = []string{"http/1.1"}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	old := &raw{t, client, s.Config.Host}
	large := "X-Large: " + strings.Repeat("x", 2<<20)
	if got := old.do("GET", "/version", nil, large); got.code != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("HTTP/1.1: 2 MiB of headers are answered with %d", got.code)
	}
	request, err := http.NewRequestWithContext(t.Context(), "GET", s.Config.Host+"/version", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("X-Large", strings.Repeat("x", 2<<20))
	answer, err := s.HTTP(t).Do(request)
	if err == nil {
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("HTTP/2: 2 MiB of headers are answered with %d", answer.StatusCode)
		}
	}
	r.want(200, "GET", "/version", nil)
}

func TestStreamsOfAConnectionAreBounded(t *testing.T) {
	s := testserver.Start(t)
	connection := dial(t, s, "h2")
	if _, err := io.WriteString(connection, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	framer := http2.NewFramer(connection, connection)
	if err := framer.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		settings, ok := frame.(*http2.SettingsFrame)
		if !ok || settings.IsAck() {
			continue
		}
		if most, ok := settings.Value(http2.SettingMaxConcurrentStreams); !ok || most != 100 {
			t.Errorf("%d streams are allowed, %v", most, ok)
		}
		return
	}
}

// What no decoder must take is refused, and leaves nothing behind.
func TestHostileBodiesAreRefused(t *testing.T) {
	s := testserver.Start(t)
	r := newRaw(t, s)
	var bomb bytes.Buffer
	zip := gzip.NewWriter(&bomb)
	if _, err := zip.Write([]byte(`{"metadata":{"name":"zip"},"data":{"k":"` + strings.Repeat("x", 1<<20) + `"}}`)); err != nil {
		t.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	yaml, proto := "Content-Type: application/yaml", "Content-Type: application/vnd.kubernetes.protobuf"
	for _, c := range []struct {
		name, body string
		headers    []string
	}{
		{"a zipped body", bomb.String(), []string{"Content-Type: application/json", "Content-Encoding: gzip"}},
		{"NaN", `{"metadata":{"name":"x","generation":NaN}}`, nil},
		{"a name with NUL", `{"metadata":{"name":"a\u0000b"}}`, nil},
		{"a name that is not UTF-8", "{\"metadata\":{\"name\":\"a\xff\"}}", nil},
		{"a label that is not UTF-8", "{\"metadata\":{\"name\":\"a\",\"labels\":{\"k\":\"\xff\"}}}", nil},
		{"a protobuf that ends early", "k8s\x00\x0a\x0c\x0a\x02v1\x12\x06Config", []string{proto}},
		{"a protobuf of nonsense", "k8s\x00" + strings.Repeat("\xff", 1000), []string{proto}},
		{"lists nested deep", `{"metadata":{"name":"x"},"data":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + "}", nil},
		{"YAML nested deep", "metadata: {name: x}\ndata: " + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000), []string{yaml}},
		{"YAML that merges itself", "a: &a\n  b: *a\n", []string{yaml}},
		{"two documents", `{"metadata":{"name":"x"}}{"metadata":{"name":"y"}}`, nil},
	} {
		got := r.do("POST", configMaps, c.body, c.headers...)
		if got.code < 400 || got.code > 499 {
			t.Errorf("%s is answered with %d %s", c.name, got.code, got.body)
		}
	}
	if got := r.do("POST", configMaps+"?fieldValidation=Strict", `{"metadata":{"name":"x"},"data":{"k":"1","k":"2"}}`); got.code != http.StatusBadRequest {
		t.Errorf("a key given twice is answered with %d %s", got.code, got.body)
	}
	list := r.want(200, "GET", configMaps, nil)
	if strings.Contains(string(list.body), `"name":"x"`) || strings.Contains(string(list.body), `"name":"zip"`) {
		t.Errorf("something was stored: %s", list.body)
	}
}

// A patch that copies a value into itself again and again does not grow without
// bound.
func TestCopiesOfAPatchAreBounded(t *testing.T) {
	s := testserver.Start(t)
	r := newRaw(t, s)
	r.want(201, "POST", configMaps, `{"metadata":{"name":"grows"},"data":{"a":"`+strings.Repeat("x", 1000)+`"}}`)
	var patch strings.Builder
	patch.WriteString(`[{"op":"add","path":"/x","value":{}}`)
	for range 40 {
		patch.WriteString(`,{"op":"copy","from":"/data","path":"/x/a"},{"op":"copy","from":"/x","path":"/data/b"}`)
	}
	patch.WriteString("]")
	began := time.Now()
	got := r.do("PATCH", configMaps+"/grows", patch.String(), "Content-Type: application/json-patch+json")
	if got.code < 400 || got.code > 499 || time.Since(began) > 10*time.Second {
		t.Errorf("answered with %d after %s", got.code, time.Since(began))
	}
}

// One type's prefix never lists another's, whatever the names are.
func TestPrefixesOfTypesStayApart(t *testing.T) {
	s := testserver.Start(t)
	r := newRaw(t, s)
	r.want(201, "POST", "/api/v1/namespaces", `{"metadata":{"name":"specs"}}`)
	r.want(201, "POST", "/api/v1/namespaces/specs/services", `{"metadata":{"name":"endpoints"},"spec":{"ports":[{"port":80}]}}`)
	r.want(201, "POST", "/api/v1/namespaces/specs/endpoints", `{"metadata":{"name":"specs"}}`)
	for path, want := range map[string]string{
		"/api/v1/namespaces/specs/services": `"name":"endpoints"`, "/api/v1/namespaces/specs/endpoints": `"name":"specs"`,
	} {
		body := string(r.want(200, "GET", path, nil).body)
		if strings.Count(body, `"uid":`) != 1 || !strings.Contains(body, want) {
			t.Errorf("%s lists %s", path, body)
		}
	}
	r.want(404, "GET", "/api/v1/namespaces/specs/services/specs", nil)
}

// Nobody but the controllers writes EndpointSlices by default: whoever may edit
// a namespace could point them elsewhere.
func TestTenantsDoNotWriteEndpoints(t *testing.T) {
	s := testserver.Start(t)
	r := newRaw(t, s)
	for _, role := range []string{"admin", "edit"} {
		name := "tenant-" + role
		r.want(201, "POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
			`{"metadata":{"name":"`+name+`"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"`+role+`"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"`+name+`"}]}`)
		client, err := rest.HTTPClientFor(s.As(name))
		if err != nil {
			t.Fatal(err)
		}
		tenant := &raw{t, client, s.Config.Host}
		awaitRight(t, tenant)
		slice := `{"metadata":{"name":"evil"},"addressType":"IPv4","endpoints":[{"addresses":["10.0.0.1"]}]}`
		tenant.want(403, "POST", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", slice)
		tenant.want(403, "POST", "/api/v1/namespaces/default/endpoints", `{"metadata":{"name":"evil"}}`)
	}
}

// awaitRight waits until a binding has taken effect.
func awaitRight(t *testing.T, tenant *raw) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for tenant.do("GET", configMaps, nil).code != http.StatusOK {
		if ctx.Err() != nil {
			t.Fatal("the binding has no effect")
		}
	}
}
