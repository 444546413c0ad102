package plugins

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/sampan-io/sampan/services/scheduler/internal/cluster"
	"github.com/sampan-io/sampan/services/scheduler/internal/framework"
)

const preemptionName = "DefaultPreemption"

// defaultPreemption makes room for a pod by evicting pods of lower priority from
// one node, as few and as unimportant ones as will do, and within disruption
// budgets where that is possible.
type defaultPreemption struct {
	evictor    framework.Evictor
	filterer   framework.Filterer
	percentage int // of nodes to look at
	absolute   int // nodes to look at, at least
}

func newDefaultPreemption(args []byte, handle framework.Handle) (framework.Plugin, error) {
	var parsed struct {
		MinCandidateNodesPercentage *int32 `json:"minCandidateNodesPercentage,omitempty"`
		MinCandidateNodesAbsolute   *int32 `json:"minCandidateNodesAbsolute,omitempty"`
	}
	if err := decode(preemptionName, args, &parsed); err != nil {
		return nil, err
	}
	plugin := &defaultPreemption{evictor: handle.Evictor, filterer: handle.Filterer, percentage: 10, absolute: 100}
	if p := parsed.MinCandidateNodesPercentage; p != nil {
		if *p < 0 || *p > 100 {
			return nil, fmt.Errorf("arguments of DefaultPreemption: minCandidateNodesPercentage: %d is not within 0 and 100", *p)
		}
		plugin.percentage = int(*p)
	}
	if a := parsed.MinCandidateNodesAbsolute; a != nil {
		if *a < 0 {
			return nil, fmt.Errorf("arguments of DefaultPreemption: minCandidateNodesAbsolute: %d is negative", *a)
		}
		plugin.absolute = int(*a)
	}
	return plugin, nil
}

func (*defaultPreemption) Name() string { return preemptionName }

// candidate is a node with the pods to evict from it, the most important first.
type candidate struct {
	node       *cluster.Node
	victims    []*cluster.Pod
	violations int // of disruption budgets
}

func (p *defaultPreemption) PostFilter(ctx context.Context, state *framework.CycleState, pod *cluster.Pod, snapshot *cluster.Snapshot, verdicts *framework.Verdicts) (string, *framework.Status) {
	if reason := p.ineligible(pod, snapshot, verdicts); reason != "" {
		return "", framework.NewStatus(framework.Unschedulable, "preemption: "+reason)
	}
	found, refused := p.candidates(ctx, state, pod, snapshot, verdicts)
	if len(found) == 0 {
		return "", framework.NewStatus(framework.Unschedulable, "preemption: "+summary(snapshot, refused))
	}
	chosen := slices.MinFunc(found, better)
	if p.evictor != nil {
		for _, victim := range chosen.victims {
			p.evictor.Evict(victim.Object, pod.Object, chosen.node.Name)
		}
	}
	return chosen.node.Name, nil
}

// ineligible is why pod may not evict others now; empty when it may.
func (p *defaultPreemption) ineligible(pod *cluster.Pod, snapshot *cluster.Snapshot, verdicts *framework.Verdicts) string {
	if policy := pod.Object.Spec.PreemptionPolicy; policy != nil && *policy == corev1.PreemptNever {
		return "not eligible due to preemptionPolicy=Never."
	}
	nominated := pod.Object.Status.NominatedNodeName
	node := snapshot.Node(nominated)
	if node == nil || verdicts.Of(node).CodeOf() == framework.UnschedulableAndUnresolvable {
		return ""
	}
	for _, other := range node.Pods {
		if other.Object.DeletionTimestamp != nil && priority(other) < priority(pod) {
			return "not eligible due to a terminating pod on the nominated node." // room is being made
		}
	}
	return ""
}

func priority(pod *cluster.Pod) int32 { return corev1helpers.PodPriority(pod.Object) }

// candidates tries nodes where evicting may help, until enough have been found.
// Refused is why the others do not do.
func (p *defaultPreemption) candidates(ctx context.Context, state *framework.CycleState, pod *cluster.Pod, snapshot *cluster.Snapshot, verdicts *framework.Verdicts) ([]candidate, map[string]int) {
	refused := map[string]int{}
	var hopeful []*cluster.Node
	for _, node := range snapshot.Nodes() {
		if verdicts.Of(node).CodeOf() == framework.Unschedulable {
			hopeful = append(hopeful, node)
			continue
		}
		refused["Preemption is not helpful for scheduling"]++
	}
	enough := min(max(len(hopeful)*p.percentage/100, p.absolute), len(hopeful))
	var found []candidate
	clean := false
	for _, node := range hopeful {
		c, reasons := p.victims(ctx, state, pod, node, snapshot)
		if reasons != nil {
			for _, reason := range reasons {
				refused[reason]++
			}
			continue
		}
		found = append(found, c)
		clean = clean || c.violations == 0
		if clean && len(found) >= enough {
			break
		}
	}
	return found, refused
}

