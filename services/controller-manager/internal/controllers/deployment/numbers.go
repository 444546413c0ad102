package deployment

import (
	"cmp"
	"math"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Annotations on ReplicaSets that say which size of Deployment they were scaled
// for. Proportional scaling and the notice of a changed size rest on them.
const (
	desiredReplicasAnnotation = "deployment.kubernetes.io/desired-replicas"
	maxReplicasAnnotation     = "deployment.kubernetes.io/max-replicas"
)

func wanted(d *appsv1.Deployment) int32 {
	if d.Spec.Replicas == nil {
		return 1
	}
	return *d.Spec.Replicas
}

func size(rs *appsv1.ReplicaSet) int32 {
	switch {
	case rs == nil:
		return 0
	case rs.Spec.Replicas == nil:
		return 1
	default:
		return *rs.Spec.Replicas
	}
}

func rolling(d *appsv1.Deployment) bool {
	return d.Spec.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType
}

// limits resolves maxSurge (percentages rounded up) and maxUnavailable (rounded
// down) against the wanted size. Where both would be 0, which could never make
// progress, one may be unavailable.
func limits(d *appsv1.Deployment) (surge, unavailable int32) {
	if !rolling(d) || d.Spec.Strategy.RollingUpdate == nil {
		return 0, 0
	}
	update := d.Spec.Strategy.RollingUpdate
	surge = resolve(update.MaxSurge, wanted(d), true)
	unavailable = resolve(update.MaxUnavailable, wanted(d), false)
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return surge, unavailable
}

func resolve(value *intstr.IntOrString, total int32, up bool) int32 {
	if value == nil {
		return 0
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(value, int(total), up)
	if err != nil {
		return 0 // the API refuses such values
	}
	return int32(n)
}

func maxSurge(d *appsv1.Deployment) int32 {
	surge, _ := limits(d)
	return surge
}

// maxUnavailable is never more than the wanted size.
func maxUnavailable(d *appsv1.Deployment) int32 {
	if wanted(d) == 0 {
		return 0
	}
	_, unavailable := limits(d)
	return min(unavailable, wanted(d))
}

func sum(sets []*appsv1.ReplicaSet, of func(*appsv1.ReplicaSet) int32) int32 {
	var total int32
	for _, rs := range sets {
		if rs != nil {
			total += of(rs)
		}
	}
	return total
}

func available(rs *appsv1.ReplicaSet) int32 { return rs.Status.AvailableReplicas }
func actual(rs *appsv1.ReplicaSet) int32    { return rs.Status.Replicas }
func ready(rs *appsv1.ReplicaSet) int32     { return rs.Status.ReadyReplicas }

// lasting is the available pods of rs that it keeps: its status may count more for
// a while after it was told to shrink, and those must not be counted on.
func lasting(rs *appsv1.ReplicaSet) int32 { return min(rs.Status.AvailableReplicas, size(rs)) }

func active(sets []*appsv1.ReplicaSet) []*appsv1.ReplicaSet {
	var found []*appsv1.ReplicaSet
	for _, rs := range sets {
		if rs != nil && size(rs) > 0 {
			found = append(found, rs)
		}
	}
	return found
}

// byAge orders the oldest first.
func byAge(a, b *appsv1.ReplicaSet) int {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	}
	return cmp.Compare(a.Name, b.Name)
}

// bySize orders the largest first; of one size, the oldest or the newest.
func bySize(newest bool) func(a, b *appsv1.ReplicaSet) int {
	return func(a, b *appsv1.ReplicaSet) int {
		if c := cmp.Compare(size(b), size(a)); c != 0 {
			return c
		}
		if newest {
			return byAge(b, a)
		}
		return byAge(a, b)
	}
}

// occupied is how many pods rs has or will have.
func occupied(rs *appsv1.ReplicaSet) int32 { return max(size(rs), rs.Status.Replicas) }

// unsettled says whether the pods of rs are not known: it was told another size and
// its status is still of before.
func unsettled(rs *appsv1.ReplicaSet) bool { return rs.Status.ObservedGeneration < rs.Generation }

// newSize is the size that the ReplicaSet of the current template should grow to
// now, within maxSurge over the pods of all ReplicaSets: those too that are still
// there though their ReplicaSet was told to shrink.
func newSize(d *appsv1.Deployment, all []*appsv1.ReplicaSet, newest *appsv1.ReplicaSet) int32 {
	if !rolling(d) {
		return wanted(d)
	}
	room := wanted(d) + maxSurge(d) - sum(all, occupied)
	if room <= 0 || size(newest) >= wanted(d) || slices.ContainsFunc(all, unsettled) {
		return size(newest)
	}
	return size(newest) + min(room, wanted(d)-size(newest))
}

// share is the part of a change by toAdd replicas that falls to rs when the
// Deployment is scaled in the middle of a rollout and added have been given out.
func share(rs *appsv1.ReplicaSet, d *appsv1.Deployment, toAdd, added int32) int32 {
	if size(rs) == 0 || toAdd == 0 || toAdd == added {
		return 0
	}
	fraction, left := proportion(rs, d), toAdd-added
	if toAdd > 0 {
		return min(fraction, left)
	}
	return max(fraction, left)
}

// proportion is how much rs grows or shrinks to keep its part of the whole.
func proportion(rs *appsv1.ReplicaSet, d *appsv1.Deployment) int32 {
	if wanted(d) == 0 {
		return -size(rs)
	}
	before, ok := annotated(rs, maxReplicasAnnotation)
	if !ok || before == 0 {
		before = d.Status.Replicas
		if before == 0 {
			return 0
		}
	}
	after := float64(size(rs)*(wanted(d)+maxSurge(d))) / float64(before)
	return int32(math.Floor(after+0.5)) - size(rs)
}

func annotated(rs *appsv1.ReplicaSet, key string) (int32, bool) {
	n, err := strconv.ParseInt(rs.Annotations[key], 10, 32)
	return int32(n), err == nil
}

// resized says whether d's size changed since its ReplicaSets were last scaled.
func resized(d *appsv1.Deployment, sets []*appsv1.ReplicaSet) bool {
	return slices.ContainsFunc(active(sets), func(rs *appsv1.ReplicaSet) bool {
		desired, ok := annotated(rs, desiredReplicasAnnotation)
		return ok && desired != wanted(d)
	})
}

// saturated says whether newest alone has reached d's size.
func saturated(d *appsv1.Deployment, newest *appsv1.ReplicaSet) bool {
	if newest == nil {
		return false
	}
	desired, ok := annotated(newest, desiredReplicasAnnotation)
	return ok && size(newest) == wanted(d) && desired == wanted(d) && available(newest) == wanted(d)
}

// annotateSize writes the size annotations on rs and says whether they changed.
func annotateSize(rs *appsv1.ReplicaSet, d *appsv1.Deployment) bool {
	changed := annotate(rs, desiredReplicasAnnotation, strconv.Itoa(int(wanted(d))))
	return annotate(rs, maxReplicasAnnotation, strconv.Itoa(int(wanted(d)+maxSurge(d)))) || changed
}

func annotate(rs *appsv1.ReplicaSet, key, value string) bool {
	if current, ok := rs.Annotations[key]; ok && current == value {
		return false
	}
	if rs.Annotations == nil {
		rs.Annotations = map[string]string{}
	}
	rs.Annotations[key] = value
	return true
}
