package deployment

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
)

// roll is one step of a RollingUpdate: first grow the new ReplicaSet within
// maxSurge, then shrink the old ones within maxUnavailable.
func (p *planner) roll() {
	p.keepRevision(true)
	grown := p.plan.Create != nil || p.growNew()
	if !grown && !p.shrinkOld() && complete(p.d, &p.d.Status) {
		p.cleanUp()
	}
	p.settleRollout()
}

// recreate is one step of Recreate: the new ReplicaSet is made when no pod of an
// older template is left.
func (p *planner) recreate() {
	p.keepRevision(false)
	shrunk := false
	for _, rs := range active(p.old) {
		shrunk = p.resize(rs, 0) || shrunk
	}
	if shrunk || p.OldPodsRunning(p.newest) {
		p.settleRollout()
		return
	}
	if p.newest == nil {
		p.keepRevision(true)
	} else {
		p.growNew()
	}
	if complete(p.d, &p.d.Status) {
		p.cleanUp()
	}
	p.settleRollout()
}

func (p *planner) growNew() bool {
	switch {
	case size(p.newest) == wanted(p.d):
		return p.resize(p.newest, wanted(p.d))
	case size(p.newest) > wanted(p.d):
		return p.resize(p.newest, wanted(p.d))
	default:
		return p.resize(p.newest, newSize(p.d, p.all(), p.newest))
	}
}

// shrinkOld takes from the old ReplicaSets what is not needed to stay available:
// replicas that are not available anyway first.
func (p *planner) shrinkOld() bool {
	if sum(p.old, size) == 0 {
		return false
	}
	floor := wanted(p.d) - maxUnavailable(p.d)
	newMissing := size(p.newest) - lasting(p.newest)
	room := sum(p.all(), size) - floor - newMissing
	if room <= 0 {
		return false
	}
	shrunk := p.dropUnhealthy(room)
	return p.dropHealthy(floor) || shrunk
}

func (p *planner) dropUnhealthy(room int32) bool {
	shrunk := false
	for _, rs := range p.old {
		sick := min(room, size(rs)-lasting(rs))
		if size(rs) == 0 || sick <= 0 {
			continue
		}
		room -= sick
		shrunk = p.resize(rs, size(rs)-sick) || shrunk
	}
	return shrunk
}

func (p *planner) dropHealthy(floor int32) bool {
	spare := sum(p.all(), lasting) - floor
	shrunk := false
	for _, rs := range p.old {
		drop := min(spare, size(rs))
		if drop <= 0 {
			continue
		}
		spare -= drop
		shrunk = p.resize(rs, size(rs)-drop) || shrunk
	}
	return shrunk
}

// scale spreads a changed size over the ReplicaSets without rolling out.
func (p *planner) scale() {
	if only := p.onlyActive(); only != nil {
		p.resize(only, wanted(p.d))
		return
	}
	if saturated(p.d, p.newest) {
		for _, rs := range active(p.old) {
			p.resize(rs, 0)
		}
		return
	}
	if rolling(p.d) {
		p.scaleProportionally()
	}
}

// onlyActive is the ReplicaSet that takes all of a change: the one with pods, or
// the latest when none has. It is nil when several have.
func (p *planner) onlyActive() *appsv1.ReplicaSet {
	switch with := active(p.all()); {
	case len(with) == 1:
		return with[0]
	case len(with) > 1:
		return nil
	case p.newest != nil:
		return p.newest
	case len(p.old) > 0:
		return p.old[len(p.old)-1]
	default:
		return nil
	}
}

// scaleProportionally keeps the parts that old and new have in a rollout, so
// that no more is at risk after scaling than before. Rounding falls to the
// largest.
func (p *planner) scaleProportionally() {
	sets := active(p.all())
	allowed := int32(0)
	if wanted(p.d) > 0 {
		allowed = wanted(p.d) + maxSurge(p.d)
	}
	toAdd := allowed - sum(sets, size)
	slices.SortFunc(sets, bySize(toAdd > 0))
	sizes, added := make([]int32, len(sets)), int32(0)
	for i, rs := range sets {
		part := share(rs, p.d, toAdd, added)
		sizes[i] = size(rs) + part
		added += part
	}
	for i, rs := range sets {
		if i == 0 {
			sizes[0] = max(sizes[0]+toAdd-added, 0)
		}
		p.resize(rs, sizes[i])
	}
}
