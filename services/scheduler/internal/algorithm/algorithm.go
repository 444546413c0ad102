// Package algorithm decides where a pod runs, given the pod and a snapshot of the
// cluster. It does no I/O.
package algorithm

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/sampan-io/sampan/services/scheduler/internal/cluster"
	"github.com/sampan-io/sampan/services/scheduler/internal/framework"
)

// Up to minFeasible nodes are always looked for; above, a percentage of all that
// falls as the cluster grows, but not below minPercentage.
const (
	minFeasible   = 100
	minPercentage = 5
)

// Algorithm schedules one pod at a time. It is not safe for concurrent use.
type Algorithm struct {
	// Pick chooses one of n nodes of equal score: 0..n-1.
	Pick func(n int) int
	// Nominated is the pods that are to come to a node once room is made for them
	// there.
	Nominated func(node string) []*cluster.Pod

	start int // where among the nodes the next search begins
}

// Decision is the outcome of scheduling one pod.
type Decision struct {
	Node      string // empty when no node fits
	Evaluated int
	Feasible  int
	Diagnosis Diagnosis
}

// Schedule decides for pod. It returns a *FitError when no node fits, and another
// error when a plugin failed. State is filled for the extension points after.
func (a *Algorithm) Schedule(ctx context.Context, profile *framework.Profile, state *framework.CycleState, pod *cluster.Pod, snapshot *cluster.Snapshot) (Decision, error) {
	nodes := snapshot.Nodes()
	decision := Decision{Diagnosis: Diagnosis{Total: len(nodes)}}
	if len(nodes) == 0 {
		return decision, &FitError{Pod: pod.Object, Diagnosis: decision.Diagnosis, none: true}
	}
	feasible, err := a.filter(ctx, profile, state, pod, snapshot, &decision.Diagnosis)
	decision.Evaluated, decision.Feasible = len(feasible)+decision.Diagnosis.Verdicts.Len(), len(feasible)
	switch {
	case err != nil:
		return decision, err
	case len(feasible) == 0:
		return decision, &FitError{Pod: pod.Object, Diagnosis: decision.Diagnosis}
	case len(feasible) == 1:
		decision.Node = feasible[0].Name
		return decision, nil
	}
	scores, status := profile.RunScores(ctx, state, pod, snapshot, feasible)
	if !status.OK() {
		return decision, status.AsError()
	}
	decision.Node = a.best(scores)
	return decision, nil
}

// best is the name of a node with the highest score.
func (a *Algorithm) best(scores []framework.NodeScore) string {
	highest, ties := scores[0].Score, 0
	for _, s := range scores {
		if s.Score > highest {
			highest, ties = s.Score, 0
		}
		if s.Score == highest {
			ties++
		}
	}
	chosen := 0
	if ties > 1 && a.Pick != nil {
		chosen = a.Pick(ties)
	}
	for _, s := range scores {
		if s.Score != highest {
			continue
		}
		if chosen == 0 {
			return s.Node.Name
		}
		chosen--
	}
	return scores[0].Node.Name
}

// filter finds feasible nodes, at most as many as are worth scoring.
func (a *Algorithm) filter(ctx context.Context, profile *framework.Profile, state *framework.CycleState, pod *cluster.Pod, snapshot *cluster.Snapshot, diagnosis *Diagnosis) ([]*cluster.Node, error) {
	only, by, status := profile.RunPreFilters(ctx, state, pod, snapshot)
	if !status.OK() {
		if !status.Rejected() {
			return nil, status.AsError()
		}
		diagnosis.refuseAll(status)
		return nil, nil
	}
	// A pod for which room was made goes there if it can.
	if nominated := pod.Object.Status.NominatedNodeName; nominated != "" && (only == nil || only.Has(nominated)) {
		if node := snapshot.Node(nominated); node != nil {
			verdict, err := a.check(ctx, profile, state, pod, node, snapshot)
			if err != nil {
				return nil, err
			}
			if verdict.OK() {
				return []*cluster.Node{node}, nil
			}
		}
	}
	nodes := snapshot.Nodes()
	if only != nil {
		nodes = named(snapshot, only)
		diagnosis.Verdicts.Rest = &framework.Status{
			Code: framework.UnschedulableAndUnresolvable, Reasons: []string{restReason(by)}, Plugin: by[len(by)-1],
		}
	}
	return a.search(ctx, profile, state, pod, snapshot, nodes, diagnosis)
}

