package core

import (
	"context"
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
)

var podResource = schema.GroupResource{Resource: "pods"}

// podBinding assigns a pod to a node, once.
func podBinding(state func() registry.State) registry.Subresource {
	bind := registry.Behaviour[*corev1.Pod]{Default: podspec.DefaultPod}
	return registry.Subresource{
		Name: "binding", Kind: v1.WithKind("Binding"), Verbs: []string{"create"},
		Create: &registry.Create{
			New: func() runtime.Object { return &corev1.Binding{} },
			Validate: func(_ context.Context, obj runtime.Object) field.ErrorList {
				return validateBinding(obj.(*corev1.Binding))
			},
			Handle: func(ctx context.Context, namespace, name string, obj runtime.Object, dryRun bool) (runtime.Object, error) {
				binding := obj.(*corev1.Binding)
				if binding.Name != "" && binding.Name != name {
					return nil, apierrors.NewBadRequest("name in URL does not match name in Binding object")
				}
				return bindPod(ctx, state(), namespace, name, binding, dryRun)
			},
		},
		Update: registry.Erase(bind),
	}
}

// Bindings serve the older path of the same: a POST to the collection names the
// pod in its body.
func Bindings(state func() registry.State) *registry.Resource {
	return &registry.Resource{
		GroupVersionResource: v1.WithResource("bindings"), Kind: "Binding", Singular: "binding", Namespaced: true,
		Verbs: []string{"create"},
		New:   func() runtime.Object { return &corev1.Binding{} },
		Strategy: &registry.Strategy{
			Validate: func(_ context.Context, obj runtime.Object) field.ErrorList {
				return validateBinding(obj.(*corev1.Binding))
			},
		},
		CreateOnly: func(ctx context.Context, obj runtime.Object, dryRun bool) (runtime.Object, error) {
			binding := obj.(*corev1.Binding)
			return bindPod(ctx, state(), binding.Namespace, binding.Name, binding, dryRun)
		},
	}
}

func validateBinding(binding *corev1.Binding) field.ErrorList {
	var errs field.ErrorList
	if kind := binding.Target.Kind; kind != "" && kind != "Node" {
		errs = append(errs, field.NotSupported(field.NewPath("target", "kind"), kind, []string{"Node", "<empty>"}))
	}
	if binding.Target.Name == "" {
		errs = append(errs, field.Required(field.NewPath("target", "name"), ""))
	}
	return errs
}

// bindPod answers 409 for a pod that has a node already, is going away, or is
// not the one that the binding's UID names.
func bindPod(ctx context.Context, state registry.State, namespace, name string, binding *corev1.Binding, dryRun bool) (runtime.Object, error) {
	_, err := state.Update(ctx, podResource, "binding", namespace, name, dryRun, func(obj runtime.Object) error {
		pod := obj.(*corev1.Pod)
		if err := mayBind(pod, binding); err != nil {
			return apierrors.NewConflict(schema.GroupResource{Resource: "pods/binding"}, name, err)
		}
		pod.Spec.NodeName = binding.Target.Name
		pod.Annotations = merged(pod.Annotations, binding.Annotations)
		pod.Labels = merged(maps.Clone(binding.Labels), pod.Labels) // a pod's own labels win
		setPodCondition(pod, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue})
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

func mayBind(pod *corev1.Pod, binding *corev1.Binding) error {
	switch {
	case binding.UID != "" && binding.UID != pod.UID:
		return fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", binding.UID, pod.UID)
	case binding.ResourceVersion != "" && binding.ResourceVersion != pod.ResourceVersion:
		return fmt.Errorf("Precondition failed: ResourceVersion in precondition: %v, ResourceVersion in object meta: %v", binding.ResourceVersion, pod.ResourceVersion)
	case pod.DeletionTimestamp != nil:
		return fmt.Errorf("pod %s is being deleted, cannot be assigned to a host", pod.Name)
	case pod.Spec.NodeName != "":
		return fmt.Errorf("pod %v is already assigned to node %q", pod.Name, pod.Spec.NodeName)
	case len(pod.Spec.SchedulingGates) > 0:
		return errors.New("pod " + pod.Name + " has non-empty .spec.schedulingGates")
	}
	return nil
}

func merged(into, from map[string]string) map[string]string {
	if into == nil && len(from) > 0 {
		into = map[string]string{}
	}
	for key, value := range from {
		into[key] = value
	}
	return into
}

// setPodCondition sets a condition and its transition time.
func setPodCondition(pod *corev1.Pod, condition corev1.PodCondition) {
	condition.LastTransitionTime = metav1.Now()
	for i := range pod.Status.Conditions {
		if have := &pod.Status.Conditions[i]; have.Type == condition.Type {
			if have.Status == condition.Status {
				condition.LastTransitionTime = have.LastTransitionTime
			}
			*have = condition
			return
		}
	}
	pod.Status.Conditions = append(pod.Status.Conditions, condition)
}
