package bootstrap_test

import (
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry/statetest"
)

const follows = flowcontrolv1.AutoUpdateAnnotationKey

func flowResource(name string) schema.GroupResource {
	return schema.GroupResource{Group: "flowcontrol.apiserver.k8s.io", Resource: name}
}

func TestEnsureKeepsMandatoryFlowSchemas(t *testing.T) {
	state := statetest.New()
	mustEnsure(t, state, config())
	changed := mustGet[*flowcontrolv1.FlowSchema](t, state, flowResource("flowschemas"), "", "catch-all").DeepCopy()
	changed.Spec.MatchingPrecedence, changed.Annotations = 7, map[string]string{follows: "false"}
	state.Put(flowResource("flowschemas"), changed)
	mustEnsure(t, state, config())
	got := mustGet[*flowcontrolv1.FlowSchema](t, state, flowResource("flowschemas"), "", "catch-all")
	if got.Spec.MatchingPrecedence != 10000 || got.Annotations[follows] != "true" {
		t.Errorf("the mandatory schema is %+v", got)
	}
}

func TestEnsureLeavesSuggestedSchemasThatWereTakenOver(t *testing.T) {
	state := statetest.New()
	mustEnsure(t, state, config())
	for name, object := range map[string]struct {
		annotation string
		generation int64
		wantNote   string
		wantReset  bool
	}{
		"service-accounts":        {"false", 2, "false", false},
		"system-nodes":            {"true", 2, "true", true},
		"kube-scheduler":          {"", 2, "false", false},
		"kube-controller-manager": {"", 1, "true", true},
	} {
		was := mustGet[*flowcontrolv1.FlowSchema](t, state, flowResource("flowschemas"), "", name)
		changed := was.DeepCopy()
		changed.Spec.MatchingPrecedence, changed.Generation, changed.Annotations = 7, object.generation, nil
		if object.annotation != "" {
			changed.Annotations = map[string]string{follows: object.annotation}
		}
		state.Put(flowResource("flowschemas"), changed)
		mustEnsure(t, state, config())
		got := mustGet[*flowcontrolv1.FlowSchema](t, state, flowResource("flowschemas"), "", name)
		if reset := got.Spec.MatchingPrecedence == was.Spec.MatchingPrecedence; reset != object.wantReset || got.Annotations[follows] != object.wantNote {
			t.Errorf("%s: reset %v, annotation %q", name, reset, got.Annotations[follows])
		}
	}
}

func TestEnsureRemovesSchemasThatAreNoLongerSuggested(t *testing.T) {
	state := statetest.New()
	for name, note := range map[string]string{"old": "true", "mine": "false"} {
		state.Put(flowResource("flowschemas"), &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{follows: note}}})
	}
	mustEnsure(t, state, config())
	if _, err := state.Get(t.Context(), flowResource("flowschemas"), "", "old"); err == nil {
		t.Error("an obsolete schema is still there")
	}
	mustGet[*flowcontrolv1.FlowSchema](t, state, flowResource("flowschemas"), "", "mine")
}
