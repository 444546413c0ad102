package flowcontrol

import (
	"context"
	"strings"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

func newSchema(changes ...func(*flowcontrolv1.FlowSchemaSpec)) *flowSchema {
	obj := &flowSchema{ObjectMeta: metav1.ObjectMeta{Name: "mine"}, Spec: flowcontrolv1.FlowSchemaSpec{
		PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "workload-low"},
		Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
			Subjects:         []flowcontrolv1.Subject{{Kind: "Group", Group: &flowcontrolv1.GroupSubject{Name: "devs"}}},
			NonResourceRules: []flowcontrolv1.NonResourcePolicyRule{{Verbs: []string{"get"}, NonResourceURLs: []string{"/metrics/*"}}},
		}},
	}}
	for _, change := range changes {
		change(&obj.Spec)
	}
	FlowSchemas().Strategy.Default(obj)
	return obj
}

func newLevel(changes ...func(*flowcontrolv1.PriorityLevelConfigurationSpec)) *level {
	obj := &level{ObjectMeta: metav1.ObjectMeta{Name: "mine"}, Spec: flowcontrolv1.PriorityLevelConfigurationSpec{
		Type: flowcontrolv1.PriorityLevelEnablementLimited,
		Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{LimitResponse: flowcontrolv1.LimitResponse{
			Type: flowcontrolv1.LimitResponseTypeQueue, Queuing: &flowcontrolv1.QueuingConfiguration{},
		}},
	}}
	for _, change := range changes {
		change(&obj.Spec)
	}
	PriorityLevelConfigurations().Strategy.Default(obj)
	return obj
}

func assertRefused(t *testing.T, r *registry.Resource, obj registry.Object, want string) {
	t.Helper()
	got := ""
	if err := r.Strategy.Validate(context.Background(), obj).ToAggregate(); err != nil {
		got = err.Error()
	}
	if !strings.Contains(got, want) || want == "" && got != "" {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestFlowSchemaRefusals(t *testing.T) {
	for want, obj := range map[string]*flowSchema{
		"": newSchema(),
		"spec.matchingPrecedence: Invalid value: 1: only the schema named 'exempt' may have matchingPrecedence 1": newSchema(func(s *flowcontrolv1.FlowSchemaSpec) { s.MatchingPrecedence = 1 }),
		"spec.priorityLevelConfiguration.name: Required value: must reference a priority level":                   newSchema(func(s *flowcontrolv1.FlowSchemaSpec) { s.PriorityLevelConfiguration.Name = "" }),
		"spec.rules[0].subjects[0].user: Required value: user is required when subject kind is 'User'":            newSchema(func(s *flowcontrolv1.FlowSchemaSpec) { s.Rules[0].Subjects[0].Kind = "User" }),
		"spec.rules[0].subjects[0].group: Forbidden: group is forbidden when subject kind is not 'Group'":         newSchema(func(s *flowcontrolv1.FlowSchemaSpec) { s.Rules[0].Subjects[0].Kind = "User" }),
		`spec.rules[0].nonResourceRules[0].nonResourceURLs[0]: Invalid value: "/a*": wildcard can only do suffix`: newSchema(func(s *flowcontrolv1.FlowSchemaSpec) {
			s.Rules[0].NonResourceRules[0].NonResourceURLs = []string{"/a*"}
		}),
		"spec.rules[0].nonResourceRules[0].verbs: Unsupported value": newSchema(func(s *flowcontrolv1.FlowSchemaSpec) { s.Rules[0].NonResourceRules[0].Verbs = []string{"fly"} }),
	} {
		assertRefused(t, FlowSchemas(), obj, want)
	}
}

func TestPriorityLevelRefusals(t *testing.T) {
	for want, obj := range map[string]*level{
		"": newLevel(),
		"spec.type: Invalid value: \"Exempt\": type must be 'Exempt' if and only if name is 'exempt'": newLevel(func(s *flowcontrolv1.PriorityLevelConfigurationSpec) {
			s.Type, s.Limited = flowcontrolv1.PriorityLevelEnablementExempt, nil
		}),
		"spec.limited.limitResponse.queuing.handSize: Invalid value: 100: should not be greater than queues (64)": newLevel(func(s *flowcontrolv1.PriorityLevelConfigurationSpec) {
			s.Limited.LimitResponse.Queuing.HandSize = 100
		}),
		"required entropy bits of deckSize 64 and handSize 12 should not be greater than 60": newLevel(func(s *flowcontrolv1.PriorityLevelConfigurationSpec) {
			s.Limited.LimitResponse.Queuing.HandSize = 12
		}),
		"spec.limited.lendablePercent: Invalid value: 101: must be between 0 and 100, inclusive": newLevel(func(s *flowcontrolv1.PriorityLevelConfigurationSpec) {
			s.Limited.LendablePercent = ptr.To(int32(101))
		}),
		"spec.limited: Required value: must not be empty when type is Limited": newLevel(func(s *flowcontrolv1.PriorityLevelConfigurationSpec) { s.Limited = nil }),
	} {
		assertRefused(t, PriorityLevelConfigurations(), obj, want)
	}
}

func TestMandatoryObjectsAreFixed(t *testing.T) {
	for _, obj := range bootstrap.MandatoryFlowSchemas {
		assertRefused(t, FlowSchemas(), obj, "")
		changed := obj.DeepCopy()
		changed.Spec.DistinguisherMethod = nil
		changed.Spec.PriorityLevelConfiguration.Name = "other"
		assertRefused(t, FlowSchemas(), changed, "must equal the fixed value")
	}
	for _, obj := range append(bootstrap.MandatoryPriorityLevelConfigurations, bootstrap.SuggestedPriorityLevelConfigurations...) {
		assertRefused(t, PriorityLevelConfigurations(), obj, "")
		defaulted := obj.DeepCopy()
		PriorityLevelConfigurations().Strategy.Default(defaulted)
		assertRefused(t, PriorityLevelConfigurations(), defaulted, "")
	}
	exempt := bootstrap.MandatoryPriorityLevelConfigurationExempt.DeepCopy()
	exempt.Spec.Exempt.NominalConcurrencyShares = ptr.To(int32(7))
	assertRefused(t, PriorityLevelConfigurations(), exempt, "")
	for _, obj := range bootstrap.SuggestedFlowSchemas {
		assertRefused(t, FlowSchemas(), obj, "")
	}
}
