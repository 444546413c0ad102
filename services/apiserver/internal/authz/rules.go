package authz

import (
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
)

// RuleAllows says whether rule permits the action.
func RuleAllows(rule *rbacv1.PolicyRule, a *Attributes) bool {
	if !contains(rule.Verbs, a.Verb) {
		return false
	}
	if !a.ResourceRequest {
		return pathMatches(rule.NonResourceURLs, a.Path)
	}
	return contains(rule.APIGroups, a.APIGroup) &&
		resourceMatches(rule.Resources, a.Resource, a.Subresource) &&
		(len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, a.Name))
}

// contains says whether list has value or the wildcard.
func contains(list []string, value string) bool {
	for _, s := range list {
		if s == "*" || s == value {
			return true
		}
	}
	return false
}

// resourceMatches knows three forms: "pods", "pods/log", and "*/scale" for a
// subresource of everything.
func resourceMatches(list []string, resource, subresource string) bool {
	for _, s := range list {
		if s == "*" {
			return true
		}
		if subresource == "" {
			if s == resource {
				return true
			}
			continue
		}
		// s == resource + "/" + subresource, without making that string.
		n := len(s) - len(subresource) - 1
		if n > 0 && s[n] == '/' && s[n+1:] == subresource && (s[:n] == resource || s[:n] == "*") {
			return true
		}
	}
	return false
}

// pathMatches knows the exact path, and prefixes that end in "*".
func pathMatches(list []string, path string) bool {
	for _, s := range list {
		if s == path || s == "*" {
			return true
		}
		if prefix, ok := strings.CutSuffix(s, "*"); ok && strings.HasPrefix(path, prefix) {
			return true
		}
	}
	return false
}

// Uncovered returns the parts of wanted that held does not permit, each for a
// single verb, group, resource and name (or path). Nil means that whoever holds
// the rules of held may grant those of wanted.
func Uncovered(held, wanted []rbacv1.PolicyRule) []rbacv1.PolicyRule {
	var missing []rbacv1.PolicyRule
	for i := range wanted {
		for _, part := range parts(&wanted[i]) {
			if !slices.ContainsFunc(held, func(rule rbacv1.PolicyRule) bool { return covers(&rule, &part) }) {
				missing = append(missing, part)
			}
		}
	}
	return missing
}

// parts splits a rule into rules with one value a list.
func parts(rule *rbacv1.PolicyRule) []rbacv1.PolicyRule {
	var out []rbacv1.PolicyRule
	names := rule.ResourceNames
	if len(names) == 0 {
		names = []string{""}
	}
	for _, verb := range rule.Verbs {
		for _, url := range rule.NonResourceURLs {
			out = append(out, rbacv1.PolicyRule{Verbs: []string{verb}, NonResourceURLs: []string{url}})
		}
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, name := range names {
					part := rbacv1.PolicyRule{Verbs: []string{verb}, APIGroups: []string{group}, Resources: []string{resource}}
					if name != "" {
						part.ResourceNames = []string{name}
					}
					out = append(out, part)
				}
			}
		}
	}
	return out
}

// covers says whether rule permits all of part, which has one value a list. A
// wildcard in part is covered by a wildcard alone.
func covers(rule, part *rbacv1.PolicyRule) bool {
	if !contains(rule.Verbs, part.Verbs[0]) {
		return false
	}
	if len(part.NonResourceURLs) > 0 {
		return pathCovered(rule.NonResourceURLs, part.NonResourceURLs[0])
	}
	return contains(rule.APIGroups, part.APIGroups[0]) &&
		resourceCovered(rule.Resources, part.Resources[0]) &&
		(len(rule.ResourceNames) == 0 || len(part.ResourceNames) == 1 && slices.Contains(rule.ResourceNames, part.ResourceNames[0]))
}

func resourceCovered(list []string, resource string) bool {
	if contains(list, resource) {
		return true
	}
	_, subresource, ok := strings.Cut(resource, "/")
	return ok && slices.Contains(list, "*/"+subresource)
}

func pathCovered(list []string, path string) bool {
	for _, s := range list {
		if s == path || s == "*" {
			return true
		}
		if prefix, ok := strings.CutSuffix(s, "*"); ok && strings.HasPrefix(strings.TrimSuffix(path, "*"), prefix) {
			return true
		}
	}
	return false
}
