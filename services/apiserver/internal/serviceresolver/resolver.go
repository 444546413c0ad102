// Package serviceresolver reaches Services from the API server itself: it dials
// ready endpoints out of the server's own caches, so that neither a proxy's rules
// nor cluster DNS need to exist on the server's host. Aggregated API servers and
// webhooks are reached through it.
package serviceresolver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

const (
	dialTimeout      = 5 * time.Second // per endpoint
	handshakeTimeout = 10 * time.Second
	idleTimeout      = 90 * time.Second
)

// Resolver finds and dials the endpoints of Services. It is safe for concurrent
// use.
type Resolver struct {
	reader registry.Reader
	dialer *net.Dialer
}

// New reads Services and EndpointSlices from reader.
func New(reader registry.Reader) *Resolver {
	return &Resolver{reader: reader, dialer: &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}}
}

// ServerName is the name that a Service's serving certificate must have.
func ServerName(namespace, name string) string { return name + "." + namespace + ".svc" }

// URL is where a Service is reached through a Transport of this package: its
// host is the Service's server name, not an address.
func URL(namespace, name string, port int32, path string) *url.URL {
	return &url.URL{Scheme: "https", Host: net.JoinHostPort(ServerName(namespace, name), strconv.Itoa(int(port))), Path: path}
}

// Resolve is the addresses (host:port) of a Service's port, of its ready endpoints
// in random order. It answers NotFound for an unknown Service, and
// ServiceUnavailable when the port is unknown or nothing is ready behind it.
func (r *Resolver) Resolve(ctx context.Context, namespace, name string, port int32) ([]string, error) {
	obj, err := r.reader.Get(ctx, corev1.Resource("services"), namespace, name)
	if err != nil {
		return nil, err
	}
	service, ok := obj.(*corev1.Service)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("a Service is a %T", obj))
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		return []string{net.JoinHostPort(service.Spec.ExternalName, strconv.Itoa(int(port)))}, nil
	}
	portName, ok := nameOf(service, port)
	if !ok {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %d found for service %q", port, name))
	}
	slices, err := r.reader.List(ctx, discoveryv1.Resource("endpointslices"), namespace)
	if err != nil {
		return nil, err
	}
	var addresses []string
	for _, obj := range slices {
		if slice, ok := obj.(*discoveryv1.EndpointSlice); ok && slice.Labels[discoveryv1.LabelServiceName] == name {
			addresses = append(addresses, ready(slice, portName)...)
		}
	}
	if len(addresses) == 0 {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", name))
	}
	rand.Shuffle(len(addresses), func(i, j int) { addresses[i], addresses[j] = addresses[j], addresses[i] })
	return addresses, nil
}

// nameOf is the name of a Service's port of that number.
func nameOf(service *corev1.Service, number int32) (string, bool) {
	for _, port := range service.Spec.Ports {
		if port.Port == number && (port.Protocol == corev1.ProtocolTCP || port.Protocol == "") {
			return port.Name, true
		}
	}
	return "", false
}

// ready are the addresses of a slice that serve the port of that name.
func ready(slice *discoveryv1.EndpointSlice, portName string) []string {
	var out []string
	for _, port := range slice.Ports {
		name := ""
		if port.Name != nil {
			name = *port.Name
		}
		if port.Port == nil || name != portName {
			continue
		}
		for _, endpoint := range slice.Endpoints {
			if (endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready) && len(endpoint.Addresses) > 0 {
				out = append(out, net.JoinHostPort(endpoint.Addresses[0], strconv.Itoa(int(*port.Port))))
			}
		}
	}
	return out
}

// DialContext dials host:port. Where the host is a Service's server name
// (name.namespace.svc), it dials the Service's endpoints until one answers.
func (r *Resolver) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	namespace, name, port, ok := parse(address)
	if !ok {
		return r.dialer.DialContext(ctx, network, address)
	}
	addresses, err := r.Resolve(ctx, namespace, name, port)
	if err != nil {
		return nil, err
	}
	var failures []error
	for _, address := range addresses {
		conn, err := r.dialer.DialContext(ctx, network, address)
		if err == nil {
			return conn, nil
		}
		failures = append(failures, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, fmt.Errorf("dialing service %s/%s: %w", namespace, name, errors.Join(failures...))
}

// parse takes a Service's server name and port apart.
func parse(address string) (namespace, name string, port int32, ok bool) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", "", 0, false
	}
	parts := strings.Split(host, ".")
	if len(parts) != 3 || parts[2] != "svc" {
		return "", "", 0, false
	}
	number, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", "", 0, false
	}
	return parts[1], parts[0], int32(number), true
}

// Transport makes a transport that dials Services by their server names, and
// everything else as usual. It uses no proxy of the environment. With http2 it
// speaks HTTP/2 where the server does; such connections cannot be upgraded.
func (r *Resolver) Transport(config *tls.Config, http2 bool) *http.Transport {
	transport := &http.Transport{
		DialContext: r.DialContext, TLSClientConfig: config, TLSHandshakeTimeout: handshakeTimeout,
		IdleConnTimeout: idleTimeout, ForceAttemptHTTP2: http2,
	}
	if !http2 {
		transport.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	}
	return transport
}
