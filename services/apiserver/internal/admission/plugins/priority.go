package plugins

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// priority writes the value and the preemption policy of a pod's PriorityClass
// into the pod, and keeps a single class the global default.
type priority struct {
	plugin
	reader registry.Reader
}

func newPriority(config Config) admission.Plugin {
	return &priority{plugin{"Priority", []admission.Operation{admission.Create, admission.Update}}, config.State}
}

// Admit implements admission.Mutator.
func (p *priority) Admit(ctx context.Context, a *admission.Attributes) error {
	pod := podOf(a)
	if pod == nil {
		return nil
	}
	if a.Operation == admission.Update {
		keepPriority(pod, a)
		return nil
	}
	class, err := p.classOf(ctx, pod.Spec.PriorityClassName)
	if err != nil {
		return err
	}
	pod.Spec.PriorityClassName = class.Name
	if have := pod.Spec.Priority; have != nil && *have != class.Value {
		return fmt.Errorf("the integer value of priority (%d) must not be provided in pod spec; priority admission controller computed %d from the given PriorityClass name", *have, class.Value)
	}
	pod.Spec.Priority = new(class.Value)
	policy := corev1.PreemptLowerPriority
	if class.PreemptionPolicy != nil {
		policy = *class.PreemptionPolicy
	}
	if have := pod.Spec.PreemptionPolicy; have != nil && *have != policy {
		return fmt.Errorf("the string value of PreemptionPolicy (%s) must not be provided in pod spec; priority admission controller computed %s from the given PriorityClass name", *have, policy)
	}
	pod.Spec.PreemptionPolicy = &policy
	return nil
}

// keepPriority lets a client update a pod without what was computed for it.
func keepPriority(pod *corev1.Pod, a *admission.Attributes) {
	old, ok := a.OldObject.(*corev1.Pod)
	if !ok {
		return
	}
	if pod.Spec.Priority == nil && old.Spec.Priority != nil {
		pod.Spec.Priority = new(*old.Spec.Priority)
	}
	if pod.Spec.PreemptionPolicy == nil && old.Spec.PreemptionPolicy != nil {
		pod.Spec.PreemptionPolicy = new(*old.Spec.PreemptionPolicy)
	}
}

// classOf is the class of that name, or for "" the default one, which is nameless
// when no class is the default.
func (p *priority) classOf(ctx context.Context, name string) (*schedulingv1.PriorityClass, error) {
	if name == "" {
		class, err := p.defaultClass(ctx)
		if err != nil || class != nil {
			return class, err
		}
		return &schedulingv1.PriorityClass{}, nil
	}
	obj, err := p.reader.Get(ctx, schedulingv1.Resource("priorityclasses"), "", name)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("no PriorityClass with name %v was found", name)
	}
	if err != nil {
		return nil, err
	}
	class, ok := obj.(*schedulingv1.PriorityClass)
	if !ok {
		return nil, fmt.Errorf("PriorityClass %s is a %T", name, obj)
	}
	return class, nil
}

// defaultClass is the global default; the lowest one if a race made several.
func (p *priority) defaultClass(ctx context.Context) (*schedulingv1.PriorityClass, error) {
	objects, err := p.reader.List(ctx, schedulingv1.Resource("priorityclasses"), "")
	if err != nil {
		return nil, err
	}
	var found *schedulingv1.PriorityClass
	for _, obj := range objects {
		if class, ok := obj.(*schedulingv1.PriorityClass); ok && class.GlobalDefault && (found == nil || class.Value < found.Value) {
			found = class
		}
	}
	return found, nil
}

// Validate implements admission.Validator.
func (p *priority) Validate(ctx context.Context, a *admission.Attributes) error {
	class, ok := a.Object.(*schedulingv1.PriorityClass)
	if !ok || !class.GlobalDefault {
		return nil
	}
	other, err := p.defaultClass(ctx)
	if err != nil || other == nil {
		return err
	}
	if a.Operation == admission.Create || other.Name != class.Name {
		return fmt.Errorf("PriorityClass %v is already marked as default. Only one default can exist", other.Name)
	}
	return nil
}
