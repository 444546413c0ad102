package plugins

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// runtimeClass writes the overhead and the placement of a pod's RuntimeClass into
// the pod.
type runtimeClass struct {
	plugin
	reader registry.Reader
}

func newRuntimeClass(config Config) admission.Plugin {
	return &runtimeClass{plugin{"RuntimeClass", []admission.Operation{admission.Create}}, config.State}
}

// Admit implements admission.Mutator.
func (p *runtimeClass) Admit(ctx context.Context, a *admission.Attributes) error {
	pod := podOf(a)
	if pod == nil {
		return nil
	}
	class, err := p.classOf(ctx, pod)
	if err != nil || class == nil {
		return err
	}
	if class.Overhead != nil {
		if pod.Spec.Overhead != nil && !equality.Semantic.DeepEqual(pod.Spec.Overhead, class.Overhead.PodFixed) {
			return errOverhead()
		}
		pod.Spec.Overhead = class.Overhead.PodFixed.DeepCopy()
	}
	if class.Scheduling != nil {
		return place(pod, class.Scheduling)
	}
	return nil
}

// Validate implements admission.Validator.
func (p *runtimeClass) Validate(ctx context.Context, a *admission.Attributes) error {
	pod := podOf(a)
	if pod == nil {
		return nil
	}
	class, err := p.classOf(ctx, pod)
	if err != nil {
		return err
	}
	if class != nil && class.Overhead != nil {
		if !equality.Semantic.DeepEqual(pod.Spec.Overhead, class.Overhead.PodFixed) {
			return errOverhead()
		}
	} else if pod.Spec.Overhead != nil {
		return errors.New("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead")
	}
	return nil
}

func errOverhead() error {
	return errors.New("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")
}

// classOf is the pod's class, nil for a pod without one.
func (p *runtimeClass) classOf(ctx context.Context, pod *corev1.Pod) (*nodev1.RuntimeClass, error) {
	if pod.Spec.RuntimeClassName == nil {
		return nil, nil
	}
	obj, err := p.reader.Get(ctx, nodev1.Resource("runtimeclasses"), "", *pod.Spec.RuntimeClassName)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("pod rejected: RuntimeClass %q not found", *pod.Spec.RuntimeClassName)
	}
	if err != nil {
		return nil, err
	}
	class, ok := obj.(*nodev1.RuntimeClass)
	if !ok {
		return nil, unexpected(obj)
	}
	return class, nil
}

// place merges where a class's pods can run into the pod.
func place(pod *corev1.Pod, scheduling *nodev1.Scheduling) error {
	for key, value := range scheduling.NodeSelector {
		if have, ok := pod.Spec.NodeSelector[key]; ok && have != value {
			return fmt.Errorf("conflict: runtimeClass.scheduling.nodeSelector[%s] = %s; pod.spec.nodeSelector[%s] = %s", key, value, key, have)
		}
		if pod.Spec.NodeSelector == nil {
			pod.Spec.NodeSelector = map[string]string{}
		}
		pod.Spec.NodeSelector[key] = value
	}
	for _, toleration := range scheduling.Tolerations {
		if !slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool { return equality.Semantic.DeepEqual(t, toleration) }) {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, toleration)
		}
	}
	return nil
}
