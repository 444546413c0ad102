package deployment

import (
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// Annotations of the rollout history, which kubectl rollout reads.
const (
	revisionAnnotation        = "deployment.kubernetes.io/revision"
	revisionHistoryAnnotation = "deployment.kubernetes.io/revision-history"
	rollbackToAnnotation      = "deprecated.deployment.rollback.to"
)

// revisionHistoryChars bounds the revision-history annotation.
const revisionHistoryChars = 2000

// revision is the rollout that rs belongs to; 0 when it does not say.
func revision(rs *appsv1.ReplicaSet) int64 {
	n, err := strconv.ParseInt(rs.Annotations[revisionAnnotation], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func nextRevision(old []*appsv1.ReplicaSet) int64 {
	var highest int64
	for _, rs := range old {
		highest = max(highest, revision(rs))
	}
	return highest + 1
}

// inherits says whether a Deployment's annotation is copied to its ReplicaSets.
func inherits(key string) bool {
	return !slices.Contains([]string{
		corev1.LastAppliedConfigAnnotation, revisionAnnotation, revisionHistoryAnnotation,
		desiredReplicasAnnotation, maxReplicasAnnotation, rollbackToAnnotation,
	}, key)
}

// annotateNew brings the annotations of the ReplicaSet of the current template
// up to date: those of d, and its revision, which rises when an old template is
// rolled out again. It says whether anything changed.
func annotateNew(rs *appsv1.ReplicaSet, d *appsv1.Deployment, next int64, exists bool) bool {
	changed := false
	for key, value := range d.Annotations {
		if inherits(key) {
			changed = annotate(rs, key, value) || changed
		}
	}
	before, had := rs.Annotations[revisionAnnotation]
	if revision(rs) < next {
		changed = annotate(rs, revisionAnnotation, strconv.FormatInt(next, 10)) || changed
		if exists && had {
			appendHistory(rs, before)
		}
	}
	if !exists {
		changed = annotateSize(rs, d) || changed
	}
	return changed
}

// appendHistory notes that rs was also the given revision, dropping the oldest
// notes that no longer fit.
func appendHistory(rs *appsv1.ReplicaSet, before string) {
	var history []string
	if past := rs.Annotations[revisionHistoryAnnotation]; past != "" {
		history = strings.Split(past, ",")
	}
	history = append(history, before)
	for len(history) > 1 && len(strings.Join(history, ",")) > revisionHistoryChars {
		history = history[1:]
	}
	annotate(rs, revisionHistoryAnnotation, strings.Join(history, ","))
}