// summary is the text of a failed attempt, as that of a pod that fits nowhere.
func summary(snapshot *cluster.Snapshot, refused map[string]int) string {
	lines := make([]string, 0, len(refused))
	for reason, number := range refused {
		lines = append(lines, fmt.Sprintf("%d %s", number, reason))
	}
	slices.Sort(lines)
	text := fmt.Sprintf("0/%d nodes are available: ", len(snapshot.Nodes()))
	for i, line := range lines {
		if i > 0 {
			text += ", "
		}
		text += line
	}
	return text + "."
}

// victims chooses whom to evict from node: it takes all pods of lower priority off,
// then puts back as many as fit with pod there, the most important first and those
// before others whose budget would be violated.
func (p *defaultPreemption) victims(ctx context.Context, state *framework.CycleState, pod *cluster.Pod, node *cluster.Node, snapshot *cluster.Snapshot) (candidate, []string) {
	trial := state.Clone()
	bare := node
	var lower []*cluster.Pod
	for _, other := range node.Pods {
		if priority(other) >= priority(pod) {
			continue
		}
		lower = append(lower, other)
		bare = bare.Without(other.Object.UID)
		if status := p.filterer.RunRemovePod(trial, pod, other, node, snapshot); !status.OK() {
			return candidate{}, status.Reasons
		}
	}
	if len(lower) == 0 {
		return candidate{}, []string{"No preemption victims found for incoming pod"}
	}
	if status := p.filterer.RunFilters(ctx, trial, pod, bare); !status.OK() {
		return candidate{}, status.Reasons
	}
	slices.SortStableFunc(lower, moreImportant)
	violating, rest := p.byBudget(lower)
	c := candidate{node: node}
	reprieve := func(other *cluster.Pod) bool {
		with := bare.With(other)
		if p.filterer.RunAddPod(trial, pod, other, node, snapshot).OK() && p.filterer.RunFilters(ctx, trial, pod, with).OK() {
			bare = with
			return true
		}
		p.filterer.RunRemovePod(trial, pod, other, node, snapshot)
		c.victims = append(c.victims, other)
		return false
	}
	for _, other := range violating {
		if !reprieve(other) {
			c.violations++
		}
	}
	for _, other := range rest {
		reprieve(other)
	}
	slices.SortStableFunc(c.victims, moreImportant)
	return c, nil
}

// moreImportant orders by priority, then by which has run for longer.
func moreImportant(a, b *cluster.Pod) int {
	if c := cmp.Compare(priority(b), priority(a)); c != 0 {
		return c
	}
	return started(a).Compare(started(b))
}

// started is when a pod began; one that has not counts as just now.
func started(pod *cluster.Pod) time.Time {
	if pod.Object.Status.StartTime == nil {
		return time.Unix(math.MaxInt32, 0)
	}
	return pod.Object.Status.StartTime.Time
}

// byBudget splits pods into those whose eviction would violate a budget, counting
// those before them, and the others.
func (p *defaultPreemption) byBudget(pods []*cluster.Pod) (violating, rest []*cluster.Pod) {
	left := map[string]int32{}
	for _, pod := range pods {
		violates := false
		if p.evictor != nil {
			for _, budget := range p.evictor.Budgets(pod.Object) {
				if _, seen := left[budget.Key]; !seen {
					left[budget.Key] = budget.Allowed
				}
				left[budget.Key]--
				violates = violates || left[budget.Key] < 0
			}
		}
		if violates {
			violating = append(violating, pod)
		} else {
			rest = append(rest, pod)
		}
	}
	return violating, rest
}

// better is negative when evicting on a costs less than on b: fewer violated
// budgets, a lower highest priority, a lower sum of priorities, fewer pods, and
// those that have run for a shorter time.
func better(a, b candidate) int {
	return cmp.Or(
		cmp.Compare(a.violations, b.violations),
		cmp.Compare(highest(a), highest(b)),
		cmp.Compare(sum(a), sum(b)),
		cmp.Compare(len(a.victims), len(b.victims)),
		earliest(b).Compare(earliest(a)),
	)
}

func highest(c candidate) int32 {
	if len(c.victims) == 0 {
		return math.MinInt32
	}
	return priority(c.victims[0])
}

// sum shifts priorities to be positive, so that more pods are never less.
func sum(c candidate) (total int64) {
	for _, victim := range c.victims {
		total += int64(priority(victim)) + math.MaxInt32 + 1
	}
	return total
}

// earliest is when the first of the victims of the highest priority began.
func earliest(c candidate) time.Time {
	first := time.Unix(math.MaxInt32, 0)
	for _, victim := range c.victims {
		if priority(victim) == highest(c) && started(victim).Before(first) {
			first = started(victim)
		}
	}
	return first
}

// Interests has nothing: what makes a pod fit is for the filters to say.
func (*defaultPreemption) Interests() []framework.Interest { return nil }
