package bootstrap_test

import (
	"net/netip"
	"slices"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry/statetest"
)

func TestEnsureMakesTheDefaultServiceCIDR(t *testing.T) {
	resource := schema.GroupResource{Group: "networking.k8s.io", Resource: "servicecidrs"}
	state, cfg := statetest.New(), config()
	mustEnsure(t, state, cfg)
	get := func() *networkingv1.ServiceCIDR {
		return mustGet[*networkingv1.ServiceCIDR](t, state, resource, "", "kubernetes")
	}
	if got := get(); !slices.Equal(got.Spec.CIDRs, []string{"10.96.0.0/16"}) || !meta.IsStatusConditionTrue(got.Status.Conditions, "Ready") {
		t.Errorf("ServiceCIDR is %+v", got)
	}
	writes := state.Writes()
	mustEnsure(t, state, cfg)
	if state.Writes() != writes {
		t.Errorf("a second run wrote %d times", state.Writes()-writes)
	}
	// A second family is added, another range is not.
	cfg.ServiceCIDRs = append(cfg.ServiceCIDRs, netip.MustParsePrefix("fd00::/112"))
	mustEnsure(t, state, cfg)
	if got := get(); !slices.Equal(got.Spec.CIDRs, []string{"10.96.0.0/16", "fd00::/112"}) {
		t.Errorf("ServiceCIDR is %+v", got)
	}
	cfg.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.97.0.0/16")}
	mustEnsure(t, state, cfg)
	if got := get(); got.Spec.CIDRs[0] != "10.96.0.0/16" {
		t.Errorf("ServiceCIDR is %+v", got)
	}
	// Who says that it is not ready is not overruled.
	refused := get().DeepCopy()
	meta.SetStatusCondition(&refused.Status.Conditions, metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse})
	state.Put(resource, refused)
	mustEnsure(t, state, cfg)
	if meta.IsStatusConditionTrue(get().Status.Conditions, "Ready") {
		t.Error("the condition was overruled")
	}
}
