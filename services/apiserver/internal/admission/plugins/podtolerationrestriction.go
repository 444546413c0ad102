package plugins

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

const (
	defaultTolerations = "scheduler.alpha.kubernetes.io/defaultTolerations"
	allowedTolerations = "scheduler.alpha.kubernetes.io/tolerationsWhitelist"
)

// TolerationLists are what pods tolerate in namespaces that say nothing of it.
type TolerationLists struct {
	Default   []corev1.Toleration `json:"default"`
	Whitelist []corev1.Toleration `json:"whitelist"`
}

// tolerationRestriction gives pods the tolerations of their namespace, and refuses
// those that the namespace does not allow.
type tolerationRestriction struct {
	plugin
	reader registry.Reader
	lists  TolerationLists
}

func newPodTolerationRestriction(config Config) admission.Plugin {
	return &tolerationRestriction{
		plugin{"PodTolerationRestriction", []admission.Operation{admission.Create, admission.Update}},
		config.State, config.Configurations.PodTolerationRestriction,
	}
}

// Admit implements admission.Mutator.
func (p *tolerationRestriction) Admit(ctx context.Context, a *admission.Attributes) error {
	pod := podOf(a)
	if pod == nil {
		return nil
	}
	var more []corev1.Toleration
	if a.Operation == admission.Create {
		own, err := p.annotated(ctx, a.Namespace, defaultTolerations)
		if err != nil {
			return err
		}
		if more = own; more == nil {
			more = p.lists.Default
		}
	}
	if !bestEffort(pod) {
		more = append(slices.Clone(more), corev1.Toleration{
			Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule,
		})
	}
	pod.Spec.Tolerations = mergeTolerations(pod.Spec.Tolerations, more)
	return nil
}

// Validate implements admission.Validator.
func (p *tolerationRestriction) Validate(ctx context.Context, a *admission.Attributes) error {
	pod := podOf(a)
	if pod == nil || len(pod.Spec.Tolerations) == 0 {
		return nil
	}
	allowed, err := p.annotated(ctx, a.Namespace, allowedTolerations)
	if err != nil {
		return err
	}
	if allowed == nil {
		allowed = p.lists.Whitelist
	}
	for _, toleration := range pod.Spec.Tolerations {
		if len(allowed) > 0 && !slices.ContainsFunc(allowed, func(other corev1.Toleration) bool { return includes(other, toleration) }) {
			return errors.New("pod tolerations (possibly merged with namespace default tolerations) conflict with its namespace whitelist")
		}
	}
	return nil
}

// annotated is the list in a namespace's annotation; nil without one.
func (p *tolerationRestriction) annotated(ctx context.Context, name, annotation string) ([]corev1.Toleration, error) {
	obj, err := p.reader.Get(ctx, corev1.Resource("namespaces"), "", name)
	if err != nil {
		return nil, err
	}
	namespace, ok := obj.(*corev1.Namespace)
	if !ok || namespace.Annotations[annotation] == "" {
		return nil, nil
	}
	list := []corev1.Toleration{}
	if err := json.Unmarshal([]byte(namespace.Annotations[annotation]), &list); err != nil {
		return nil, fmt.Errorf("annotation %s of namespace %s: %w", annotation, name, err)
	}
	return list, nil
}

// mergeTolerations is both lists without what another of them includes.
func mergeTolerations(first, second []corev1.Toleration) []corev1.Toleration {
	all := slices.Concat(first, second)
	var merged []corev1.Toleration
	for i, toleration := range all {
		redundant := slices.ContainsFunc(merged, func(other corev1.Toleration) bool { return includes(other, toleration) }) ||
			slices.ContainsFunc(all[i+1:], func(other corev1.Toleration) bool {
				return includes(other, toleration) && !apiequality.Semantic.DeepEqual(other, toleration)
			})
		if !redundant {
			merged = append(merged, toleration)
		}
	}
	return merged
}

// includes says whether all that narrow tolerates is tolerated by wide.
func includes(wide, narrow corev1.Toleration) bool {
	if apiequality.Semantic.DeepEqual(wide, narrow) {
		return true
	}
	everyKey := wide.Key == "" && wide.Operator == corev1.TolerationOpExists
	if narrow.Key != wide.Key && !everyKey || narrow.Effect != wide.Effect && wide.Effect != "" {
		return false
	}
	if wide.Effect == corev1.TaintEffectNoExecute && wide.TolerationSeconds != nil {
		if narrow.TolerationSeconds == nil || *narrow.TolerationSeconds > *wide.TolerationSeconds {
			return false
		}
	}
	return sameValues(wide, narrow)
}

// sameValues says whether wide tolerates the values that narrow does.
func sameValues(wide, narrow corev1.Toleration) bool {
	operator := func(t corev1.Toleration) corev1.TolerationOperator {
		if t.Operator == "" {
			return corev1.TolerationOpEqual
		}
		return t.Operator
	}
	if wide.Operator == corev1.TolerationOpExists {
		return true
	}
	return operator(wide) == operator(narrow) && wide.Value == narrow.Value
}

// bestEffort says whether a pod asks for neither processor time nor memory.
func bestEffort(pod *corev1.Pod) bool {
	asks := func(r *corev1.ResourceRequirements) bool {
		for _, list := range []corev1.ResourceList{r.Requests, r.Limits} {
			if !list.Cpu().IsZero() || !list.Memory().IsZero() {
				return true
			}
		}
		return false
	}
	if pod.Spec.Resources != nil && asks(pod.Spec.Resources) {
		return false
	}
	return !slices.ContainsFunc(containersOf(pod), func(c corev1.Container) bool { return asks(&c.Resources) })
}

func readTolerationLists(c *Configurations, data []byte, _ string) error {
	var file struct {
		header
		TolerationLists
	}
	if err := decodeStrictly(data, &file); err != nil {
		return err
	}
	if err := file.check("Configuration", "podtolerationrestriction.admission.k8s.io/v1alpha1"); err != nil {
		return err
	}
	c.PodTolerationRestriction = file.TolerationLists
	return nil
}
