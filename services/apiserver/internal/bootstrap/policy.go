// Package bootstrap ensures what every client of a cluster takes for granted: the
// system namespaces, RBAC's bootstrap roles, the system PriorityClasses, the
// kubernetes and kube-dns Services, and what extension API servers and joining
// nodes read.
package bootstrap

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

//go:embed policy.txt
var policyText string

// Policy is a set of roles and bindings.
type Policy struct {
	ClusterRoles        []*rbacv1.ClusterRole
	ClusterRoleBindings []*rbacv1.ClusterRoleBinding
	Roles               []*rbacv1.Role
	RoleBindings        []*rbacv1.RoleBinding
}

// DefaultPolicy is the policy that a cluster begins with. Aggregated roles carry
// the rules that they gather from the others.
func DefaultPolicy() *Policy {
	policy, err := parsePolicy(policyText)
	if err != nil {
		panic(err) // the text is part of the program, and tested
	}
	for _, role := range policy.ClusterRoles {
		if role.AggregationRule != nil {
			role.Rules = policy.aggregate(role, nil)
		}
	}
	return policy
}

// aggregate gathers the rules of the roles that role selects, through roles that
// are aggregated themselves.
func (p *Policy) aggregate(role *rbacv1.ClusterRole, seen []string) []rbacv1.PolicyRule {
	roles := slices.Clone(p.ClusterRoles)
	for i, other := range roles {
		if other.AggregationRule == nil || other.Name == role.Name || slices.Contains(seen, other.Name) {
			continue
		}
		expanded := other.DeepCopy()
		expanded.Rules = p.aggregate(other, append(seen, role.Name))
		roles[i] = expanded
	}
	return Aggregated(role, roles)
}

// section is the role that following lines belong to.
type section struct {
	meta        metav1.ObjectMeta
	cluster     bool
	rules       []rbacv1.PolicyRule
	aggregation *rbacv1.AggregationRule
	bound       bool
	binding     string // name of the binding
	role        string // of a grant: the role it refers to; "" defines one
	subjects    []rbacv1.Subject
}

func parsePolicy(text string) (*Policy, error) {
	policy := &Policy{}
	var current *section
	number := 0
	for line := range strings.Lines(text) {
		number++
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		var err error
		if line[0] != ' ' {
			policy.add(current)
			current, err = newSection(words)
		} else if current == nil {
			err = fmt.Errorf("a rule without a role")
		} else {
			err = current.parse(words)
		}
		if err != nil {
			return nil, fmt.Errorf("bootstrap policy, line %d: %w", number, err)
		}
	}
	policy.add(current)
	return policy, nil
}

func newSection(words []string) (*section, error) {
	s := &section{cluster: true}
	kind := words[0]
	switch {
	case kind == "clusterrole" && len(words) == 2:
		s.meta.Name = words[1]
	case kind == "controller" && len(words) == 2:
		s.meta.Name = "system:controller:" + words[1]
		s.bound = true
		s.subjects = []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceSystem, Name: words[1]}}
	case kind == "role" && len(words) == 3:
		s.cluster = false
		s.meta.Namespace, s.meta.Name = words[1], words[2]
	case kind == "grant" && len(words) == 3:
		s.meta.Name, s.role = words[1], words[2]
	default:
		return nil, fmt.Errorf("unknown section %q", strings.Join(words, " "))
	}
	s.binding = s.meta.Name
	s.meta.Labels = map[string]string{"kubernetes.io/bootstrapping": "rbac-defaults"}
	s.meta.Annotations = map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"}
	return s, nil
}

func (s *section) parse(words []string) error {
	switch {
	case words[0] == "events" && len(words) == 1:
		s.rules = append(s.rules, rbacv1.PolicyRule{
			Verbs: []string{"create", "patch", "update"}, APIGroups: []string{"", "events.k8s.io"}, Resources: []string{"events"},
		})
	case words[0] == "label" && len(words) == 2:
		s.meta.Labels[words[1]] = "true"
	case words[0] == "aggregates" && len(words) == 2:
		s.aggregation = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{words[1]: "true"}}}}
	case words[0] == "as" && len(words) == 2:
		s.binding = words[1]
	case words[0] == "to" && len(words) >= 2:
		return s.hold(words[1], words[2:])
	default:
		return s.grant(words)
	}
	return nil
}

// grant adds a rule.
func (s *section) grant(words []string) error {
	if len(words) != 3 && len(words) != 4 {
		return fmt.Errorf("unknown rule %q", strings.Join(words, " "))
	}
	if words[1] == "url" {
		s.rules = append(s.rules, rbacv1.PolicyRule{Verbs: verbs(words[0]), NonResourceURLs: strings.Split(words[2], ",")})
		return nil
	}
	rule := rbacv1.PolicyRule{Verbs: verbs(words[0]), APIGroups: groups(words[1]), Resources: strings.Split(words[2], ",")}
	if len(words) == 4 {
		rule.ResourceNames = strings.Split(words[3], ",")
	}
	s.rules = append(s.rules, rule)
	return nil
}

// hold adds holders; "none" makes a binding that nobody holds.
func (s *section) hold(kind string, names []string) error {
	s.bound = true
	for _, name := range names {
		switch kind {
		case "group":
			s.subjects = append(s.subjects, rbacv1.Subject{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: name})
		case "user":
			s.subjects = append(s.subjects, rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: name})
		case "account":
			namespace, account, ok := strings.Cut(name, "/")
			if !ok {
				return fmt.Errorf("account %q has no namespace", name)
			}
			s.subjects = append(s.subjects, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account})
		default:
			return fmt.Errorf("unknown kind of holder %q", kind)
		}
	}
	if kind != "none" && len(names) == 0 {
		return fmt.Errorf("holders without a name")
	}
	return nil
}

func (p *Policy) add(s *section) {
	if s == nil {
		return
	}
	kind, role := "ClusterRole", s.role
	switch {
	case s.role != "":
	case s.cluster:
		role = s.meta.Name
		p.ClusterRoles = append(p.ClusterRoles, &rbacv1.ClusterRole{ObjectMeta: s.meta, Rules: s.rules, AggregationRule: s.aggregation})
	default:
		kind, role = "Role", s.meta.Name
		p.Roles = append(p.Roles, &rbacv1.Role{ObjectMeta: s.meta, Rules: s.rules})
	}
	if !s.bound {
		return
	}
	meta := metav1.ObjectMeta{
		Namespace: s.meta.Namespace, Name: s.binding, Annotations: s.meta.Annotations,
		Labels: map[string]string{"kubernetes.io/bootstrapping": "rbac-defaults"},
	}
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: role}
	if s.cluster {
		p.ClusterRoleBindings = append(p.ClusterRoleBindings, &rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: s.subjects})
		return
	}
	p.RoleBindings = append(p.RoleBindings, &rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: s.subjects})
}

func verbs(word string) []string {
	var list []string
	for verb := range strings.SplitSeq(word, ",") {
		switch verb {
		case "read":
			list = append(list, "get", "list", "watch")
		case "write":
			list = append(list, "create", "delete", "deletecollection", "patch", "update")
		default:
			list = append(list, verb)
		}
	}
	slices.Sort(list)
	return list
}

func groups(word string) []string {
	list := strings.Split(word, ",")
	for i, group := range list {
		if group == "core" {
			list[i] = ""
		}
	}
	return list
}
