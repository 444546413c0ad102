package authz

import (
	"context"
	"fmt"
	"sync"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// RBAC allows what roles grant. It answers from an index by subject that Start
// keeps current, and before Start it allows nothing.
type RBAC struct {
	mu           sync.RWMutex
	clusterRoles map[string][]rbacv1.PolicyRule
	roles        map[namespaced][]rbacv1.PolicyRule
	cluster      bindings
	local        map[string]bindings // by namespace
	bound        map[namespaced]bool // the bindings that are indexed; cluster-wide ones have no namespace
	changed      chan struct{}       // closed at the next change
}

type namespaced struct{ namespace, name string }

// subject is one user or group.
type subject struct {
	group bool
	name  string
}

// grant is one binding as one of its subjects sees it.
type grant struct {
	role   rbacv1.RoleRef
	reason string // for an allowed action, made once
	source namespaced
}

// bindings are the grants of each subject.
type bindings map[subject][]grant

// NewRBAC makes an authorizer without rules.
func NewRBAC() *RBAC {
	return &RBAC{
		clusterRoles: map[string][]rbacv1.PolicyRule{}, roles: map[namespaced][]rbacv1.PolicyRule{},
		cluster: bindings{}, local: map[string]bindings{}, bound: map[namespaced]bool{}, changed: make(chan struct{}),
	}
}

// Start fills the index from what is stored, and follows changes until ctx ends.
func (r *RBAC) Start(ctx context.Context, state registry.Subscriber) error {
	for resource, handle := range map[string]func(old, new runtime.Object){
		"roles": follow(r.setRole), "clusterroles": follow(r.setClusterRole),
		"rolebindings": follow(r.setRoleBinding), "clusterrolebindings": follow(r.setClusterRoleBinding),
	} {
		if err := state.Subscribe(ctx, rbacv1.Resource(resource), handle); err != nil {
			return fmt.Errorf("following %s: %w", resource, err)
		}
	}
	return nil
}

// follow is set as a subscription's handler; objects of other types, which there
// are none of, count as absent.
func follow[T runtime.Object](set func(old, new T)) func(old, new runtime.Object) {
	return func(old, new runtime.Object) {
		o, _ := old.(T)
		n, _ := new.(T)
		set(o, n)
	}
}

// Changed is closed at the next change of a role or binding, for who must notice
// that a right has gone while it is used.
func (r *RBAC) Changed() <-chan struct{} {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.changed
}

// Await returns when the index has every role and binding that reader lists.
func (r *RBAC) Await(ctx context.Context, reader registry.Reader) error {
	for {
		changed := r.Changed()
		complete, err := r.has(ctx, reader)
		if err != nil || complete {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

func (r *RBAC) has(ctx context.Context, reader registry.Reader) (bool, error) {
	for _, resource := range []string{"roles", "clusterroles", "rolebindings", "clusterrolebindings"} {
		objects, err := reader.List(ctx, rbacv1.Resource(resource), "")
		if err != nil {
			return false, fmt.Errorf("listing %s: %w", resource, err)
		}
		if !r.indexes(objects) {
			return false, nil
		}
	}
	return true, nil
}

func (r *RBAC) indexes(objects []runtime.Object) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, obj := range objects {
		ok := true
		switch obj := obj.(type) {
		case *rbacv1.Role:
			_, ok = r.roles[namespaced{obj.Namespace, obj.Name}]
		case *rbacv1.ClusterRole:
			_, ok = r.clusterRoles[obj.Name]
		case *rbacv1.RoleBinding:
			ok = r.bound[namespaced{obj.Namespace, obj.Name}]
		case *rbacv1.ClusterRoleBinding:
			ok = r.bound[namespaced{"", obj.Name}]
		}
		if !ok {
			return false
		}
	}
	return true
}

// change locks the index for a change, and returns what ends it.
func (r *RBAC) change() (done func()) {
	r.mu.Lock()
	return func() {
		close(r.changed)
		r.changed = make(chan struct{})
		r.mu.Unlock()
	}
}

func (r *RBAC) setRole(old, new *rbacv1.Role) {
	defer r.change()()
	if new == nil {
		delete(r.roles, namespaced{old.Namespace, old.Name})
		return
	}
	r.roles[namespaced{new.Namespace, new.Name}] = new.Rules
}

func (r *RBAC) setClusterRole(old, new *rbacv1.ClusterRole) {
	defer r.change()()
	if new == nil {
		delete(r.clusterRoles, old.Name)
		return
	}
	r.clusterRoles[new.Name] = new.Rules
}

func (r *RBAC) setClusterRoleBinding(old, new *rbacv1.ClusterRoleBinding) {
	defer r.change()()
	if old != nil {
		delete(r.bound, namespaced{"", old.Name})
		r.cluster.remove(namespaced{"", old.Name}, old.Subjects, "")
	}
	if new != nil {
		r.bound[namespaced{"", new.Name}] = true
		reason := fmt.Sprintf("RBAC: allowed by ClusterRoleBinding %q of %s %q to ", new.Name, new.RoleRef.Kind, new.RoleRef.Name)
		r.cluster.add(namespaced{"", new.Name}, new.RoleRef, new.Subjects, "", reason)
	}
}

func (r *RBAC) setRoleBinding(old, new *rbacv1.RoleBinding) {
	defer r.change()()
	if old != nil {
		delete(r.bound, namespaced{old.Namespace, old.Name})
		in := r.local[old.Namespace]
		in.remove(namespaced{old.Namespace, old.Name}, old.Subjects, old.Namespace)
		if len(in) == 0 {
			delete(r.local, old.Namespace)
		}
	}
	if new != nil {
		r.bound[namespaced{new.Namespace, new.Name}] = true
		if r.local[new.Namespace] == nil {
			r.local[new.Namespace] = bindings{}
		}
		reason := fmt.Sprintf("RBAC: allowed by RoleBinding %q of %s %q to ", new.Name+"/"+new.Namespace, new.RoleRef.Kind, new.RoleRef.Name)
		r.local[new.Namespace].add(namespaced{new.Namespace, new.Name}, new.RoleRef, new.Subjects, new.Namespace, reason)
	}
}

func (b bindings) add(source namespaced, role rbacv1.RoleRef, subjects []rbacv1.Subject, namespace, reason string) {
	for _, s := range subjects {
		key := subjectOf(s, namespace)
		b[key] = append(b[key], grant{role: role, reason: reason + describe(s, namespace), source: source})
	}
}

func (b bindings) remove(source namespaced, subjects []rbacv1.Subject, namespace string) {
	for _, s := range subjects {
		key := subjectOf(s, namespace)
		// Readers hold the lock while they walk the slice, so it may be rewritten.
		kept := b[key][:0]
		for _, g := range b[key] {
			if g.source != source {
				kept = append(kept, g)
			}
		}
		if len(kept) == 0 {
			delete(b, key)
		} else {
			clear(b[key][len(kept):])
			b[key] = kept
		}
	}
}

// subjectOf is s as a user or group; a service account without a namespace is one
// of the binding's.
func subjectOf(s rbacv1.Subject, namespace string) subject {
	switch s.Kind {
	case rbacv1.GroupKind:
		return subject{group: true, name: s.Name}
	case rbacv1.ServiceAccountKind:
		if s.Namespace != "" {
			namespace = s.Namespace
		}
		return subject{name: "system:serviceaccount:" + namespace + ":" + s.Name}
	}
	return subject{name: s.Name}
}

func describe(s rbacv1.Subject, namespace string) string {
	if s.Kind == rbacv1.ServiceAccountKind {
		if s.Namespace != "" {
			namespace = s.Namespace
		}
		return fmt.Sprintf("%s %q", s.Kind, s.Name+"/"+namespace)
	}
	return fmt.Sprintf("%s %q", s.Kind, s.Name)
}

// Authorize implements Authorizer.
func (r *RBAC) Authorize(_ context.Context, a Attributes) (Decision, string, error) {
	if a.User == nil {
		return NoOpinion, "", nil
	}
	decision, reason := NoOpinion, ""
	r.visit(a.User, a.Namespace, func(g *grant, rules []rbacv1.PolicyRule) bool {
		for i := range rules {
			if RuleAllows(&rules[i], &a) {
				decision, reason = Allow, g.reason
				return false
			}
		}
		return true
	})
	return decision, reason, nil
}

// RulesFor are the rules that a user holds cluster-wide and, unless namespace is
// empty, in the namespace. They are shared and must not be changed.
func (r *RBAC) RulesFor(user *authn.User, namespace string) []rbacv1.PolicyRule {
	var held []rbacv1.PolicyRule
	r.visit(user, namespace, func(_ *grant, rules []rbacv1.PolicyRule) bool {
		held = append(held, rules...)
		return true
	})
	return held
}

// Rules implements RuleLister.
func (r *RBAC) Rules(user *authn.User, namespace string) ([]rbacv1.PolicyRule, error) {
	return r.RulesFor(user, namespace), nil
}

// RoleRules are the rules of the role that a binding in namespace ("" for a
// cluster-wide one) refers to; false when there is no such role.
func (r *RBAC) RoleRules(ref rbacv1.RoleRef, namespace string) ([]rbacv1.PolicyRule, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.rulesOf(ref, namespace)
}

// rulesOf is RoleRules. Caller must hold mu.
func (r *RBAC) rulesOf(ref rbacv1.RoleRef, namespace string) ([]rbacv1.PolicyRule, bool) {
	if ref.Kind == "Role" {
		rules, ok := r.roles[namespaced{namespace, ref.Name}]
		return rules, ok
	}
	rules, ok := r.clusterRoles[ref.Name]
	return rules, ok
}

// visit calls see with each grant of the user and its rules until see returns
// false.
func (r *RBAC) visit(user *authn.User, namespace string, see func(*grant, []rbacv1.PolicyRule) bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if !r.visitIn(r.cluster, "", user, see) || namespace == "" {
		return
	}
	r.visitIn(r.local[namespace], namespace, user, see)
}

// visitIn walks one set of bindings; false means that see had enough. Caller must
// hold mu.
func (r *RBAC) visitIn(in bindings, namespace string, user *authn.User, see func(*grant, []rbacv1.PolicyRule) bool) bool {
	if len(in) == 0 {
		return true
	}
	if !r.visitGrants(in[subject{name: user.Name}], namespace, see) {
		return false
	}
	for _, group := range user.Groups {
		if !r.visitGrants(in[subject{group: true, name: group}], namespace, see) {
			return false
		}
	}
	return true
}

func (r *RBAC) visitGrants(grants []grant, namespace string, see func(*grant, []rbacv1.PolicyRule) bool) bool {
	for i := range grants {
		if rules, ok := r.rulesOf(grants[i].role, namespace); ok && !see(&grants[i], rules) {
			return false
		}
	}
	return true
}
