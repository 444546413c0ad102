package deployment

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// State is what one look at a Deployment sees. Nothing in it is changed.
type State struct {
	Deployment *appsv1.Deployment
	Sets       []*appsv1.ReplicaSet // those that it controls
	// OldPodsRunning says whether a pod of an older template has not ended:
	// Recreate waits for it.
	OldPodsRunning func(newest *appsv1.ReplicaSet) bool
	Now            time.Time
}

// Resize is a change to a ReplicaSet. Before and the size of Set differ when it
// is scaled.
type Resize struct {
	Set    *appsv1.ReplicaSet
	Before int32
}

// Plan is what one look calls for. Its parts are carried out in this order.
type Plan struct {
	Create *appsv1.ReplicaSet
	Update []Resize
	Delete []*appsv1.ReplicaSet
	// Deployment has the status and the revision annotation that should be
	// written; nil when they stand already.
	Deployment *appsv1.Deployment
	// RequeueAfter is when to look again though nothing changes; 0 is never.
	RequeueAfter time.Duration
}

// planner carries one look: d and the sets are copies that it changes as it
// decides.
type planner struct {
	State
	d      *appsv1.Deployment
	newest *appsv1.ReplicaSet
	old    []*appsv1.ReplicaSet
	plan   Plan
}

// Decide is the next step from state to what the Deployment asks for.
func Decide(state State) Plan {
	p := &planner{State: state, d: state.Deployment.DeepCopy()}
	p.split()
	switch d := p.d; {
	case d.DeletionTimestamp != nil:
		p.settle()
	case d.Spec.Paused:
		p.notePause()
		p.keepRevision(false)
		p.scale()
		p.cleanUp()
		p.settle()
	case resized(d, p.all()):
		p.notePause()
		p.keepRevision(false)
		p.scale()
		p.settle()
	case rolling(d):
		p.notePause()
		p.roll()
	default:
		p.notePause()
		p.recreate()
	}
	if !equality.Semantic.DeepEqual(p.d.Status, state.Deployment.Status) || p.d.Annotations[revisionAnnotation] != state.Deployment.Annotations[revisionAnnotation] {
		p.plan.Deployment = p.d
	}
	return p.plan
}

// split finds the ReplicaSet of the current template: the oldest, should there
// be several.
func (p *planner) split() {
	sets := make([]*appsv1.ReplicaSet, 0, len(p.Sets))
	for _, rs := range p.Sets {
		sets = append(sets, rs.DeepCopy())
	}
	slices.SortFunc(sets, byAge)
	for _, rs := range sets {
		if p.newest == nil && sameTemplate(&rs.Spec.Template, &p.d.Spec.Template) {
			p.newest = rs
			continue
		}
		p.old = append(p.old, rs)
	}
}

func (p *planner) all() []*appsv1.ReplicaSet {
	if p.newest == nil {
		return p.old
	}
	return append(p.old[:len(p.old):len(p.old)], p.newest)
}

// notePause says in the Progressing condition that the Deployment was paused or
// resumed, so that the deadline does not run meanwhile.
func (p *planner) notePause() {
	if !hasDeadline(p.d) {
		return
	}
	c := condition(&p.d.Status, appsv1.DeploymentProgressing)
	if c != nil && c.Reason == reasonTimedOut {
		return
	}
	paused := c != nil && c.Reason == reasonPaused
	switch {
	case p.d.Spec.Paused && !paused:
		setCondition(&p.d.Status, newCondition(appsv1.DeploymentProgressing, corev1.ConditionUnknown, reasonPaused, "Deployment is paused", p.Now))
	case !p.d.Spec.Paused && paused:
		setCondition(&p.d.Status, newCondition(appsv1.DeploymentProgressing, corev1.ConditionUnknown, reasonResumed, "Deployment is resumed", p.Now))
	}
}

