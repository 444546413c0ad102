package framework

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/sampan-io/sampan/services/scheduler/internal/cluster"
)

// Weighted is a Score plugin and how much it counts.
type Weighted struct {
	Score
	Weight int64
}

// Profile is the plugins of one scheduler name, in order, by extension point.
type Profile struct {
	SchedulerName string
	// Percentage of nodes to look for feasible ones among; 0 adapts to their number.
	Percentage int32

	QueueSort  QueueSort
	PreEnqueue []PreEnqueue
	PreFilter  []PreFilter
	Filter     []Filter
	PostFilter []PostFilter
	PreScore   []PreScore
	Score      []Weighted
	Reserve    []Reserve
	Permit     []Permit
	PreBind    []PreBind
	Bind       []Bind
	PostBind   []PostBind

	// Plugins is all of them, by name.
	Plugins map[string]Plugin
	// Measure is told how long each extension point took; nil measures nothing.
	Measure func(point, plugin string, status *Status, took time.Duration)
}

// RunPreEnqueue is the first refusal, or nil.
func (p *Profile) RunPreEnqueue(ctx context.Context, pod *cluster.Pod) *Status {
	for _, plugin := range p.PreEnqueue {
		if status := plugin.PreEnqueue(ctx, pod); !status.OK() {
			return status.Named(plugin.Name())
		}
	}
	return nil
}

// RunPreFilters asks all PreFilter plugins. Nodes is the names of the only nodes
// that come into question, nil for all. A refusal is that of the pod altogether.
func (p *Profile) RunPreFilters(ctx context.Context, state *CycleState, pod *cluster.Pod, snapshot *cluster.Snapshot) (nodes sets.Set[string], by []string, status *Status) {
	state.skipFilters = sets.New[string]()
	defer func() { state.filters = p.remaining(state) }()
	for _, plugin := range p.PreFilter {
		only, status := plugin.PreFilter(ctx, state, pod, snapshot)
		switch status.CodeOf() {
		case Success:
		case Skip:
			state.skipFilters.Insert(plugin.Name())
			continue
		default:
			return nil, nil, status.Named(plugin.Name())
		}
		if only == nil {
			continue
		}
		by = append(by, plugin.Name())
		if nodes == nil {
			nodes = only
		} else {
			nodes = nodes.Intersection(only)
		}
		if len(nodes) == 0 {
			return nodes, by, &Status{
				Code: UnschedulableAndUnresolvable, Plugin: plugin.Name(),
				Reasons: []string{fmt.Sprintf("node(s) didn't satisfy plugin(s) %v simultaneously", by)},
			}
		}
	}
	return nodes, by, nil
}

// remaining is the filters that their PreFilter did not skip.
func (p *Profile) remaining(state *CycleState) []Filter {
	filters := make([]Filter, 0, len(p.Filter))
	for _, plugin := range p.Filter {
		if !state.skipFilters.Has(plugin.Name()) {
			filters = append(filters, plugin)
		}
	}
	return filters
}

// RunFilters is the first refusal of node, or nil. RunPreFilters comes before it.
func (p *Profile) RunFilters(ctx context.Context, state *CycleState, pod *cluster.Pod, node *cluster.Node) *Status {
	for _, plugin := range state.filters {
		if status := plugin.Filter(ctx, state, pod, node); !status.OK() {
			return status.Named(plugin.Name())
		}
	}
	return nil
}

// EachFilter asks every filter for its verdict on node, refusals or not.
func (p *Profile) EachFilter(ctx context.Context, state *CycleState, pod *cluster.Pod, node *cluster.Node, tell func(plugin string, status *Status)) {
	for _, plugin := range p.Filter {
		if state.skipFilters.Has(plugin.Name()) {
			tell(plugin.Name(), nil)
			continue
		}
		tell(plugin.Name(), plugin.Filter(ctx, state, pod, node).Named(plugin.Name()))
	}
}

// RunAddPod keeps state right for a what-if in which other is on node too.
func (p *Profile) RunAddPod(state *CycleState, pod, other *cluster.Pod, node *cluster.Node, snapshot *cluster.Snapshot) *Status {
	return p.extend(state, func(e PreFilterExtensions) *Status { return e.AddPod(state, pod, other, node, snapshot) })
}

