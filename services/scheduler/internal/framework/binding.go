package framework

import (
	"context"
	"time"

	"github.com/sampan-io/sampan/services/scheduler/internal/cluster"
)

// RunReserve reserves with all plugins; on a refusal the caller unreserves.
func (p *Profile) RunReserve(ctx context.Context, state *CycleState, pod *cluster.Pod, node string) *Status {
	for _, plugin := range p.Reserve {
		if status := plugin.Reserve(ctx, state, pod, node); !status.OK() {
			return status.Named(plugin.Name())
		}
	}
	return nil
}

// RunUnreserve gives back what was reserved, in reverse order.
func (p *Profile) RunUnreserve(ctx context.Context, state *CycleState, pod *cluster.Pod, node string) {
	for i := len(p.Reserve) - 1; i >= 0; i-- {
		p.Reserve[i].Unreserve(ctx, state, pod, node)
	}
}

// RunPermit asks all Permit plugins. A plugin's Wait is returned with the shortest
// time that a plugin gave.
func (p *Profile) RunPermit(ctx context.Context, state *CycleState, pod *cluster.Pod, node string) (*Status, time.Duration) {
	var wait *Status
	var shortest time.Duration
	for _, plugin := range p.Permit {
		status, timeout := plugin.Permit(ctx, state, pod, node)
		switch status.CodeOf() {
		case Success:
		case Wait:
			wait = status.Named(plugin.Name())
			if shortest == 0 || timeout < shortest {
				shortest = timeout
			}
		default:
			return status.Named(plugin.Name()), 0
		}
	}
	return wait, shortest
}

// RunPreBind prepares binding with all plugins.
func (p *Profile) RunPreBind(ctx context.Context, state *CycleState, pod *cluster.Pod, node string) *Status {
	for _, plugin := range p.PreBind {
		if status := plugin.PreBind(ctx, state, pod, node); !status.OK() {
			return status.Named(plugin.Name())
		}
	}
	return nil
}

// RunBind lets the first plugin bind that does not skip.
func (p *Profile) RunBind(ctx context.Context, state *CycleState, pod *cluster.Pod, node string) *Status {
	for _, plugin := range p.Bind {
		if status := plugin.Bind(ctx, state, pod, node); status.CodeOf() != Skip {
			return status.Named(plugin.Name())
		}
	}
	return NewStatus(Error, "no plugin binds the pod")
}

// RunPostBind tells all plugins that pod is bound.
func (p *Profile) RunPostBind(ctx context.Context, state *CycleState, pod *cluster.Pod, node string) {
	for _, plugin := range p.PostBind {
		plugin.PostBind(ctx, state, pod, node)
	}
}
