package servicemap

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// near marks the ready endpoints that topology hints give to this node: those for
// the node itself (trafficDistribution PreferSameNode), or else those for its
// zone. Hints are followed only when every ready endpoint has some and one is for
// us, so that no client is left without endpoints (KEP-2433, KEP-4444).
func near(endpoints []Endpoint, hints map[int]*discoveryv1.EndpointHints, o Options) {
	forNode := func(h *discoveryv1.EndpointHints) (some, ours bool) {
		for _, node := range h.ForNodes {
			ours = ours || node.Name == o.NodeName
		}
		return len(h.ForNodes) > 0, ours
	}
	forZone := func(h *discoveryv1.EndpointHints) (some, ours bool) {
		for _, zone := range h.ForZones {
			ours = ours || zone.Name == o.Zone
		}
		return len(h.ForZones) > 0, ours && o.Zone != ""
	}
	for _, match := range []func(*discoveryv1.EndpointHints) (some, ours bool){forNode, forZone} {
		every, one := true, false
		chosen := make([]bool, len(endpoints))
		for i, e := range endpoints {
			if !e.Ready {
				continue
			}
			some, ours := false, false
			if h := hints[i]; h != nil {
				some, ours = match(h)
			}
			every, one, chosen[i] = every && some, one || ours, ours
		}
		if every && one {
			for i := range endpoints {
				endpoints[i].Near = chosen[i]
			}
			return
		}
	}
}

// serviceProxyName marks Services that another proxy handles.
const serviceProxyName = "service.kubernetes.io/service-proxy-name"

func foreign(service *corev1.Service) bool {
	_, named := service.Labels[serviceProxyName]
	return named
}