// RunRemovePod keeps state right for a what-if in which other is not on node.
func (p *Profile) RunRemovePod(state *CycleState, pod, other *cluster.Pod, node *cluster.Node, snapshot *cluster.Snapshot) *Status {
	return p.extend(state, func(e PreFilterExtensions) *Status { return e.RemovePod(state, pod, other, node, snapshot) })
}

func (p *Profile) extend(state *CycleState, do func(PreFilterExtensions) *Status) *Status {
	for _, plugin := range p.PreFilter {
		extensions, ok := plugin.(PreFilterExtensions)
		if !ok || state.skipFilters.Has(plugin.Name()) {
			continue
		}
		if status := do(extensions); !status.OK() {
			return status.Named(plugin.Name())
		}
	}
	return nil
}

// RunPostFilters asks the PostFilter plugins until one made room or failed. When
// none did, the status joins their reasons.
func (p *Profile) RunPostFilters(ctx context.Context, state *CycleState, pod *cluster.Pod, snapshot *cluster.Snapshot, verdicts *Verdicts) (string, *Status) {
	result := NewStatus(Unschedulable)
	for _, plugin := range p.PostFilter {
		nominated, status := plugin.PostFilter(ctx, state, pod, snapshot, verdicts)
		status = status.Named(plugin.Name())
		switch {
		case status.OK():
			return nominated, nil
		case !status.Rejected():
			return "", status
		}
		result.Reasons = append(result.Reasons, status.Reasons...)
		result.Plugin = plugin.Name()
	}
	return "", result
}

// RunScores is the weighted sum of all scores for each of nodes.
func (p *Profile) RunScores(ctx context.Context, state *CycleState, pod *cluster.Pod, snapshot *cluster.Snapshot, nodes []*cluster.Node) ([]NodeScore, *Status) {
	state.skipScores = sets.New[string]()
	for _, plugin := range p.PreScore {
		status := plugin.PreScore(ctx, state, pod, snapshot, nodes)
		switch status.CodeOf() {
		case Success:
		case Skip:
			state.skipScores.Insert(plugin.Name())
		default:
			return nil, status.Named(plugin.Name())
		}
	}
	totals := make([]NodeScore, len(nodes))
	for i, node := range nodes {
		totals[i].Node = node
	}
	scores := make([]NodeScore, len(nodes))
	for _, plugin := range p.Score {
		if state.skipScores.Has(plugin.Name()) {
			continue
		}
		if status := p.score(ctx, state, pod, plugin, nodes, scores); !status.OK() {
			return nil, status.Named(plugin.Name())
		}
		for i := range scores {
			totals[i].Score += scores[i].Score * plugin.Weight
		}
	}
	return totals, nil
}

func (p *Profile) score(ctx context.Context, state *CycleState, pod *cluster.Pod, plugin Weighted, nodes []*cluster.Node, scores []NodeScore) *Status {
	for i, node := range nodes {
		score, status := plugin.Score.Score(ctx, state, pod, node)
		if !status.OK() {
			return status
		}
		scores[i] = NodeScore{Node: node, Score: score}
	}
	if normalizer, ok := plugin.Score.(Normalizer); ok {
		if status := normalizer.Normalize(ctx, state, pod, scores); !status.OK() {
			return status
		}
	}
	for i := range scores {
		if scores[i].Score < 0 || scores[i].Score > MaxNodeScore {
			return AsStatus(fmt.Errorf("score %d of node %s is not within 0 and %d", scores[i].Score, scores[i].Node.Name, MaxNodeScore))
		}
	}
	return nil
}

// DefaultNormalize scales scores so that the highest is MaxNodeScore; reverse
// makes the highest the lowest.
func DefaultNormalize(reverse bool, scores []NodeScore) *Status {
	var highest int64
	for _, s := range scores {
		highest = max(highest, s.Score)
	}
	for i := range scores {
		switch {
		case highest == 0 && reverse:
			scores[i].Score = MaxNodeScore
		case highest == 0:
		case reverse:
			scores[i].Score = MaxNodeScore - scores[i].Score*MaxNodeScore/highest
		default:
			scores[i].Score = scores[i].Score * MaxNodeScore / highest
		}
	}
	return nil
}
