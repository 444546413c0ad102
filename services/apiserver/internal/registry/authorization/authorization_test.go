package authorization_test

import (
	"context"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/apiserver/internal/authz"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/authorization"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/statetest"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
)

func newResources(t *testing.T) map[string]*registry.Resource {
	t.Helper()
	state := statetest.New()
	state.Put(rbacv1.Resource("roles"), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "r"}, Rules: []rbacv1.PolicyRule{
		{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}},
	}})
	state.Put(rbacv1.Resource("rolebindings"), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "b"}, RoleRef: rbacv1.RoleRef{Kind: "Role", Name: "r"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, Name: "alice"}, {Kind: rbacv1.GroupKind, Name: "dev"}},
	})
	rbac, node := authz.NewRBAC(), authz.NewNode()
	if err := rbac.Start(t.Context(), state); err != nil {
		t.Fatal(err)
	}
	union, err := authz.FromModes([]string{"Node", "RBAC"}, rbac, node)
	if err != nil {
		t.Fatal(err)
	}
	resources := map[string]*registry.Resource{}
	for _, r := range authorization.Resources(union, union) {
		resources[r.Resource] = r
	}
	return resources
}

func ask[T runtime.Object](ctx context.Context, r *registry.Resource, obj T) (T, error) {
	if errs := r.Strategy.Validate(ctx, obj); len(errs) > 0 {
		return obj, errs.ToAggregate()
	}
	answer, err := r.CreateOnly(ctx, obj, false)
	if err != nil {
		return obj, err
	}
	return answer.(T), nil
}

func getPods(namespace string) *authorizationv1.ResourceAttributes {
	return &authorizationv1.ResourceAttributes{Verb: "get", Resource: "pods", Namespace: namespace, Name: "p"}
}

func TestSubjectAccessReview(t *testing.T) {
	r := newResources(t)["subjectaccessreviews"]
	for name, c := range map[string]struct {
		spec authorizationv1.SubjectAccessReviewSpec
		want bool
	}{
		"user":              {authorizationv1.SubjectAccessReviewSpec{User: "alice", ResourceAttributes: getPods("blue")}, true},
		"group":             {authorizationv1.SubjectAccessReviewSpec{Groups: []string{"dev"}, ResourceAttributes: getPods("blue")}, true},
		"another":           {authorizationv1.SubjectAccessReviewSpec{User: "bob", ResourceAttributes: getPods("blue")}, false},
		"another namespace": {authorizationv1.SubjectAccessReviewSpec{User: "alice", ResourceAttributes: getPods("green")}, false},
		"a path":            {authorizationv1.SubjectAccessReviewSpec{User: "alice", NonResourceAttributes: &authorizationv1.NonResourceAttributes{Verb: "get", Path: "/metrics"}}, false},
		"a node by selector": {authorizationv1.SubjectAccessReviewSpec{User: "system:node:n", Groups: []string{"system:nodes"}, ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: "list", Resource: "pods",
			FieldSelector: &authorizationv1.FieldSelectorAttributes{Requirements: []metav1.FieldSelectorRequirement{{Key: "spec.nodeName", Operator: metav1.FieldSelectorOpIn, Values: []string{"n"}}}},
		}}, true},
		"a node by two": {authorizationv1.SubjectAccessReviewSpec{User: "system:node:n", Groups: []string{"system:nodes"}, ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: "list", Resource: "pods",
			FieldSelector: &authorizationv1.FieldSelectorAttributes{Requirements: []metav1.FieldSelectorRequirement{{Key: "spec.nodeName", Operator: metav1.FieldSelectorOpIn, Values: []string{"n", "m"}}}},
		}}, false},
	} {
		answer, err := ask(t.Context(), r, &authorizationv1.SubjectAccessReview{Spec: c.spec})
		if err != nil || answer.Status.Allowed != c.want {
			t.Errorf("%s: %+v, %v", name, answer.Status, err)
		}
	}
	for name, spec := range map[string]authorizationv1.SubjectAccessReviewSpec{
		"nobody":  {ResourceAttributes: getPods("blue")},
		"nothing": {User: "alice"},
		"both":    {User: "alice", ResourceAttributes: getPods("blue"), NonResourceAttributes: &authorizationv1.NonResourceAttributes{}},
		"an empty selector": {User: "alice", ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: "list", Resource: "pods", FieldSelector: &authorizationv1.FieldSelectorAttributes{},
		}},
	} {
		if _, err := ask(t.Context(), r, &authorizationv1.SubjectAccessReview{Spec: spec}); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func TestLocalSubjectAccessReviewKeepsToItsNamespace(t *testing.T) {
	r := newResources(t)["localsubjectaccessreviews"]
	ctx := request.WithInfo(t.Context(), &request.Info{Namespace: "blue"})
	review := func(namespace string) *authorizationv1.LocalSubjectAccessReview {
		return &authorizationv1.LocalSubjectAccessReview{
			ObjectMeta: metav1.ObjectMeta{Namespace: "blue"},
			Spec:       authorizationv1.SubjectAccessReviewSpec{User: "alice", ResourceAttributes: getPods(namespace)},
		}
	}
	if answer, err := ask(ctx, r, review("blue")); err != nil || !answer.Status.Allowed {
		t.Errorf("%+v, %v", answer.Status, err)
	}
	if _, err := ask(ctx, r, review("green")); err == nil {
		t.Error("another namespace was accepted")
	}
	bare := review("green")
	bare.Namespace = ""
	if _, err := ask(ctx, r, bare); !apierrors.IsBadRequest(err) {
		t.Errorf("got %v", err)
	}
}

func TestSelfReviews(t *testing.T) {
	resources := newResources(t)
	alice := request.WithUser(t.Context(), &authn.User{Name: "alice"})
	access, err := ask(alice, resources["selfsubjectaccessreviews"], &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: getPods("blue")},
	})
	if err != nil || !access.Status.Allowed {
		t.Errorf("%+v, %v", access.Status, err)
	}
	rules := func(ctx context.Context, namespace string) (*authorizationv1.SelfSubjectRulesReview, error) {
		return ask(ctx, resources["selfsubjectrulesreviews"], &authorizationv1.SelfSubjectRulesReview{
			Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace},
		})
	}
	answer, err := rules(alice, "blue")
	if err != nil || answer.Status.Incomplete || len(answer.Status.ResourceRules) != 1 || answer.Status.ResourceRules[0].Resources[0] != "pods" {
		t.Errorf("%+v, %v", answer.Status, err)
	}
	if answer, err := rules(alice, "green"); err != nil || len(answer.Status.ResourceRules) != 0 {
		t.Errorf("%+v, %v", answer.Status, err)
	}
	if _, err := rules(alice, ""); !apierrors.IsBadRequest(err) {
		t.Errorf("no namespace: %v", err)
	}
	root := request.WithUser(t.Context(), &authn.User{Name: "root", Groups: []string{authn.MastersGroup}})
	if answer, err := rules(root, "blue"); err != nil || answer.Status.ResourceRules[0].Verbs[0] != "*" || len(answer.Status.NonResourceRules) != 1 {
		t.Errorf("%+v, %v", answer.Status, err)
	}
	node := request.WithUser(t.Context(), &authn.User{Name: "system:node:n", Groups: []string{authn.NodesGroup}})
	if answer, err := rules(node, "blue"); err != nil || !answer.Status.Incomplete || answer.Status.EvaluationError == "" {
		t.Errorf("%+v, %v", answer.Status, err)
	}
}
