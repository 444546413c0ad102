package conformance

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
)

var aggregator = map[string]func(*testing.T){
	"Should be able to support the 1.17 Sample API Server using the current Aggregator": sampleServer,
}

// apiServices are APIServices.
var apiServices = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}

// hostAddress is where the API server and this test are seen by each other, and
// what endpoints may name: loopback addresses are refused.
const hostAddress = "10.89.0.1"

// sample is another API server, of one kind in memory.
type sample struct {
	group string
	mu    sync.Mutex
	kept  map[string]map[string]any // by namespace/name
}

func (s *sample) version() string { return s.group + "/v1alpha1" }

func (s *sample) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 || r.Header.Get("X-Remote-User") == "" {
		http.Error(w, "who are you?", http.StatusUnauthorized)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	rest, ok := strings.CutPrefix(r.URL.Path, "/apis/"+s.version())
	if !ok {
		http.NotFound(w, r)
		return
	}
	if rest == "" {
		_ = json.NewEncoder(w).Encode(metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, GroupVersion: s.version(),
			APIResources: []metav1.APIResource{{Name: "flunders", SingularName: "flunder", Kind: "Flunder", Namespaced: true, Verbs: []string{"create", "delete", "get", "list"}}},
		})
		return
	}
	parts := strings.Split(strings.Trim(rest, "/"), "/") // namespaces, namespace, flunders, name
	if len(parts) < 3 {
		http.NotFound(w, r)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serve(w, r, parts[1], strings.Join(parts[3:], "/"))
}

// serve answers for one namespace. Caller must hold mu.
func (s *sample) serve(w http.ResponseWriter, r *http.Request, namespace, name string) {
	switch {
	case r.Method == http.MethodPost:
		var made map[string]any
		if err := json.NewDecoder(io.LimitReader(r.Body, 1<<20)).Decode(&made); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		meta, _ := made["metadata"].(map[string]any)
		meta["namespace"] = namespace
		s.kept[namespace+"/"+fmt.Sprint(meta["name"])] = made
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(made)
	case name == "":
		items := []any{}
		for key, item := range s.kept {
			if strings.HasPrefix(key, namespace+"/") {
				items = append(items, item)
			}
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": s.version(), "kind": "FlunderList", "metadata": map[string]any{}, "items": items})
	case s.kept[namespace+"/"+name] == nil:
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: 404, Reason: metav1.StatusReasonNotFound})
	default:
		item := s.kept[namespace+"/"+name]
		if r.Method == http.MethodDelete {
			delete(s.kept, namespace+"/"+name)
		}
		_ = json.NewEncoder(w).Encode(item)
	}
}

// newSample serves on the host, behind a Service of the namespace.
func newSample(t *testing.T, namespace string) (server *sample, authority []byte) {
	t.Helper()
	key := got(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "sample"}, DNSNames: []string{"sample-api." + namespace + ".svc"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), BasicConstraintsValid: true, IsCA: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der := got(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))(t)
	listener := got((&net.ListenConfig{}).Listen(t.Context(), "tcp", hostAddress+":0"))(t)
	server = &sample{group: unique("wardle") + ".example.com", kept: map[string]map[string]any{}}
	running := &httptest.Server{Listener: listener, Config: &http.Server{Handler: server, ReadHeaderTimeout: time.Minute}, TLS: &tls.Config{
		MinVersion: tls.VersionTLS12, ClientAuth: tls.RequireAnyClientCert, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
	}}
	running.StartTLS()
	t.Cleanup(running.Close)
	port := int32(listener.Addr().(*net.TCPAddr).Port)
	got(client.CoreV1().Services(namespace).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "sample-api"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "https", Port: 7443}}},
	}, metav1.CreateOptions{}))(t)
	got(client.DiscoveryV1().EndpointSlices(namespace).Create(t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "sample-api", Labels: map[string]string{discoveryv1.LabelServiceName: "sample-api"}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{hostAddress}}},
		Ports: []discoveryv1.EndpointPort{{Name: new("https"), Port: &port}},
	}, metav1.CreateOptions{}))(t)
	return server, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// condition is the status of an APIService's condition.
func condition(service *unstructured.Unstructured, kind string) string {
	list, _, _ := unstructured.NestedSlice(service.Object, "status", "conditions")
	for _, one := range list {
		if c, ok := one.(map[string]any); ok && c["type"] == kind {
			return fmt.Sprint(c["status"])
		}
	}
	return ""
}

