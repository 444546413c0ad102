package rbac_test

import (
	"context"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/apiserver/internal/authz"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/rbac"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/statetest"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
)

func policy(verb, group, resource string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: []string{verb}, APIGroups: []string{group}, Resources: []string{resource}}
}

// newResources are the kinds over a state in which alice may read pods in blue,
// eve may escalate roles there and bind ClusterRole view, and root may do all.
func newResources(t *testing.T) map[string]*registry.Resource {
	t.Helper()
	state := statetest.New()
	put := func(name string, rules ...rbacv1.PolicyRule) {
		state.Put(rbacv1.Resource("clusterroles"), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules})
	}
	put("view", policy("get", "", "pods"), policy("list", "", "secrets"))
	put("pods", policy("get", "", "pods"))
	put("special", policy("escalate", rbacv1.GroupName, "roles"), rbacv1.PolicyRule{
		Verbs: []string{"bind"}, APIGroups: []string{rbacv1.GroupName}, Resources: []string{"clusterroles"}, ResourceNames: []string{"view"},
	})
	for user, role := range map[string]string{"alice": "pods", "eve": "special"} {
		state.Put(rbacv1.Resource("rolebindings"), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: user}, Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, Name: user}},
			RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: role},
		})
	}
	rules := authz.NewRBAC()
	if err := rules.Start(t.Context(), state); err != nil {
		t.Fatal(err)
	}
	resources := map[string]*registry.Resource{}
	for _, r := range rbac.Resources(rules, authz.Union{authz.Masters{}, rules}) {
		resources[r.Resource] = r
	}
	return resources
}

// as is a request's context.
func as(t *testing.T, name string, groups ...string) context.Context {
	t.Helper()
	return request.WithUser(t.Context(), &authn.User{Name: name, Groups: groups})
}

func begin(ctx context.Context, r *registry.Resource, obj, old runtime.Object) error {
	_, err := r.Strategy.Begin(ctx, obj, old, false)
	return err
}

