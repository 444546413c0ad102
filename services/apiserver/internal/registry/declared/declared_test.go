package declared_test

import (
	"strings"
	"testing"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry/declared"
)

func TestDeclaredErrorsTakeThePlaceOfThoseFoundByHand(t *testing.T) {
	byHand := field.ErrorList{
		field.Invalid(field.NewPath("spec", "maxReplicas"), 0, "must be greater than 0"),
		field.Invalid(field.NewPath("spec", "maxReplicas"), 0, "must be greater than or equal to `minReplicas`"),
		field.Required(field.NewPath("spec", "scaleTargetRef", "name"), "by hand"),
	}
	got := declared.New().Validate(t.Context(), &autoscalingv2.HorizontalPodAutoscaler{}, nil, "", byHand)
	want := "[spec.scaleTargetRef.name: Required value: by hand, spec.maxReplicas: Required value]"
	if got.ToAggregate().Error() != want {
		t.Errorf("got  %v\nwant %s", got.ToAggregate(), want)
	}
}

func TestUnchangedValuesAreNotCheckedAgain(t *testing.T) {
	old := &autoscalingv2.HorizontalPodAutoscaler{Spec: autoscalingv2.HorizontalPodAutoscalerSpec{MinReplicas: ptr.To(int32(0)), MaxReplicas: 3}}
	now := old.DeepCopy()
	now.Spec.MaxReplicas = 4
	rules := declared.New()
	if errs := rules.Validate(t.Context(), now, old, "", nil); len(errs) > 0 {
		t.Errorf("got %v", errs.ToAggregate())
	}
	if errs := rules.Validate(t.Context(), now, nil, "", nil); len(errs) != 1 || errs[0].Field != "spec.minReplicas" {
		t.Errorf("got %v", errs.ToAggregate())
	}
}

func TestSubresourcesWithoutRulesAreNotChecked(t *testing.T) {
	if errs := declared.New().Validate(t.Context(), &corev1.Pod{}, &corev1.Pod{}, "binding", nil); len(errs) > 0 {
		t.Errorf("got %v", errs.ToAggregate())
	}
}

func TestTypesDeclareLimits(t *testing.T) {
	claim := &resourcev1.ResourceClaim{}
	for range 33 {
		claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, resourcev1.DeviceRequest{Name: "same"})
	}
	errs := declared.New().Validate(t.Context(), claim, nil, "", nil).ToAggregate()
	if errs == nil || !strings.Contains(errs.Error(), "spec.devices.requests: Too many: 33: must have at most 32 items") {
		t.Errorf("got %v", errs)
	}
}
