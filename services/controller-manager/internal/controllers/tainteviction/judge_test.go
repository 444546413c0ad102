package tainteviction

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestNoExecuteTaintsEndPods(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	since := metav1.NewTime(now.Add(-100 * time.Second))
	unreachable := corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute, TimeAdded: &since}
	other := corev1.Taint{Key: "other", Effect: corev1.TaintEffectNoExecute, TimeAdded: &since}
	tolerate := func(key string, seconds *int64) corev1.Toleration {
		return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: seconds}
	}
	silent, seen := corev1.Taint{Key: "silent", Effect: corev1.TaintEffectNoExecute}, now.Add(-10*time.Second)
	five, fifty := int64(300), int64(50)
	for name, c := range map[string]struct {
		tolerations []corev1.Toleration
		taints      []corev1.Taint
		want        verdict
	}{
		"no taint":                        {nil, nil, verdict{stay: true}},
		"not tolerated":                   {nil, []corev1.Taint{unreachable}, verdict{at: now}},
		"tolerated for good":              {[]corev1.Toleration{tolerate(unreachable.Key, nil)}, []corev1.Taint{unreachable}, verdict{stay: true}},
		"for a time, from when it came":   {[]corev1.Toleration{tolerate(unreachable.Key, &five)}, []corev1.Taint{unreachable}, verdict{at: now.Add(200 * time.Second)}},
		"the time is over":                {[]corev1.Toleration{tolerate(unreachable.Key, &fifty)}, []corev1.Taint{unreachable}, verdict{at: now.Add(-50 * time.Second)}},
		"the shortest counts":             {[]corev1.Toleration{tolerate(unreachable.Key, &five), tolerate("", &fifty)}, []corev1.Taint{unreachable}, verdict{at: now.Add(-50 * time.Second)}},
		"a taint that tells no time":      {[]corev1.Toleration{tolerate(silent.Key, &fifty)}, []corev1.Taint{silent}, verdict{at: now.Add(40 * time.Second)}},
		"one of two taints not tolerated": {[]corev1.Toleration{tolerate(unreachable.Key, nil)}, []corev1.Taint{unreachable, other}, verdict{at: now}},
		"first to run out of two":         {[]corev1.Toleration{tolerate(unreachable.Key, &five), tolerate(other.Key, &fifty)}, []corev1.Taint{unreachable, other}, verdict{at: now.Add(-50 * time.Second)}},
	} {
		if got := judge(c.tolerations, c.taints, seen, now); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
