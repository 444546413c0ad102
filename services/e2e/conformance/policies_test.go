package conformance

import (
	"context"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var validatingPolicies = map[string]func(*testing.T){
	"should support ValidatingAdmissionPolicy API operations":        policyOperations,
	"should support ValidatingAdmissionPolicyBinding API operations": bindingOperations,
	"should validate against a Deployment": func(t *testing.T) {
		policyRefuses(t, func(spec *admissionregistrationv1.ValidatingAdmissionPolicySpec) {
			spec.Validations = []admissionregistrationv1.Validation{
				{Expression: "object.spec.replicas > 1", MessageExpression: "'wants more than 1 replica, has ' + string(object.spec.replicas)"},
			}
		}, "wants more than 1 replica, has 1")
	},
	"should allow expressions to refer variables.": func(t *testing.T) {
		policyRefuses(t, func(spec *admissionregistrationv1.ValidatingAdmissionPolicySpec) {
			spec.Variables = []admissionregistrationv1.Variable{
				{Name: "replicas", Expression: "object.spec.replicas"},
				{Name: "oddReplicas", Expression: "variables.replicas % 2 == 1"},
			}
			spec.Validations = []admissionregistrationv1.Validation{{Expression: "variables.replicas > 1"}, {Expression: "!variables.oddReplicas || variables.replicas > 2"}}
		}, "variables.replicas > 1")
	},
}

// policyRefuses binds a policy to a namespace and asserts that it refuses a
// deployment of one replica there with the message, and takes one of four.
func policyRefuses(t *testing.T, change func(*admissionregistrationv1.ValidatingAdmissionPolicySpec), message string) {
	t.Helper()
	namespace, name := newNamespace(t), unique("policy")
	spec := policySpec()
	spec.MatchConstraints.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": namespace}}
	change(&spec)
	api := client.AdmissionregistrationV1()
	got(api.ValidatingAdmissionPolicies().Create(t.Context(), &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{}))(t)
	deleteAfter(t, name, func(ctx context.Context) error {
		return api.ValidatingAdmissionPolicies().Delete(ctx, name, metav1.DeleteOptions{})
	})
	got(api.ValidatingAdmissionPolicyBindings().Create(t.Context(), &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
			MatchResources: &admissionregistrationv1.MatchResources{NamespaceSelector: spec.MatchConstraints.NamespaceSelector},
		},
	}, metav1.CreateOptions{}))(t)
	deleteAfter(t, name, func(ctx context.Context) error {
		return api.ValidatingAdmissionPolicyBindings().Delete(ctx, name, metav1.DeleteOptions{})
	})
	eventually(t, "the policy's status", func(ctx context.Context) (bool, error) {
		policy, err := api.ValidatingAdmissionPolicies().Get(ctx, name, metav1.GetOptions{})
		if err != nil || policy.Status.TypeChecking == nil {
			return false, err
		}
		if warnings := policy.Status.TypeChecking.ExpressionWarnings; len(warnings) > 0 {
			t.Errorf("type checking warns: %v", warnings)
		}
		return policy.Status.ObservedGeneration == policy.Generation, nil
	})
	eventually(t, "the policy to refuse", func(ctx context.Context) (bool, error) {
		_, err := client.AppsV1().Deployments(namespace).Create(ctx, deployment(unique("single"), 1), metav1.CreateOptions{})
		if err != nil {
			contains(t, err.Error(), message, name)
		}
		return err != nil, nil
	})
	got(client.AppsV1().Deployments(namespace).Create(t.Context(), deployment("several", 4), metav1.CreateOptions{}))(t)
}
