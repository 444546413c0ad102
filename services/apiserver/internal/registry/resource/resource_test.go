package resource

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/declared"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/statetest"
)

// assertRefused validates as the engine does.
func assertRefused(t *testing.T, r *registry.Resource, obj, old runtime.Object, subresource, want string) {
	t.Helper()
	strategy := r.Strategy
	for _, sub := range r.Subresources {
		if sub.Name == subresource {
			strategy = sub.Update
		}
	}
	ctx := context.Background()
	errs := strategy.Validate
	var got string
	if old == nil {
		if err := declared.New().Validate(ctx, obj, nil, "", errs(ctx, obj)).ToAggregate(); err != nil {
			got = err.Error()
		}
	} else if err := declared.New().Validate(ctx, obj, old, subresource, strategy.ValidateUpdate(ctx, obj, old)).ToAggregate(); err != nil {
		got = err.Error()
	}
	if !strings.Contains(got, want) || want == "" && got != "" {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func newState(labels map[string]string) func() registry.State {
	state := statetest.New()
	state.Put(corev1.Resource("namespaces"), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns", Labels: labels}})
	return func() registry.State { return state }
}

func newClaim(change func(*resourcev1.ExactDeviceRequest)) *claim {
	e := &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu.example.com"}
	if change != nil {
		change(e)
	}
	obj := &claim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}}
	obj.Spec.Devices.Requests = []resourcev1.DeviceRequest{{Name: "gpu", Exactly: e}}
	ResourceClaims(nil).Strategy.Default(obj)
	return obj
}

func selector(expression string) []resourcev1.DeviceSelector {
	return []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: expression}}}
}

func TestClaimRefusals(t *testing.T) {
	claims := ResourceClaims(newState(nil))
	for want, obj := range map[string]*claim{
		"": newClaim(nil),
		"spec.devices.requests[0].exactly.deviceClassName: Required value":                                  newClaim(func(e *resourcev1.ExactDeviceRequest) { e.DeviceClassName = "" }),
		"spec.devices.requests[0].exactly.count: Invalid value: -1: must be greater than zero":              newClaim(func(e *resourcev1.ExactDeviceRequest) { e.Count = -1 }),
		"spec.devices.requests[0].exactly.adminAccess: Forbidden: admin access to devices requires":         newClaim(func(e *resourcev1.ExactDeviceRequest) { e.AdminAccess = ptr.To(true) }),
		"spec.devices.requests[0].exactly.selectors[0].cel.expression: Invalid value: \"1 +\": compilation": newClaim(func(e *resourcev1.ExactDeviceRequest) { e.Selectors = selector("1 +") }),
		"must evaluate to bool": newClaim(func(e *resourcev1.ExactDeviceRequest) { e.Selectors = selector("device.driver") }),
		"spec.devices.requests[0].exactly.tolerations[0].value: Invalid value: \"x\": must be empty for operator": newClaim(func(e *resourcev1.ExactDeviceRequest) {
			e.Tolerations = []resourcev1.DeviceToleration{{Key: "k", Operator: "Exists", Value: "x"}}
		}),
	} {
		assertRefused(t, claims, obj, nil, "", want)
	}
	good := newClaim(func(e *resourcev1.ExactDeviceRequest) {
		e.Selectors, e.AdminAccess = selector(`device.driver == "gpu.example.com" && device.attributes["gpu.example.com"].model == "a100"`), ptr.To(true)
	})
	assertRefused(t, ResourceClaims(newState(map[string]string{resourcev1.DRAAdminNamespaceLabelKey: "true"})), good, nil, "", "")
}

func TestClaimReferencesItsOwnRequests(t *testing.T) {
	obj := newClaim(nil)
	obj.Spec.Devices.Config = []resourcev1.DeviceClaimConfiguration{{
		Requests:            []string{"other"},
		DeviceConfiguration: resourcev1.DeviceConfiguration{Opaque: &resourcev1.OpaqueDeviceConfiguration{Driver: "gpu.example.com", Parameters: runtime.RawExtension{Raw: []byte(`[]`)}}},
	}}
	assertRefused(t, ResourceClaims(newState(nil)), obj, nil, "", `spec.devices.config[0].requests[0]: Invalid value: "other": must be the name of a request in the claim`)
	assertRefused(t, ResourceClaims(newState(nil)), obj, nil, "", "spec.devices.config[0].opaque.parameters: Invalid value: \"<value omitted>\": must be a valid JSON object")
}