func TestNobodyGrantsWhatTheyDoNotHold(t *testing.T) {
	resources := newResources(t)
	role := func(rules ...rbacv1.PolicyRule) *rbacv1.Role {
		return &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "r"}, Rules: rules}
	}
	binding := func(kind, name string) *rbacv1.RoleBinding {
		return &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "b"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}}
	}
	everywhere := func(name string) *rbacv1.ClusterRoleBinding {
		return &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "b"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}}
	}
	aggregated := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "a"}, AggregationRule: &rbacv1.AggregationRule{
		ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"a": "b"}}},
	}}
	freed := role(policy("*", "*", "*"))
	freed.Finalizers = []string{"x"}
	for name, c := range map[string]struct {
		ctx      context.Context
		resource string
		obj, old runtime.Object
		refused  func(error) bool
	}{
		"a held rule":                  {as(t, "alice"), "roles", role(policy("get", "", "pods")), nil, nil},
		"a rule not held":              {as(t, "alice"), "roles", role(policy("get", "", "secrets")), nil, apierrors.IsForbidden},
		"one of two not held":          {as(t, "alice"), "roles", role(policy("get", "", "pods"), policy("delete", "", "pods")), nil, apierrors.IsForbidden},
		"a held rule, cluster-wide":    {as(t, "alice"), "clusterroles", &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Rules: []rbacv1.PolicyRule{policy("get", "", "pods")}}, nil, apierrors.IsForbidden},
		"a rule added":                 {as(t, "alice"), "roles", role(policy("get", "", "pods"), policy("delete", "", "pods")), role(policy("get", "", "pods")), apierrors.IsForbidden},
		"finalizers only":              {as(t, "alice"), "roles", freed, role(policy("*", "*", "*")), nil},
		"escalate":                     {as(t, "eve"), "roles", role(policy("*", "*", "*")), nil, nil},
		"escalate on roles only":       {as(t, "eve"), "clusterroles", &rbacv1.ClusterRole{Rules: []rbacv1.PolicyRule{policy("get", "", "pods")}}, nil, apierrors.IsForbidden},
		"masters":                      {as(t, "root", authn.MastersGroup), "roles", role(policy("*", "*", "*")), nil, nil},
		"the server itself":            {t.Context(), "roles", role(policy("*", "*", "*")), nil, nil},
		"binding a role one holds":     {as(t, "alice"), "rolebindings", binding("ClusterRole", "pods"), nil, nil},
		"binding a larger role":        {as(t, "alice"), "rolebindings", binding("ClusterRole", "view"), nil, apierrors.IsForbidden},
		"binding it everywhere":        {as(t, "alice"), "clusterrolebindings", everywhere("pods"), nil, apierrors.IsForbidden},
		"bind":                         {as(t, "eve"), "rolebindings", binding("ClusterRole", "view"), nil, nil},
		"bind another":                 {as(t, "eve"), "rolebindings", binding("ClusterRole", "pods"), nil, apierrors.IsForbidden},
		"bind everywhere":              {as(t, "eve"), "clusterrolebindings", everywhere("view"), nil, apierrors.IsForbidden},
		"a role that does not exist":   {as(t, "alice"), "rolebindings", binding("Role", "absent"), nil, apierrors.IsNotFound},
		"masters may bind what is not": {as(t, "root", authn.MastersGroup), "rolebindings", binding("Role", "absent"), nil, nil},
		"aggregation":                  {as(t, "alice"), "clusterroles", aggregated, nil, apierrors.IsForbidden},
		"aggregation by masters":       {as(t, "root", authn.MastersGroup), "clusterroles", aggregated, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			err := begin(c.ctx, resources[c.resource], c.obj, c.old)
			if c.refused == nil && err != nil || c.refused != nil && !c.refused(err) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestRefusalNamesWhatIsMissing(t *testing.T) {
	resources := newResources(t)
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "r"}, Rules: []rbacv1.PolicyRule{
		{Verbs: []string{"list", "watch"}, APIGroups: []string{""}, Resources: []string{"secrets", "pods"}},
	}}
	const want = `roles.rbac.authorization.k8s.io "r" is forbidden: user "alice" (groups=["dev"]) is attempting to grant RBAC permissions not currently held:
{APIGroups:[""], Resources:["pods"], Verbs:["list" "watch"]}
{APIGroups:[""], Resources:["secrets"], Verbs:["list" "watch"]}`
	if err := begin(as(t, "alice", "dev"), resources["roles"], role, nil); err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}
}