// keepRevision brings the newest ReplicaSet's annotations up to date, and makes
// it when it is missing and create is true.
func (p *planner) keepRevision(create bool) {
	next := nextRevision(p.old)
	if p.newest != nil {
		changed := annotateNew(p.newest, p.d, next, true)
		if p.newest.Spec.MinReadySeconds != p.d.Spec.MinReadySeconds {
			p.newest.Spec.MinReadySeconds, changed = p.d.Spec.MinReadySeconds, true
		}
		if changed {
			p.update(p.newest, size(p.newest))
		}
		p.noteRevision()
		if hasDeadline(p.d) && condition(&p.d.Status, appsv1.DeploymentProgressing) == nil {
			setCondition(&p.d.Status, newCondition(appsv1.DeploymentProgressing, corev1.ConditionTrue, reasonFound, fmt.Sprintf("Found new replica set %q", p.newest.Name), p.Now))
		}
		return
	}
	if !create {
		return
	}
	p.newest = newReplicaSet(p.d)
	*p.newest.Spec.Replicas = newSize(p.d, p.all(), p.newest)
	annotateNew(p.newest, p.d, next, false)
	p.plan.Create = p.newest
	p.noteRevision()
	if hasDeadline(p.d) {
		setCondition(&p.d.Status, newCondition(appsv1.DeploymentProgressing, corev1.ConditionTrue, reasonCreated, fmt.Sprintf("Created new replica set %q", p.newest.Name), p.Now))
	}
}

func (p *planner) noteRevision() {
	if p.d.Annotations == nil {
		p.d.Annotations = map[string]string{}
	}
	p.d.Annotations[revisionAnnotation] = strconv.FormatInt(revision(p.newest), 10)
}

// update notes that rs is to be written, once.
func (p *planner) update(rs *appsv1.ReplicaSet, before int32) {
	if p.plan.Create == rs {
		return
	}
	for _, u := range p.plan.Update {
		if u.Set == rs {
			return // its first Before stands
		}
	}
	p.plan.Update = append(p.plan.Update, Resize{Set: rs, Before: before})
}

// resize sets the size of rs and the size annotations, and says whether the size
// changed.
func (p *planner) resize(rs *appsv1.ReplicaSet, to int32) bool {
	before := size(rs)
	rs.Spec.Replicas = &to
	if annotateSize(rs, p.d) || before != to {
		p.update(rs, before)
	}
	return before != to
}

// settle writes the counted status without judging progress.
func (p *planner) settle() {
	p.d.Status = count(p.d, p.all(), p.newest, p.Now)
	p.plan.RequeueAfter = 0
}

// settleRollout writes the counted status and how the rollout progresses.
func (p *planner) settleRollout() {
	// Conditions set in this look count as those before it, except that counted
	// numbers are compared with what was written.
	before := p.d.DeepCopy()
	next := count(p.d, p.all(), p.newest, p.Now)
	progress(before, &next, p.all(), p.newest, p.Now)
	p.d.Status = next
	p.plan.RequeueAfter = untilTimeout(p.d, &next, p.Now)
}

// cleanUp deletes empty old ReplicaSets beyond the history limit, the oldest
// revisions first.
func (p *planner) cleanUp() {
	if p.d.Spec.RevisionHistoryLimit == nil {
		return
	}
	var kept []*appsv1.ReplicaSet
	for _, rs := range p.old {
		if rs.DeletionTimestamp == nil {
			kept = append(kept, rs)
		}
	}
	surplus := len(kept) - int(*p.d.Spec.RevisionHistoryLimit)
	if surplus <= 0 {
		return
	}
	slices.SortFunc(kept, func(a, b *appsv1.ReplicaSet) int {
		if c := cmp.Compare(revision(a), revision(b)); c != 0 {
			return c
		}
		return byAge(a, b)
	})
	for _, rs := range kept[:surplus] {
		if actual(rs) == 0 && size(rs) == 0 && rs.Generation <= rs.Status.ObservedGeneration {
			p.plan.Delete = append(p.plan.Delete, rs)
		}
	}
}
