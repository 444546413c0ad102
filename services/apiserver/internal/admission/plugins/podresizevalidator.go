package plugins

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	resourcehelpers "k8s.io/component-helpers/resource"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// podResize refuses to resize a pod beyond what its node has, and on nodes that
// cannot.
type podResize struct {
	plugin
	reader registry.Reader
}

func newPodResizeValidator(config Config) admission.Plugin {
	return &podResize{plugin{"PodResizeValidator", []admission.Operation{admission.Update}}, config.State}
}

// Validate implements admission.Validator.
func (p *podResize) Validate(ctx context.Context, a *admission.Attributes) error {
	if a.Subresource != "resize" {
		return nil
	}
	pod, node, err := changedOnNode(ctx, p.reader, a)
	if err != nil || node == nil {
		return err
	}
	requests := resourcehelpers.PodRequests(pod, resourcehelpers.PodResourcesOptions{})
	var over []string
	if want, have := requests.Cpu().MilliValue(), node.Status.Allocatable.Cpu().MilliValue(); want > have {
		over = append(over, fmt.Sprintf("cpu, requested: %d, allocatable: %d", want, have))
	}
	if want, have := requests.Memory().Value(), node.Status.Allocatable.Memory().Value(); want > have {
		over = append(over, fmt.Sprintf("memory, requested: %d, allocatable: %d", want, have))
	}
	if len(over) > 0 {
		return errors.New("Node didn't have enough allocatable resources: " + strings.Join(over, "; "))
	}
	if system := node.Labels[corev1.LabelOSStable]; system != "linux" {
		return fmt.Errorf("pod resize is only supported on linux nodes, node %q is %q", node.Name, system)
	}
	return nil
}

// changedOnNode is a pod whose update changes what it wants, and the node that it
// is on; the node is nil where there is nothing to check.
func changedOnNode(ctx context.Context, reader registry.Reader, a *admission.Attributes) (*corev1.Pod, *corev1.Node, error) {
	if a.Resource.GroupResource() != corev1.Resource("pods") {
		return nil, nil, nil
	}
	pod, ok := a.Object.(*corev1.Pod)
	old, had := a.OldObject.(*corev1.Pod)
	if !ok || !had || pod.Spec.NodeName == "" || apiequality.Semantic.DeepEqual(pod.Spec, old.Spec) {
		return nil, nil, nil
	}
	obj, err := reader.Get(ctx, corev1.Resource("nodes"), "", pod.Spec.NodeName)
	if apierrors.IsNotFound(err) {
		return nil, nil, fmt.Errorf("node %q not found", pod.Spec.NodeName)
	}
	if err != nil {
		return nil, nil, err
	}
	node, ok := obj.(*corev1.Node)
	if !ok {
		return nil, nil, fmt.Errorf("a Node is a %T", obj)
	}
	return pod, node, nil
}
