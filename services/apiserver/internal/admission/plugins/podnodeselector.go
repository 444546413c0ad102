package plugins

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

const (
	nodeSelectorAnnotation = "scheduler.alpha.kubernetes.io/node-selector"
	// clusterDefault is the key of the selector of namespaces that have none.
	clusterDefault = "clusterDefaultNodeSelector"
)

// podNodeSelector keeps a namespace's pods on the nodes that the namespace's
// annotation selects, or the configuration.
type podNodeSelector struct {
	plugin
	reader    registry.Reader
	selectors map[string]string
}

func newPodNodeSelector(config Config) admission.Plugin {
	return &podNodeSelector{plugin{"PodNodeSelector", []admission.Operation{admission.Create}}, config.State, config.Configurations.PodNodeSelector}
}

// Admit implements admission.Mutator.
func (p *podNodeSelector) Admit(ctx context.Context, a *admission.Attributes) error {
	pod := podOf(a)
	if pod == nil {
		return nil
	}
	selector, err := p.ofNamespace(ctx, a.Namespace)
	if err != nil {
		return err
	}
	if labels.Conflicts(selector, pod.Spec.NodeSelector) {
		return errNodeSelector
	}
	if len(selector) > 0 {
		pod.Spec.NodeSelector = labels.Merge(selector, pod.Spec.NodeSelector)
	}
	return nil
}

var errNodeSelector = errors.New("pod node label selector conflicts with its namespace node label selector")

// Validate implements admission.Validator, for a later mutator may have changed
// the selector. What the configuration has for the namespace itself is all that its
// pods may select.
func (p *podNodeSelector) Validate(ctx context.Context, a *admission.Attributes) error {
	pod := podOf(a)
	if pod == nil {
		return nil
	}
	selector, err := p.ofNamespace(ctx, a.Namespace)
	if err != nil {
		return err
	}
	if labels.Conflicts(selector, pod.Spec.NodeSelector) {
		return errNodeSelector
	}
	allowed, err := labels.ConvertSelectorToLabelsMap(p.selectors[a.Namespace])
	if err != nil {
		return err
	}
	for key, value := range pod.Spec.NodeSelector {
		if have, ok := allowed[key]; len(allowed) > 0 && (!ok || have != value) {
			return errors.New("pod node label selector labels conflict with its namespace whitelist")
		}
	}
	return nil
}

func (p *podNodeSelector) ofNamespace(ctx context.Context, name string) (labels.Set, error) {
	obj, err := p.reader.Get(ctx, corev1.Resource("namespaces"), "", name)
	if err != nil {
		return nil, err
	}
	text := p.selectors[clusterDefault]
	if namespace, ok := obj.(*corev1.Namespace); ok {
		if own, has := namespace.Annotations[nodeSelectorAnnotation]; has {
			text = own
		}
	}
	return labels.ConvertSelectorToLabelsMap(text)
}

func readPodNodeSelector(c *Configurations, data []byte, _ string) error {
	var file struct {
		Selectors map[string]string `json:"podNodeSelectorPluginConfig"`
	}
	if err := decodeStrictly(data, &file); err != nil {
		return err
	}
	for name, text := range file.Selectors {
		if _, err := labels.ConvertSelectorToLabelsMap(text); err != nil {
			return fmt.Errorf("podNodeSelectorPluginConfig.%s: %w", name, err)
		}
	}
	c.PodNodeSelector = file.Selectors
	return nil
}