func TestClaimSpecAndAllocationAreFixed(t *testing.T) {
	claims := ResourceClaims(newState(nil))
	old := newClaim(nil)
	now := old.DeepCopy()
	now.Spec.Devices.Requests[0].Exactly.Count = 2
	r := *claims
	r.Strategy.ValidateUpdate = func(context.Context, runtime.Object, runtime.Object) field.ErrorList { return nil }
	assertRefused(t, &r, now, old, "", "spec: Invalid value")
	allocated := old.DeepCopy()
	allocated.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
		{Request: "gpu", Driver: "gpu.example.com", Pool: "node-1", Device: "gpu-0"},
	}}}
	assertRefused(t, claims, allocated, old, "status", "")
	other := allocated.DeepCopy()
	other.Status.Allocation.Devices.Results[0].Device = "gpu-1"
	assertRefused(t, claims, other, allocated, "status", "status.allocation: Invalid value")
	reserved := old.DeepCopy()
	reserved.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "u"}}
	assertRefused(t, claims, reserved, old, "status", "status.reservedFor: Forbidden: may not be specified when `allocated` is not set")
	unknown := allocated.DeepCopy()
	unknown.Status.Devices = []resourcev1.AllocatedDeviceStatus{{Driver: "gpu.example.com", Pool: "node-1", Device: "gpu-9"}}
	assertRefused(t, claims, unknown, old, "status", "status.devices[0]: Invalid value: \"gpu.example.com/node-1/gpu-9\": must be an allocated device in the claim")
}

func newSlice(change func(*resourcev1.ResourceSliceSpec)) *slice {
	obj := &slice{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: resourcev1.ResourceSliceSpec{
		Driver: "gpu.example.com", Pool: resourcev1.ResourcePool{Name: "node-1", ResourceSliceCount: 1}, NodeName: ptr.To("node-1"),
		Devices: []resourcev1.Device{{Name: "gpu-0", Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"model": {StringValue: ptr.To("a100")}}}},
	}}
	if change != nil {
		change(&obj.Spec)
	}
	return obj
}

func TestSliceRefusals(t *testing.T) {
	for want, obj := range map[string]*slice{
		"": newSlice(nil),
		"spec: Required value: exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required": newSlice(func(s *resourcev1.ResourceSliceSpec) { s.NodeName = nil }),
		"spec.pool.resourceSliceCount: Invalid value: 0: must be greater than zero":                                         newSlice(func(s *resourcev1.ResourceSliceSpec) { s.Pool.ResourceSliceCount = 0 }),
		`spec.devices[1]: Duplicate value: "gpu-0"`:                                                                         newSlice(func(s *resourcev1.ResourceSliceSpec) { s.Devices = append(s.Devices, s.Devices[0]) }),
		`spec.devices[0].attributes[v].version: Invalid value: "one": must be a string compatible with semver.org spec 2.0.0`: newSlice(func(s *resourcev1.ResourceSliceSpec) {
			s.Devices[0].Attributes["v"] = resourcev1.DeviceAttribute{VersionValue: ptr.To("one")}
		}),
		"spec.devices[0].capacity[memory].requestPolicy: Forbidden: allowMultipleAllocations must be true": newSlice(func(s *resourcev1.ResourceSliceSpec) {
			s.Devices[0].Capacity = map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"memory": {Value: resource.MustParse("1Gi"), RequestPolicy: &resourcev1.CapacityRequestPolicy{}}}
		}),
		"spec.devices[0].capacity[memory].requestPolicy.validRange.step: Invalid value: \"3Mi\": value is not a multiple of a given step (2Mi) from (1Mi)": nil,
		"spec.devices[0].bindingConditions: Invalid value": newSlice(func(s *resourcev1.ResourceSliceSpec) { s.Devices[0].BindingFailureConditions = []string{"failed"} }),
	} {
		if obj == nil {
			obj, want = newSlice(func(s *resourcev1.ResourceSliceSpec) {
				q := func(text string) *resource.Quantity { return ptr.To(resource.MustParse(text)) }
				s.Devices[0].AllowMultipleAllocations = ptr.To(true)
				s.Devices[0].Capacity = map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"memory": {
					Value:         resource.MustParse("1Gi"),
					RequestPolicy: &resourcev1.CapacityRequestPolicy{Default: q("4Mi"), ValidRange: &resourcev1.CapacityRequestPolicyRange{Min: q("1Mi"), Step: q("2Mi")}},
				}}
			}), "value is not a multiple of a given step (2Mi) from (1Mi)"
		}
		assertRefused(t, ResourceSlices(), obj, nil, "", want)
	}
}

func TestTaintRuleTellsSinceWhen(t *testing.T) {
	rules := DeviceTaintRules()
	obj := &taintRule{Spec: resourcev1.DeviceTaintRuleSpec{Taint: resourcev1.DeviceTaint{Key: "example.com/sick", Effect: "NoSchedule"}}}
	rules.Strategy.Default(obj)
	if obj.Spec.Taint.TimeAdded == nil {
		t.Fatal("no time")
	}
	assertRefused(t, rules, obj, nil, "", "")
	obj.Spec.Taint.Effect = "Away"
	assertRefused(t, rules, obj, nil, "", "spec.taint.effect: Unsupported value: \"Away\"")
}

func TestClaimRow(t *testing.T) {
	obj := newClaim(nil)
	obj.Status.Allocation = &resourcev1.AllocationResult{}
	obj.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{}}
	if got := ResourceClaims(nil).Table.Row(obj); !slices.Equal(got[:2], []any{"c", "allocated,reserved"}) {
		t.Errorf("row is %v", got)
	}
}
