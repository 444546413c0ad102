package plugins

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// topologyLabels copies the zone and region of a node to the pods that come to it,
// on the binding, whose labels the pod gets, or on a pod that names its node.
type topologyLabels struct {
	plugin
	reader registry.Reader
}

func newPodTopologyLabels(config Config) admission.Plugin {
	return &topologyLabels{plugin{"PodTopologyLabels", []admission.Operation{admission.Create}}, config.State}
}

// Admit implements admission.Mutator. Labels that are there stay.
func (p *topologyLabels) Admit(ctx context.Context, a *admission.Attributes) error {
	if a.Resource.GroupResource() != corev1.Resource("pods") {
		return nil
	}
	var name string
	var labels *map[string]string
	switch obj := a.Object.(type) {
	case *corev1.Pod:
		if a.Subresource == "" {
			name, labels = obj.Spec.NodeName, &obj.Labels
		}
	case *corev1.Binding:
		if a.Subresource == "binding" && obj.Target.Kind == "Node" {
			name, labels = obj.Target.Name, &obj.Labels
		}
	}
	if name == "" {
		return nil
	}
	obj, err := p.reader.Get(ctx, corev1.Resource("nodes"), "", name)
	if err != nil {
		return ignoreNotFound(err)
	}
	node, ok := obj.(*corev1.Node)
	if !ok {
		return nil
	}
	for _, key := range []string{corev1.LabelTopologyZone, corev1.LabelTopologyRegion} {
		value, has := node.Labels[key]
		if _, set := (*labels)[key]; !has || set {
			continue
		}
		if *labels == nil {
			*labels = map[string]string{}
		}
		(*labels)[key] = value
	}
	return nil
}