func TestValidation(t *testing.T) {
	resources := newResources(t)
	bound := func(kind string, subjects ...rbacv1.Subject) *rbacv1.RoleBinding {
		return &rbacv1.RoleBinding{RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: "r"}, Subjects: subjects}
	}
	everywhere := func(kind string, subjects ...rbacv1.Subject) *rbacv1.ClusterRoleBinding {
		return &rbacv1.ClusterRoleBinding{RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: "r"}, Subjects: subjects}
	}
	role := func(rule rbacv1.PolicyRule) *rbacv1.Role { return &rbacv1.Role{Rules: []rbacv1.PolicyRule{rule}} }
	for name, c := range map[string]struct {
		resource string
		obj      runtime.Object
		want     []string // field paths
	}{
		"good role":          {"roles", role(policy("get", "", "pods")), nil},
		"no verbs":           {"roles", role(rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}}), []string{"rules[0].verbs"}},
		"empty rule":         {"roles", role(rbacv1.PolicyRule{}), []string{"rules[0].verbs", "rules[0].apiGroups", "rules[0].resources"}},
		"paths in a role":    {"roles", role(rbacv1.PolicyRule{Verbs: []string{"get"}, NonResourceURLs: []string{"/x"}}), []string{"rules[0].nonResourceURLs"}},
		"paths and more":     {"clusterroles", &rbacv1.ClusterRole{Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, NonResourceURLs: []string{"/x"}, Resources: []string{"pods"}}}}, []string{"rules[0].nonResourceURLs"}},
		"nothing aggregated": {"clusterroles", &rbacv1.ClusterRole{AggregationRule: &rbacv1.AggregationRule{}}, []string{"aggregationRule.clusterRoleSelectors"}},
		"bad selector": {"clusterroles", &rbacv1.ClusterRole{AggregationRule: &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{
			{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}},
		}}}, []string{"aggregationRule.clusterRoleSelectors[0].matchExpressions[0].operator"}},
		"good binding":      {"rolebindings", bound("Role", rbacv1.Subject{Kind: "User", APIGroup: rbacv1.GroupName, Name: "a"}, rbacv1.Subject{Kind: "ServiceAccount", Name: "b"}), nil},
		"other role kind":   {"rolebindings", bound("ConfigMap"), []string{"roleRef.kind"}},
		"role everywhere":   {"clusterrolebindings", everywhere("Role"), []string{"roleRef.kind"}},
		"no role name":      {"rolebindings", &rbacv1.RoleBinding{RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role"}}, []string{"roleRef.name"}},
		"path as role name": {"rolebindings", &rbacv1.RoleBinding{RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "../x"}}, []string{"roleRef.name"}},
		"other group":       {"rolebindings", &rbacv1.RoleBinding{RoleRef: rbacv1.RoleRef{APIGroup: "x", Kind: "Role", Name: "r"}}, []string{"roleRef.apiGroup"}},
		"nameless subject":  {"rolebindings", bound("Role", rbacv1.Subject{Kind: "User", APIGroup: rbacv1.GroupName}), []string{"subjects[0].name"}},
		"other subject":     {"rolebindings", bound("Role", rbacv1.Subject{Kind: "Robot", Name: "x"}), []string{"subjects[0].kind"}},
		"account's group":   {"rolebindings", bound("Role", rbacv1.Subject{Kind: "ServiceAccount", APIGroup: rbacv1.GroupName, Name: "x"}), []string{"subjects[0].apiGroup"}},
		"account's name":    {"rolebindings", bound("Role", rbacv1.Subject{Kind: "ServiceAccount", Name: "a:b"}), []string{"subjects[0].name"}},
		"account nowhere":   {"clusterrolebindings", everywhere("ClusterRole", rbacv1.Subject{Kind: "ServiceAccount", Name: "x"}), []string{"subjects[0].namespace"}},
	} {
		t.Run(name, func(t *testing.T) {
			errs := resources[c.resource].Strategy.Validate(t.Context(), c.obj)
			var got []string
			for _, err := range errs {
				got = append(got, err.Field)
			}
			if strings.Join(got, " ") != strings.Join(c.want, " ") {
				t.Errorf("got %v", errs)
			}
		})
	}
}

func TestRoleRefCannotChange(t *testing.T) {
	resources := newResources(t)
	old := &rbacv1.RoleBinding{RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "a"}}
	obj := old.DeepCopy()
	obj.RoleRef.Name = "b"
	errs := resources["rolebindings"].Strategy.ValidateUpdate(t.Context(), obj, old)
	if len(errs) != 1 || !strings.Contains(errs[0].Error(), "cannot change roleRef") {
		t.Errorf("got %v", errs)
	}
}

func TestBindingIsDefaultedAndPrinted(t *testing.T) {
	r := newResources(t)["rolebindings"]
	binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "b"}, RoleRef: rbacv1.RoleRef{Kind: "Role", Name: "r"}, Subjects: []rbacv1.Subject{
		{Kind: "User", Name: "u"}, {Kind: "User", Name: "v"}, {Kind: "Group", Name: "g"}, {Kind: "ServiceAccount", Namespace: "n", Name: "s"},
	}}
	r.Strategy.Default(binding)
	if binding.RoleRef.APIGroup != rbacv1.GroupName || binding.Subjects[2].APIGroup != rbacv1.GroupName || binding.Subjects[3].APIGroup != "" {
		t.Errorf("binding %+v", binding)
	}
	row := r.Table.Row(binding)
	if len(row) != len(r.Table.Columns) || row[1] != "Role/r" || row[3] != "u, v" || row[4] != "g" || row[5] != "n/s" {
		t.Errorf("row %v", row)
	}
}