func named(snapshot *cluster.Snapshot, only sets.Set[string]) []*cluster.Node {
	var found []*cluster.Node
	for _, name := range sets.List(only) {
		if node := snapshot.Node(name); node != nil {
			found = append(found, node)
		}
	}
	return found
}

// search filters nodes one after the other from where the last search ended, so
// that all get their turn.
func (a *Algorithm) search(ctx context.Context, profile *framework.Profile, state *framework.CycleState, pod *cluster.Pod, snapshot *cluster.Snapshot, nodes []*cluster.Node, diagnosis *Diagnosis) ([]*cluster.Node, error) {
	if len(nodes) == 0 {
		return nil, nil
	}
	wanted := enough(profile, len(nodes))
	var feasible []*cluster.Node
	looked := 0
	for ; looked < len(nodes) && len(feasible) < wanted; looked++ {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		node := nodes[(a.start+looked)%len(nodes)]
		verdict, err := a.check(ctx, profile, state, pod, node, snapshot)
		switch {
		case err != nil:
			return nil, err
		case verdict.OK():
			feasible = append(feasible, node)
		default:
			diagnosis.refuse(node, verdict)
		}
	}
	a.start = (a.start + looked) % len(nodes)
	return feasible, nil
}

// enough is how many feasible nodes are looked for among total.
func enough(profile *framework.Profile, total int) int {
	if total < minFeasible {
		return total
	}
	percentage := int(profile.Percentage)
	if percentage == 0 {
		percentage = max(50-total/125, minPercentage)
	}
	return max(total*min(percentage, 100)/100, minFeasible)
}

// check runs the filters on node. When pods of at least the same priority are
// nominated to it, pod must fit both with and without them: they may or may not
// come.
func (a *Algorithm) check(ctx context.Context, profile *framework.Profile, state *framework.CycleState, pod *cluster.Pod, node *cluster.Node, snapshot *cluster.Snapshot) (*framework.Status, error) {
	var expected []*cluster.Pod
	if a.Nominated != nil {
		expected = a.Nominated(node.Name)
	}
	if with, withState, added := addNominated(profile, state, pod, node, snapshot, expected); added {
		if status := profile.RunFilters(ctx, withState, pod, with); !status.OK() {
			return verdict(status)
		}
	}
	return verdict(profile.RunFilters(ctx, state, pod, node))
}

func verdict(status *framework.Status) (*framework.Status, error) {
	if !status.OK() && !status.Rejected() {
		return nil, status.AsError()
	}
	return status, nil
}

func addNominated(profile *framework.Profile, state *framework.CycleState, pod *cluster.Pod, node *cluster.Node, snapshot *cluster.Snapshot, expected []*cluster.Pod) (*cluster.Node, *framework.CycleState, bool) {
	added := false
	for _, other := range expected {
		if other.Object.UID == pod.Object.UID || priority(other) < priority(pod) {
			continue
		}
		if !added {
			state, added = state.Clone(), true
		}
		node = node.With(other)
		if status := profile.RunAddPod(state, pod, other, node, snapshot); !status.OK() {
			return node, state, false
		}
	}
	return node, state, added
}

func priority(pod *cluster.Pod) int32 {
	if pod.Object.Spec.Priority == nil {
		return 0
	}
	return *pod.Object.Spec.Priority
}

// AsFitError is err as a *FitError, or nil.
func AsFitError(err error) *FitError {
	var fit *FitError
	if errors.As(err, &fit) {
		return fit
	}
	return nil
}
