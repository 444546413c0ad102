package cluster

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Pod is a pod with what scheduling asks of it worked out once. It never changes.
type Pod struct {
	Object   *corev1.Pod
	Requests Resource // what a node must have free
	Scored   Resource // the same with defaults, for scoring
	Ports    []HostPort

	RequiredAffinity      []Term
	RequiredAntiAffinity  []Term
	PreferredAffinity     []Term
	PreferredAntiAffinity []Term

	class string // namespace, labels and whether it is terminating, as one key
}

// HostPort is a port of the node that a container takes.
type HostPort struct {
	IP       string // 0.0.0.0 is every address
	Protocol corev1.Protocol
	Port     int32
}

// Term is a pod affinity or anti-affinity term.
type Term struct {
	Namespaces        sets.Set[string]
	NamespaceSelector labels.Selector // matches by the labels of a namespace
	Selector          labels.Selector
	TopologyKey       string
	Weight            int32 // of a preferred term

	key string // equal for terms that match alike
}

// Matches says whether term selects a pod with podLabels in namespace, whose own
// labels are nsLabels.
func (t *Term) Matches(namespace string, nsLabels, podLabels labels.Set) bool {
	if !t.Namespaces.Has(namespace) && !t.NamespaceSelector.Matches(nsLabels) {
		return false
	}
	return t.Selector.Matches(podLabels)
}

// NewPod works pod out. It fails when an affinity term does not parse, which the
// API does not let through.
func NewPod(pod *corev1.Pod) (*Pod, error) {
	p := &Pod{Object: pod, Requests: requests(pod), Scored: scoredRequests(pod), Ports: hostPorts(pod)}
	p.class = fmt.Sprintf("%s\x00%s\x00%t", pod.Namespace, labels.Set(pod.Labels).String(), pod.DeletionTimestamp != nil)
	affinity := pod.Spec.Affinity
	if affinity == nil {
		return p, nil
	}
	var err error
	if a := affinity.PodAffinity; a != nil {
		if p.RequiredAffinity, err = requiredTerms(pod, a.RequiredDuringSchedulingIgnoredDuringExecution); err != nil {
			return nil, err
		}
		if p.PreferredAffinity, err = preferredTerms(pod, a.PreferredDuringSchedulingIgnoredDuringExecution); err != nil {
			return nil, err
		}
	}
	if a := affinity.PodAntiAffinity; a != nil {
		if p.RequiredAntiAffinity, err = requiredTerms(pod, a.RequiredDuringSchedulingIgnoredDuringExecution); err != nil {
			return nil, err
		}
		if p.PreferredAntiAffinity, err = preferredTerms(pod, a.PreferredDuringSchedulingIgnoredDuringExecution); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func requiredTerms(pod *corev1.Pod, terms []corev1.PodAffinityTerm) ([]Term, error) {
	var made []Term
	for i := range terms {
		term, err := newTerm(pod, &terms[i], 0)
		if err != nil {
			return nil, err
		}
		made = append(made, term)
	}
	return made, nil
}

func preferredTerms(pod *corev1.Pod, terms []corev1.WeightedPodAffinityTerm) ([]Term, error) {
	var made []Term
	for i := range terms {
		term, err := newTerm(pod, &terms[i].PodAffinityTerm, terms[i].Weight)
		if err != nil {
			return nil, err
		}
		made = append(made, term)
	}
	return made, nil
}

// newTerm resolves the defaults of a term: the namespace of its pod when it names
// none. The API has merged matchLabelKeys into the selector already.
func newTerm(pod *corev1.Pod, term *corev1.PodAffinityTerm, weight int32) (Term, error) {
	selector, err := metav1.LabelSelectorAsSelector(term.LabelSelector)
	if err != nil {
		return Term{}, fmt.Errorf("affinity term of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	namespaceSelector, err := metav1.LabelSelectorAsSelector(term.NamespaceSelector)
	if err != nil {
		return Term{}, fmt.Errorf("namespace selector of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	namespaces := sets.New(term.Namespaces...)
	if len(term.Namespaces) == 0 && term.NamespaceSelector == nil {
		namespaces = sets.New(pod.Namespace)
	}
	made := Term{Namespaces: namespaces, NamespaceSelector: namespaceSelector, Selector: selector, TopologyKey: term.TopologyKey, Weight: weight}
	// A nil selector matches nothing, an empty one everything: both print as "".
	made.key = fmt.Sprintf("%v\x00%t%s\x00%t%s\x00%s", sets.List(namespaces), term.NamespaceSelector == nil, namespaceSelector,
		term.LabelSelector == nil, selector, term.TopologyKey)
	return made, nil
}

func hostPorts(pod *corev1.Pod) []HostPort {
	var found []HostPort
	add := func(containers []corev1.Container, only func(*corev1.Container) bool) {
		for i := range containers {
			if !only(&containers[i]) {
				continue
			}
			for _, port := range containers[i].Ports {
				if port.HostPort <= 0 {
					continue
				}
				taken := HostPort{IP: port.HostIP, Protocol: port.Protocol, Port: port.HostPort}
				if taken.IP == "" {
					taken.IP = anyIP
				}
				if taken.Protocol == "" {
					taken.Protocol = corev1.ProtocolTCP
				}
				found = append(found, taken)
			}
		}
	}
	add(pod.Spec.Containers, func(*corev1.Container) bool { return true })
	add(pod.Spec.InitContainers, func(c *corev1.Container) bool {
		return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
	})
	return found
}
