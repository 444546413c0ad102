package scheduling

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func class(name string, value int32) *schedulingv1.PriorityClass {
	return &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value}
}

func TestClasses(t *testing.T) {
	s := PriorityClasses().Strategy
	for _, c := range []struct {
		obj  *schedulingv1.PriorityClass
		want string
	}{
		{class("high", 1000000000), ""},
		{class("system-node-critical", 2000001000), ""},
		{class("higher", 1000000001), "value: Forbidden: maximum allowed value of a user defined priority is 1000000000"},
		{class("system-mine", 5), "metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only. error: system-mine is not a known system priority class"},
	} {
		s.Default(c.obj)
		got := ""
		if err := s.Validate(context.Background(), c.obj).ToAggregate(); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
		if *c.obj.PreemptionPolicy != corev1.PreemptLowerPriority {
			t.Errorf("%s has policy %s", c.obj.Name, *c.obj.PreemptionPolicy)
		}
	}
	old, changed := class("a", 1), class("a", 2)
	changed.PreemptionPolicy = ptr.To(corev1.PreemptNever)
	s.Default(old)
	want := `[value: Forbidden: may not be changed in an update., preemptionPolicy: Invalid value: "Never": field is immutable]`
	if got := s.ValidateUpdate(context.Background(), changed, old).ToAggregate().Error(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
