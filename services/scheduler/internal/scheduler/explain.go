package scheduler

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/sampan-io/sampan/services/scheduler/internal/cluster"
	"github.com/sampan-io/sampan/services/scheduler/internal/framework"
)

// Explanation is why a pod is where it is, or nowhere: the verdict of each filter
// on each node, as of now.
type Explanation struct {
	Namespace     string `json:"namespace"`
	Name          string `json:"name"`
	UID           string `json:"uid"`
	SchedulerName string `json:"schedulerName"`
	// State is scheduled, scheduling, active, backoff, unschedulable, gated, or
	// unknown for a pod that is not this scheduler's.
	State         string `json:"state"`
	Node          string `json:"node,omitempty"`          // of a pod that is scheduled
	NominatedNode string `json:"nominatedNode,omitempty"` // where room is being made
	Attempts      int    `json:"attempts"`
	// Message is what its PodScheduled condition says.
	Message string `json:"message,omitempty"`
	// Refusal is a plugin's verdict on the pod whatever the node.
	Refusal *FilterVerdict `json:"refusal,omitempty"`
	Nodes   []NodeVerdict  `json:"nodes,omitempty"`
}

// NodeVerdict is what the filters say of one node.
type NodeVerdict struct {
	Node     string          `json:"node"`
	Feasible bool            `json:"feasible"`
	Filters  []FilterVerdict `json:"filters"`
}

// FilterVerdict is what one plugin says.
type FilterVerdict struct {
	Plugin  string   `json:"plugin"`
	Verdict string   `json:"verdict"` // Success, Unschedulable, …
	Reasons []string `json:"reasons,omitempty"`
}

func newVerdict(plugin string, status *framework.Status) FilterVerdict {
	v := FilterVerdict{Plugin: plugin, Verdict: status.CodeOf().String()}
	if status != nil {
		v.Reasons = status.Reasons
	}
	return v
}

// Explain answers for a pod; nil when there is none of that name.
func (s *Scheduler) Explain(ctx context.Context, namespace, podName string) (*Explanation, error) {
	object := s.Pods.Get(namespace, podName)
	if object == nil {
		return nil, nil
	}
	e := &Explanation{
		Namespace: namespace, Name: podName, UID: string(object.UID), SchedulerName: object.Spec.SchedulerName,
		Node: object.Spec.NodeName, NominatedNode: object.Status.NominatedNodeName,
	}
	for _, c := range object.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status != corev1.ConditionTrue {
			e.Message = c.Message
		}
	}
	e.State, e.Attempts = s.Queue.Where(object.UID)
	profile := s.Profiles[object.Spec.SchedulerName]
	switch {
	case object.Spec.NodeName != "":
		e.State = "scheduled"
		return e, nil
	case profile == nil:
		e.State, e.Message = "unknown", fmt.Sprintf("no profile of this scheduler is named %q", object.Spec.SchedulerName)
		return e, nil
	case e.State == "":
		e.State = "unknown"
	}
	pod, err := cluster.NewPod(object)
	if err != nil {
		return nil, err
	}
	if status := profile.RunPreEnqueue(ctx, pod); !status.OK() {
		verdict := newVerdict(status.Plugin, status)
		e.Refusal = &verdict
		return e, nil
	}
	return e, s.explainNodes(ctx, profile, pod, e)
}

func (s *Scheduler) explainNodes(ctx context.Context, profile *framework.Profile, pod *cluster.Pod, e *Explanation) error {
	s.cycle.Lock()
	defer s.cycle.Unlock()
	s.Cache.Update(s.snapshot)
	state := framework.NewCycleState()
	only, by, status := profile.RunPreFilters(ctx, state, pod, s.snapshot)
	if !status.OK() {
		if !status.Rejected() {
			return status.AsError()
		}
		verdict := newVerdict(status.Plugin, status)
		e.Refusal = &verdict
		return nil
	}
	for _, node := range s.snapshot.Nodes() {
		v := NodeVerdict{Node: node.Name, Feasible: true}
		if only != nil && !only.Has(node.Name) {
			v.Feasible = false
			v.Filters = append(v.Filters, FilterVerdict{
				Plugin: by[len(by)-1], Verdict: framework.UnschedulableAndUnresolvable.String(), Reasons: []string{fmt.Sprintf("node(s) didn't satisfy plugin(s) %v", by)},
			})
		}
		profile.EachFilter(ctx, state, pod, node, func(plugin string, status *framework.Status) {
			v.Feasible = v.Feasible && status.OK()
			v.Filters = append(v.Filters, newVerdict(plugin, status))
		})
		e.Nodes = append(e.Nodes, v)
	}
	return nil
}
