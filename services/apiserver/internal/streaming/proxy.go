package streaming

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"strconv"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	proxyutil "k8s.io/apimachinery/pkg/util/proxy"
)

// PodProxy serves pods/proxy: [scheme:]name[:port].
func (c *Connections) PodProxy(ctx context.Context, namespace, name, rest string, _ runtime.Object) (http.Handler, error) {
	scheme, id, port, ok := utilnet.SplitSchemeNamePort(name)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid pod request %q", name))
	}
	pod, err := c.pod(ctx, namespace, id)
	if err != nil {
		return nil, err
	}
	if pod.Status.PodIP == "" {
		return nil, apierrors.NewBadRequest("address not allowed")
	}
	if port == "" {
		port = firstPort(pod)
	}
	return c.forward(scheme, hostPort(pod.Status.PodIP, port), rest)
}

func firstPort(pod *corev1.Pod) string {
	for _, container := range pod.Spec.Containers {
		for _, port := range container.Ports {
			if port.Protocol == corev1.ProtocolTCP || port.Protocol == "" {
				return strconv.Itoa(int(port.ContainerPort))
			}
		}
	}
	return ""
}

// NodeProxy serves nodes/proxy: [scheme:]name[:port], the agent's port when
// none is given.
func (c *Connections) NodeProxy(ctx context.Context, _, name, rest string, _ runtime.Object) (http.Handler, error) {
	scheme, id, port, ok := utilnet.SplitSchemeNamePort(name)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid node request %q", name))
	}
	location, err := c.nodeURL(ctx, id, "https", "")
	if err != nil {
		return nil, err
	}
	if port == "" || port == location.Port() { // the agent, with this server's identity
		location.Path = "/" + strings.TrimPrefix(rest, "/")
		return c.passOn(location, c.guarded), nil
	}
	return c.forward(scheme, net.JoinHostPort(location.Hostname(), port), rest)
}

// ServiceProxy serves services/proxy: [scheme:]name[:port], the port by name or
// number, or the Service's only one.
func (c *Connections) ServiceProxy(ctx context.Context, namespace, name, rest string, _ runtime.Object) (http.Handler, error) {
	scheme, id, port, ok := utilnet.SplitSchemeNamePort(name)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid service request %q", name))
	}
	obj, err := c.reader.Get(ctx, serviceResource, namespace, id)
	if err != nil {
		return nil, err
	}
	portName, err := servicePort(obj.(*corev1.Service), port)
	if err != nil {
		return nil, err
	}
	endpoint, err := c.endpoint(ctx, namespace, id, portName)
	if err != nil {
		return nil, err
	}
	return c.forward(scheme, endpoint, rest)
}

// servicePort is the name of the port that a proxy request means.
func servicePort(service *corev1.Service, wanted string) (string, error) {
	ports := service.Spec.Ports
	if wanted == "" && len(ports) == 1 {
		return ports[0].Name, nil
	}
	for _, port := range ports {
		if port.Name == wanted || strconv.Itoa(int(port.Port)) == wanted {
			return port.Name, nil
		}
	}
	return "", apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %q found for service %q", wanted, service.Name))
}

// endpoint is the address of a random ready endpoint of a service's port.
func (c *Connections) endpoint(ctx context.Context, namespace, name, portName string) (string, error) {
	slices, err := c.reader.List(ctx, sliceResource, namespace)
	if err != nil {
		return "", err
	}
	var candidates []string
	for _, obj := range slices {
		slice := obj.(*discoveryv1.EndpointSlice)
		if slice.Labels[discoveryv1.LabelServiceName] == name {
			candidates = append(candidates, readyAddresses(slice, portName)...)
		}
	}
	if len(candidates) == 0 {
		return "", apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", name))
	}
	return candidates[rand.IntN(len(candidates))], nil
}

func readyAddresses(slice *discoveryv1.EndpointSlice, portName string) []string {
	var out []string
	for _, port := range slice.Ports {
		if port.Port == nil || (port.Name != nil && *port.Name != portName) || (port.Name == nil && portName != "") {
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

func hostPort(host, port string) string {
	if port == "" {
		return host
	}
	return net.JoinHostPort(host, port)
}

// forward proxies to an address of a pod or node that is not the agent.
func (c *Connections) forward(scheme, host, rest string) (http.Handler, error) {
	if scheme == "" {
		scheme = "http"
	}
	if scheme != "http" && scheme != "https" {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid scheme %q", scheme))
	}
	location := &url.URL{Scheme: scheme, Host: host, Path: path.Join("/", rest)}
	if strings.HasSuffix(rest, "/") && location.Path != "/" {
		location.Path += "/"
	}
	return c.passOn(location, c.proxied), nil
}

func (c *Connections) passOn(location *url.URL, transport http.RoundTripper) http.Handler {
	handler := proxyutil.NewUpgradeAwareHandler(location, transport, true, false, responder{})
	handler.RejectForwardingRedirects = true
	return handler
}

// refuseLocal keeps proxied connections away from the server's own host. It is
// called with the address that is dialled, after names were resolved, so that a
// name cannot be checked as one address and dialled as another (CVE-2020-8562).
func refuseLocal(_, address string, _ syscall.RawConn) error {
	host, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("address %q not allowed: %w", address, err)
	}
	ip := host.Addr().Unmap()
	if ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.IsLinkLocalMulticast() || ip.IsInterfaceLocalMulticast() || ip.IsUnspecified() {
		return apierrors.NewBadRequest("address not allowed")
	}
	return nil
}
