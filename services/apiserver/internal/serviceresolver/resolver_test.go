package serviceresolver_test

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/serviceresolver"
)

// objects are what a reader reads.
type objects []runtime.Object

func (o objects) Get(_ context.Context, resource schema.GroupResource, namespace, name string) (runtime.Object, error) {
	for _, obj := range o {
		if s, ok := obj.(*corev1.Service); ok && s.Namespace == namespace && s.Name == name {
			return s, nil
		}
	}
	return nil, apierrors.NewNotFound(resource, name)
}

func (o objects) List(_ context.Context, _ schema.GroupResource, namespace string) ([]runtime.Object, error) {
	var out []runtime.Object
	for _, obj := range o {
		if s, ok := obj.(*discoveryv1.EndpointSlice); ok && s.Namespace == namespace {
			out = append(out, s)
		}
	}
	return out, nil
}

func slice(name, port string, number int, isReady bool, addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "backend"}},
		Ports:      []discoveryv1.EndpointPort{{Name: new(port), Port: new(int32(number))}},
	}
	for _, address := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: new(isReady)}})
	}
	return s
}

func service(ports ...corev1.ServicePort) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "backend"}, Spec: corev1.ServiceSpec{Ports: ports}}
}

func TestResolvePicksReadyEndpointsOfThePort(t *testing.T) {
	r := serviceresolver.New(objects{
		service(corev1.ServicePort{Name: "a", Port: 443}, corev1.ServicePort{Name: "b", Port: 444}),
		slice("one", "a", 8443, true, "10.0.0.1", "10.0.0.2"), slice("two", "a", 8443, false, "10.0.0.3"), slice("three", "b", 9443, true, "10.0.0.4"),
	})
	got, err := r.Resolve(t.Context(), "n", "backend", 443)
	slices.Sort(got)
	if err != nil || !slices.Equal(got, []string{"10.0.0.1:8443", "10.0.0.2:8443"}) {
		t.Errorf("resolved %v, %v", got, err)
	}
	if _, err := r.Resolve(t.Context(), "n", "backend", 80); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("an unknown port: %v", err)
	}
	if _, err := r.Resolve(t.Context(), "n", "nobody", 443); !apierrors.IsNotFound(err) {
		t.Errorf("an unknown service: %v", err)
	}
	if _, err := serviceresolver.New(objects{service(corev1.ServicePort{Port: 443})}).Resolve(t.Context(), "n", "backend", 443); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("a service without endpoints: %v", err)
	}
}

func TestResolveExternalName(t *testing.T) {
	external := service()
	external.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "api.example.com"}
	got, err := serviceresolver.New(objects{external}).Resolve(t.Context(), "n", "backend", 443)
	if err != nil || !slices.Equal(got, []string{"api.example.com:443"}) {
		t.Errorf("resolved %v, %v", got, err)
	}
}

func TestTransportReachesAnEndpointThatAnswers(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte(r.Host)) }))
	t.Cleanup(server.Close)
	_, text, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	// Nobody listens on the second and third address.
	r := serviceresolver.New(objects{service(corev1.ServicePort{Name: "a", Port: 443}), slice("one", "a", port, true, "127.0.0.1", "127.0.0.2", "127.0.0.3")})
	var asked string
	transport := r.Transport(&tls.Config{InsecureSkipVerify: true, VerifyConnection: func(s tls.ConnectionState) error {
		asked = s.ServerName
		return nil
	}}, false)
	t.Cleanup(transport.CloseIdleConnections)
	for range 8 {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, serviceresolver.URL("n", "backend", 443, "/x").String(), nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatalf("round trip: %v", err)
		}
		_ = answer.Body.Close()
		transport.CloseIdleConnections()
	}
	if asked != "backend.n.svc" {
		t.Errorf("server name %q", asked)
	}
}
