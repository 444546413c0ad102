package bootstrap

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

const (
	servicePort = 443
	portName    = "https"
	// keepInterval is how often Keep looks after the kubernetes Service, upstream's
	// figure.
	keepInterval = 10 * time.Second
)

// Keep ensures the kubernetes Service, its endpoints, the range of its address and
// the objects of priority and fairness again and again until ctx ends: without
// them, clients in pods find no API server.
func Keep(ctx context.Context, state registry.State, cfg Config, log *slog.Logger) {
	ticker := time.NewTicker(keepInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if err := keep(ctx, state, cfg); err != nil && ctx.Err() == nil {
				log.Error("Keeping the cluster's own objects", "err", err)
			}
		}
	}
}

func keep(ctx context.Context, state registry.State, cfg Config) error {
	if err := ensureServiceCIDR(ctx, state, cfg.ServiceCIDRs); err != nil {
		return err
	}
	here, err := endpoints(ctx, cfg)
	if err != nil {
		return err
	}
	return ensureAll(ctx, state, slices.Concat(services(cfg), here, flowControl()))
}

func services(cfg Config) []item {
	kubernetes := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: "kubernetes",
			Labels: map[string]string{"component": "apiserver", "provider": "kubernetes"},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: cfg.ServiceIP.String(), SessionAffinity: corev1.ServiceAffinityNone,
			Ports: []corev1.ServicePort{{Name: portName, Protocol: corev1.ProtocolTCP, Port: servicePort, TargetPort: intstr.FromInt32(cfg.SecurePort)}},
		},
	}
	items := []item{{corev1.Resource("services"), kubernetes, servicePortsOf(kubernetes)}}
	if cfg.DNSIP == nil {
		return items
	}
	dns := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceSystem, Name: "kube-dns",
			Labels: map[string]string{
				"k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS",
			},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: cfg.DNSIP.String(), SessionAffinity: corev1.ServiceAffinityNone,
			Ports: []corev1.ServicePort{
				{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53, TargetPort: intstr.FromInt32(53)},
				{Name: "dns-tcp", Protocol: corev1.ProtocolTCP, Port: 53, TargetPort: intstr.FromInt32(53)},
			},
		},
	}
	// An administrator may put a DNS server of his own behind the address: what is
	// there is left alone.
	return append(items, item{corev1.Resource("services"), dns, nil})
}

// servicePortsOf repairs a Service's port, whose target follows the server's.
func servicePortsOf(want *corev1.Service) func(runtime.Object) (bool, error) {
	return func(obj runtime.Object) (bool, error) {
		have, ok := obj.(*corev1.Service)
		if !ok {
			return false, fmt.Errorf("a Service is a %T", obj)
		}
		if len(have.Spec.Ports) == 1 {
			// Only what this server decides is compared; defaults fill the rest.
			p, w := have.Spec.Ports[0], want.Spec.Ports[0]
			if p.Name == w.Name && p.Protocol == w.Protocol && p.Port == w.Port && p.TargetPort == w.TargetPort {
				return false, nil
			}
		}
		have.Spec.Ports = want.DeepCopy().Spec.Ports
		return true, nil
	}
}

// endpoints are where the servers are reached. They are none for a server that
// only its own host reaches: a loopback address means another host to each client.
func endpoints(ctx context.Context, cfg Config) ([]item, error) {
	if cfg.AdvertiseAddress.IsLoopback() {
		return nil, nil
	}
	addresses := []net.IP{cfg.AdvertiseAddress}
	if cfg.Peers != nil {
		var err error
		if addresses, err = cfg.Peers(ctx); err != nil {
			return nil, err
		}
	}
	return endpointsAt(cfg, addresses), nil
}

