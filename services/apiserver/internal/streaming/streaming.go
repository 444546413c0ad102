// Package streaming connects clients to what runs on nodes: logs, exec, attach
// and port-forward through the node's agent, and HTTP proxying to pods, services
// and nodes.
//
// Clients speak WebSocket (v5 and older) or SPDY; node agents and CRI runtimes
// speak SPDY v4 and older WebSocket. WebSocket v5 is translated to SPDY here,
// and port-forward is tunnelled (KEP-4006).
package streaming

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// Config says how node agents are reached.
type Config struct {
	// TLS authenticates the API server to node agents and checks their serving
	// certificates.
	TLS *tls.Config
	// AddressTypes are the node addresses to use, the first that a node has wins.
	// Empty is upstream's order: Hostname, InternalDNS, InternalIP, ExternalDNS,
	// ExternalIP.
	AddressTypes []corev1.NodeAddressType
}

// Connections makes the handlers of the streaming subresources.
type Connections struct {
	reader    registry.Reader
	types     []corev1.NodeAddressType
	transport *http.Transport // to node agents
	guarded   *http.Transport // to node agents, never at an address of this host
	proxied   *http.Transport // to pods and services, never at an address of this host
}

var (
	podResource     = schema.GroupResource{Resource: "pods"}
	nodeResource    = schema.GroupResource{Resource: "nodes"}
	serviceResource = schema.GroupResource{Resource: "services"}
	sliceResource   = schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}
)

// New reads pods, nodes and services from reader.
func New(reader registry.Reader, config Config) *Connections {
	types := config.AddressTypes
	if len(types) == 0 {
		types = []corev1.NodeAddressType{corev1.NodeHostName, corev1.NodeInternalDNS, corev1.NodeInternalIP, corev1.NodeExternalDNS, corev1.NodeExternalIP}
	}
	dialer := &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}
	guard := &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second, Control: refuseLocal}
	return &Connections{
		reader: reader,
		types:  types,
		// HTTP/1.1 only: an HTTP/2 connection cannot be upgraded.
		transport: &http.Transport{DialContext: dialer.DialContext, TLSClientConfig: config.TLS, TLSHandshakeTimeout: 10 * time.Second, IdleConnTimeout: 90 * time.Second},
		guarded:   &http.Transport{DialContext: guard.DialContext, TLSClientConfig: config.TLS, TLSHandshakeTimeout: 10 * time.Second, IdleConnTimeout: 90 * time.Second},
		// Serving certificates of pods and services are theirs, unknown to the
		// cluster's authority; upstream does not check them either.
		proxied: &http.Transport{DialContext: guard.DialContext, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, TLSHandshakeTimeout: 10 * time.Second, IdleConnTimeout: 90 * time.Second},
	}
}

// Close drops idle connections.
func (c *Connections) Close() {
	c.transport.CloseIdleConnections()
	c.guarded.CloseIdleConnections()
	c.proxied.CloseIdleConnections()
}

// responder answers errors of a proxied request as Status objects.
type responder struct{}

func (responder) Error(w http.ResponseWriter, _ *http.Request, err error) { writeError(w, err) }

func writeError(w http.ResponseWriter, err error) {
	var known apierrors.APIStatus
	if !errors.As(err, &known) {
		known = apierrors.NewServiceUnavailable("error trying to reach the backend: " + err.Error())
	}
	status := known.Status()
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	body, encodeErr := json.Marshal(&status)
	if encodeErr != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(status.Code))
	_, _ = w.Write(body)
}
