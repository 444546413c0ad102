// Package intercept is what webhooks and policies share: snapshots of their
// configuration, which requests they match, and a request as they see it, in the
// version that they ask for.
package intercept

import (
	"context"
	"fmt"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
)

// Criteria say which requests a webhook or policy is about.
type Criteria struct {
	rules, excluded []rule
	// always says that no rules mean every resource, as in a binding.
	always     bool
	equivalent bool
	namespaces labels.Selector
	objects    labels.Selector
}

// rule is one rule, prepared for matching.
type rule struct {
	names                        []string // "" of none is every name
	groups, versions, operations []string
	resources                    []resourcePattern
	scope                        admissionregistrationv1.ScopeType
}

// resourcePattern is "resource/subresource", either with a wildcard.
type resourcePattern struct{ resource, subresource string }

// wildcard matches everything.
const wildcard = "*"

// NewCriteria are the criteria of a policy or binding; nil matches everything.
func NewCriteria(m *admissionregistrationv1.MatchResources) (*Criteria, error) {
	if m == nil {
		return &Criteria{always: true, namespaces: labels.Everything(), objects: labels.Everything()}, nil
	}
	c := &Criteria{
		rules: namedRules(m.ResourceRules), excluded: namedRules(m.ExcludeResourceRules), always: len(m.ResourceRules) == 0,
		equivalent: m.MatchPolicy != nil && *m.MatchPolicy == admissionregistrationv1.Equivalent,
	}
	return c, c.setSelectors(m.NamespaceSelector, m.ObjectSelector)
}

// NewWebhookCriteria are the criteria of a webhook.
func NewWebhookCriteria(rules []admissionregistrationv1.RuleWithOperations, policy *admissionregistrationv1.MatchPolicyType, namespaces, objects *metav1.LabelSelector) (*Criteria, error) {
	named := make([]admissionregistrationv1.NamedRuleWithOperations, len(rules))
	for i := range rules {
		named[i].RuleWithOperations = rules[i]
	}
	c := &Criteria{rules: namedRules(named), equivalent: policy != nil && *policy == admissionregistrationv1.Equivalent}
	return c, c.setSelectors(namespaces, objects)
}

func (c *Criteria) setSelectors(namespaces, objects *metav1.LabelSelector) (err error) {
	if c.namespaces, err = selector(namespaces); err != nil {
		return fmt.Errorf("namespaceSelector: %w", err)
	}
	if c.objects, err = selector(objects); err != nil {
		return fmt.Errorf("objectSelector: %w", err)
	}
	return nil
}

func selector(s *metav1.LabelSelector) (labels.Selector, error) {
	if s == nil {
		return labels.Everything(), nil
	}
	return metav1.LabelSelectorAsSelector(s)
}

func namedRules(list []admissionregistrationv1.NamedRuleWithOperations) []rule {
	rules := make([]rule, len(list))
	for i := range list {
		r := &list[i]
		rules[i] = rule{names: r.ResourceNames, groups: r.APIGroups, versions: r.APIVersions, scope: admissionregistrationv1.AllScopes}
		if r.Scope != nil {
			rules[i].scope = *r.Scope
		}
		for _, operation := range r.Operations {
			rules[i].operations = append(rules[i].operations, string(operation))
		}
		for _, resource := range r.Resources {
			parent, sub, _ := strings.Cut(resource, "/")
			rules[i].resources = append(rules[i].resources, resourcePattern{parent, sub})
		}
	}
	return rules
}

func has(list []string, value string) bool {
	return slices.Contains(list, value) || slices.Contains(list, wildcard)
}

// matches says whether the rule is about a write of a resource.
func (r *rule) matches(a *admission.Attributes, resource schema.GroupVersionResource) bool {
	return has(r.operations, string(a.Operation)) && has(r.groups, resource.Group) && has(r.versions, resource.Version) &&
		r.matchesResource(resource.Resource, a.Subresource) && r.inScope(a) && (len(r.names) == 0 || slices.Contains(r.names, a.Name))
}

func (r *rule) matchesResource(resource, subresource string) bool {
	return slices.ContainsFunc(r.resources, func(p resourcePattern) bool {
		return (p.resource == wildcard || p.resource == resource) && (p.subresource == wildcard || p.subresource == subresource)
	})
}

// inScope holds namespaces for resources of the cluster, although admission sees
// each in its own namespace.
func (r *rule) inScope(a *admission.Attributes) bool {
	cluster := a.Namespace == "" || isNamespace(a)
	switch r.scope {
	case admissionregistrationv1.ClusterScope:
		return cluster
	case admissionregistrationv1.NamespacedScope:
		return !cluster
	}
	return true
}

func isNamespace(a *admission.Attributes) bool {
	return a.Resource.GroupResource() == corev1.Resource("namespaces")
}

// Exempt says that no webhook or policy may see a write: one of the server itself,
// one to the configuration of webhooks and policies, so that a bad one can always be
// repaired, and reviews of access and identity, which webhooks and policies ask for
// themselves.
func Exempt(ctx context.Context, a *admission.Attributes) bool {
	if admission.IsInternal(ctx) {
		return true
	}
	switch a.Resource.Group {
	case admissionregistrationv1.GroupName:
		switch a.Resource.Resource {
		case "validatingwebhookconfigurations", "mutatingwebhookconfigurations", "validatingadmissionpolicies",
			"validatingadmissionpolicybindings", "mutatingadmissionpolicies", "mutatingadmissionpolicybindings":
			return true
		}
	case authenticationv1.GroupName:
		return a.Resource.Resource == "selfsubjectreviews" || a.Resource.Resource == "tokenreviews"
	case authorizationv1.GroupName:
		switch a.Resource.Resource {
		case "localsubjectaccessreviews", "selfsubjectaccessreviews", "selfsubjectrulesreviews", "subjectaccessreviews":
			return true
		}
	}
	return false
}
