package policy

import (
	"context"
	"slices"
	"strings"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

func TestBudgets(t *testing.T) {
	one, percent := intstr.FromInt32(1), func(s string) *intstr.IntOrString { return ptr.To(intstr.FromString(s)) }
	for want, spec := range map[string]policyv1.PodDisruptionBudgetSpec{
		"": {MinAvailable: &one},
		"minAvailable and maxUnavailable cannot be both set":                                {MinAvailable: &one, MaxUnavailable: &one},
		`spec.minAvailable: Invalid value: -1: must be greater than or equal to 0`:          {MinAvailable: ptr.To(intstr.FromInt32(-1))},
		`spec.maxUnavailable: Invalid value: "101%": must not be greater than 100%`:         {MaxUnavailable: percent("101%")},
		`spec.maxUnavailable: Invalid value: "x": a valid percent string must be a numeric`: {MaxUnavailable: percent("x")},
		`spec.unhealthyPodEvictionPolicy: Unsupported value: "Never": supported values: `:   {UnhealthyPodEvictionPolicy: ptr.To(policyv1.UnhealthyPodEvictionPolicyType("Never"))},
	} {
		got := ""
		if err := PodDisruptionBudgets().Strategy.Validate(context.Background(), &policyv1.PodDisruptionBudget{Spec: spec}).ToAggregate(); err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) || (want == "" && got != "") {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestRow(t *testing.T) {
	budget := &policyv1.PodDisruptionBudget{Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: ptr.To(intstr.FromString("30%"))}, Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 2}}
	want := []any{"", "N/A", "30%", int64(2), "<unknown>"}
	if got := PodDisruptionBudgets().Table.Row(budget); !slices.Equal(got, want) {
		t.Errorf("row is %v, want %v", got, want)
	}
}