func endpointsAt(cfg Config, addresses []net.IP) []item {
	meta := metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}
	subset := corev1.EndpointSubset{ //nolint:staticcheck // clients still read the older kind
		Ports: []corev1.EndpointPort{{Name: portName, Port: cfg.SecurePort, Protocol: corev1.ProtocolTCP}},
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  meta,
		AddressType: addressType(cfg.AdvertiseAddress),
		Ports:       []discoveryv1.EndpointPort{{Name: new(portName), Port: new(cfg.SecurePort), Protocol: new(corev1.ProtocolTCP)}},
	}
	for _, address := range addresses {
		subset.Addresses = append(subset.Addresses, corev1.EndpointAddress{IP: address.String()})
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address.String()}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}})
	}
	legacy := &corev1.Endpoints{ObjectMeta: meta, Subsets: []corev1.EndpointSubset{subset}} //nolint:staticcheck // as above
	// The slice is written here, not mirrored.
	legacy.Labels = map[string]string{discoveryv1.LabelSkipMirror: "true"}
	slice.Labels = map[string]string{discoveryv1.LabelServiceName: "kubernetes"}
	return []item{
		{corev1.Resource("endpoints"), legacy, func(obj runtime.Object) (bool, error) {
			have, ok := obj.(*corev1.Endpoints) //nolint:staticcheck // as above
			if !ok || equality.Semantic.DeepEqual(have.Subsets, legacy.Subsets) && have.Labels[discoveryv1.LabelSkipMirror] == "true" {
				return false, nil
			}
			have.Subsets = legacy.DeepCopy().Subsets
			have.Labels = withLabels(have.Labels, legacy.Labels)
			return true, nil
		}},
		{discoveryv1.Resource("endpointslices"), slice, func(obj runtime.Object) (bool, error) { return repairSlice(obj, slice) }},
	}
}

func repairSlice(obj runtime.Object, want *discoveryv1.EndpointSlice) (bool, error) {
	have, ok := obj.(*discoveryv1.EndpointSlice)
	switch {
	case !ok:
		return false, nil
	case have.AddressType != want.AddressType: // which is immutable
		return false, errReplace
	case equality.Semantic.DeepEqual(have.Endpoints, want.Endpoints) && equality.Semantic.DeepEqual(have.Ports, want.Ports) &&
		have.Labels[discoveryv1.LabelServiceName] == "kubernetes":
		return false, nil
	}
	fresh := want.DeepCopy()
	have.Endpoints, have.Ports = fresh.Endpoints, fresh.Ports
	have.Labels = withLabels(have.Labels, want.Labels)
	return true, nil
}

func withLabels(have, want map[string]string) map[string]string {
	if have == nil {
		have = map[string]string{}
	}
	maps.Copy(have, want)
	return have
}

func addressType(ip net.IP) discoveryv1.AddressType {
	if ip.To4() != nil {
		return discoveryv1.AddressTypeIPv4
	}
	return discoveryv1.AddressTypeIPv6
}

func configMaps(cfg Config) []item {
	authentication := map[string]string{}
	if len(cfg.ClientCA) > 0 {
		authentication["client-ca-file"] = string(cfg.ClientCA)
	}
	if h := cfg.RequestHeader; len(h.ClientCA) > 0 {
		authentication["requestheader-client-ca-file"] = string(h.ClientCA)
		authentication["requestheader-allowed-names"] = jsonList(h.AllowedNames)
		authentication["requestheader-username-headers"] = jsonList(h.UserHeaders)
		authentication["requestheader-uid-headers"] = jsonList(h.UIDHeaders)
		authentication["requestheader-group-headers"] = jsonList(h.GroupHeaders)
		authentication["requestheader-extra-headers-prefix"] = jsonList(h.Extra)
	}
	items := []item{configMap(metav1.NamespaceSystem, "extension-apiserver-authentication", authentication)}
	if cfg.ClusterInfo != "" {
		items = append(items, configMap(metav1.NamespacePublic, "cluster-info", map[string]string{"kubeconfig": cfg.ClusterInfo}))
	}
	return items
}

// configMap keeps the keys of data; other keys are others'.
func configMap(namespace, name string, data map[string]string) item {
	want := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: data}
	return item{corev1.Resource("configmaps"), want, func(obj runtime.Object) (bool, error) {
		have, ok := obj.(*corev1.ConfigMap)
		if !ok {
			return false, nil
		}
		changed := false
		for key, value := range data {
			if have.Data[key] != value {
				have.Data = withLabels(have.Data, map[string]string{key: value})
				changed = true
			}
		}
		return changed, nil
	}}
}

func jsonList(list []string) string {
	if list == nil {
		list = []string{}
	}
	out, err := json.Marshal(list)
	if err != nil {
		panic(err) // strings always encode
	}
	return string(out)
}
