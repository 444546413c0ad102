package admissionregistration

import (
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// Defaults of webhooks.
const (
	webhookTimeout = 10 // seconds
	servicePort    = 443
)

// orDefault sets a pointer that is nil.
func orDefault[T any](p **T, value T) {
	if *p == nil {
		*p = ptr.To(value)
	}
}

func defaultRule(rule *admissionregistrationv1.Rule) {
	orDefault(&rule.Scope, admissionregistrationv1.AllScopes)
}

func defaultRules(rules []admissionregistrationv1.RuleWithOperations) {
	for i := range rules {
		defaultRule(&rules[i].Rule)
	}
}

func defaultNamedRules(rules []admissionregistrationv1.NamedRuleWithOperations) {
	for i := range rules {
		defaultRule(&rules[i].Rule)
	}
}

func defaultClient(c *admissionregistrationv1.WebhookClientConfig) {
	if c.Service != nil {
		orDefault(&c.Service.Port, int32(servicePort))
	}
}

func defaultValidatingWebhook(w *admissionregistrationv1.ValidatingWebhook) {
	defaultClient(&w.ClientConfig)
	defaultRules(w.Rules)
	orDefault(&w.FailurePolicy, admissionregistrationv1.Fail)
	orDefault(&w.MatchPolicy, admissionregistrationv1.Equivalent)
	orDefault(&w.NamespaceSelector, metav1.LabelSelector{})
	orDefault(&w.ObjectSelector, metav1.LabelSelector{})
	orDefault(&w.TimeoutSeconds, int32(webhookTimeout))
}

func defaultMutatingWebhook(w *admissionregistrationv1.MutatingWebhook) {
	defaultClient(&w.ClientConfig)
	defaultRules(w.Rules)
	orDefault(&w.FailurePolicy, admissionregistrationv1.Fail)
	orDefault(&w.MatchPolicy, admissionregistrationv1.Equivalent)
	orDefault(&w.NamespaceSelector, metav1.LabelSelector{})
	orDefault(&w.ObjectSelector, metav1.LabelSelector{})
	orDefault(&w.TimeoutSeconds, int32(webhookTimeout))
	orDefault(&w.ReinvocationPolicy, admissionregistrationv1.NeverReinvocationPolicy)
}

func defaultMatch(m *admissionregistrationv1.MatchResources) {
	if m == nil {
		return
	}
	orDefault(&m.MatchPolicy, admissionregistrationv1.Equivalent)
	orDefault(&m.NamespaceSelector, metav1.LabelSelector{})
	orDefault(&m.ObjectSelector, metav1.LabelSelector{})
	defaultNamedRules(m.ResourceRules)
	defaultNamedRules(m.ExcludeResourceRules)
}
