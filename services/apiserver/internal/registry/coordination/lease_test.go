package coordination

import (
	"context"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/ptr"
)

func TestLeases(t *testing.T) {
	s := Leases().Strategy
	if !s.AllowCreateOnUpdate {
		t.Error("a lease cannot be created by PUT")
	}
	for want, spec := range map[string]coordinationv1.LeaseSpec{
		"": {LeaseDurationSeconds: ptr.To(int32(40)), HolderIdentity: ptr.To("node-1")},
		"spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0":             {LeaseDurationSeconds: ptr.To(int32(0))},
		"spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0":    {LeaseTransitions: ptr.To(int32(-1))},
		"spec.preferredHolder: Forbidden: may only be specified if `strategy` is defined": {PreferredHolder: ptr.To("b")},
	} {
		got := ""
		if err := s.Validate(context.Background(), &coordinationv1.Lease{Spec: spec}).ToAggregate(); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