func sampleServer(t *testing.T) {
	namespace := newNamespace(t)
	server, authority := newSample(t, namespace)
	name, label := "v1alpha1."+server.group, unique("aggregated")
	services := dynamics.Resource(apiServices)
	got(services.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
		"metadata": map[string]any{"name": name, "labels": map[string]any{"test": label}},
		"spec": map[string]any{
			"group": server.group, "version": "v1alpha1", "groupPriorityMinimum": int64(2000), "versionPriority": int64(200),
			"caBundle": base64.StdEncoding.EncodeToString(authority),
			"service":  map[string]any{"namespace": namespace, "name": "sample-api", "port": int64(7443)},
		},
	}}, metav1.CreateOptions{}))(t)
	deleteAfter(t, name, func(ctx context.Context) error { return services.Delete(ctx, name, metav1.DeleteOptions{}) })
	eventually(t, "the sample server to be available", func(ctx context.Context) (bool, error) {
		service, err := services.Get(ctx, name, metav1.GetOptions{})
		return err == nil && condition(service, "Available") == "True", err
	})
	useSample(t, namespace, server)
	changeRegistration(t, name, label)

	must(t, services.DeleteCollection(t.Context(), metav1.DeleteOptions{}, labelled(label)))
	eventually(t, "the sample server to be gone", func(ctx context.Context) (bool, error) {
		list, err := services.List(ctx, labelled(label))
		if err != nil || len(list.Items) > 0 {
			return false, err
		}
		_, err = client.Discovery().ServerResourcesForGroupVersion(server.version())
		return gone(err), nil
	})
}

// useSample works with the sample's kind as with any other.
func useSample(t *testing.T, namespace string, server *sample) {
	t.Helper()
	list := got(client.Discovery().ServerResourcesForGroupVersion(server.version()))(t)
	if !hasResource(list, "flunders") {
		t.Errorf("discovery: %+v", list)
	}
	flunders := dynamics.Resource(schema.GroupVersionResource{Group: server.group, Version: "v1alpha1", Resource: "flunders"}).Namespace(namespace)
	got(flunders.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": server.version(), "kind": "Flunder", "metadata": map[string]any{"name": "rest-flunder"},
	}}, metav1.CreateOptions{}))(t)
	if made := got(flunders.List(t.Context(), metav1.ListOptions{}))(t); len(made.Items) != 1 {
		t.Errorf("%d flunders", len(made.Items))
	}
	out := got(cluster.Kubectl("-n", namespace, "get", "flunders."+server.group, "-o", "name"))(t)
	contains(t, out, "rest-flunder")
	must(t, flunders.Delete(t.Context(), "rest-flunder", metav1.DeleteOptions{}))
	if _, err := flunders.Get(t.Context(), "rest-flunder", metav1.GetOptions{}); !gone(err) {
		t.Errorf("a deleted flunder: %v", err)
	}
}

// changeRegistration reads, patches and replaces an APIService and its status.
func changeRegistration(t *testing.T, name, label string) {
	t.Helper()
	services := dynamics.Resource(apiServices)
	status := got(services.Get(t.Context(), name, metav1.GetOptions{}, "status"))(t)
	if condition(status, "Available") != "True" {
		t.Errorf("status: %v", status.Object["status"])
	}
	patched := got(services.Patch(t.Context(), name, types.MergePatchType, []byte(`{"spec":{"versionPriority":400}}`), metav1.PatchOptions{}))(t)
	if priority, _, _ := unstructured.NestedInt64(patched.Object, "spec", "versionPriority"); priority != 400 {
		t.Errorf("priority %d", priority)
	}
	must(t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		fresh, err := services.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		list, _, _ := unstructured.NestedSlice(fresh.Object, "status", "conditions")
		list = append(list, map[string]any{"type": "StatusUpdated", "status": "True", "reason": "E2E", "message": "Set from an e2e test"})
		if err := unstructured.SetNestedSlice(fresh.Object, list, "status", "conditions"); err != nil {
			return err
		}
		fresh, err = services.UpdateStatus(t.Context(), fresh, metav1.UpdateOptions{})
		if err == nil && condition(fresh, "StatusUpdated") != "True" {
			t.Errorf("status: %v", fresh.Object["status"])
		}
		return err
	}))
	got(services.Patch(t.Context(), name, types.MergePatchType, labelPatch("patched", "yes"), metav1.PatchOptions{}))(t)
	list := got(services.List(t.Context(), labelled(label)))(t)
	if len(list.Items) != 1 || list.Items[0].GetLabels()["patched"] != "yes" {
		t.Errorf("listed: %+v", list.Items)
	}
}
