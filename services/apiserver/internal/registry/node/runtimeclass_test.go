package node

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
)

func TestRuntimeClasses(t *testing.T) {
	r := RuntimeClasses()
	twice := corev1.Toleration{Key: "k", Operator: corev1.TolerationOpExists}
	for want, obj := range map[string]*nodev1.RuntimeClass{
		"":                                  {Handler: "runsc"},
		`handler: Invalid value: ""`:        {},
		`scheduling.tolerations[1]: Dupli`:  {Handler: "h", Scheduling: &nodev1.Scheduling{Tolerations: []corev1.Toleration{twice, twice}}},
		`scheduling.nodeSelector: Invalid `: {Handler: "h", Scheduling: &nodev1.Scheduling{NodeSelector: map[string]string{"a b": ""}}},
	} {
		got := ""
		if err := r.Strategy.Validate(context.Background(), obj).ToAggregate(); err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) || (want == "" && got != "") {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	errs := r.Strategy.ValidateUpdate(context.Background(), &nodev1.RuntimeClass{Handler: "b"}, &nodev1.RuntimeClass{Handler: "a"})
	if got, want := errs.ToAggregate().Error(), `handler: Invalid value: "b": field is immutable`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
