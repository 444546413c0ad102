package authz_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/apiserver/internal/authz"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/statetest"
)

func clusterRole(name string, rules ...rbacv1.PolicyRule) *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
}

func role(namespace, name string, rules ...rbacv1.PolicyRule) *rbacv1.Role {
	return &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Rules: rules}
}

// rule is "verbs groups resources [names]" with commas; group "core" is the empty
// one. "verbs url paths" is for paths.
func rule(text string) rbacv1.PolicyRule {
	words := strings.Fields(text)
	split := func(i int) []string {
		if i >= len(words) {
			return nil
		}
		return strings.Split(strings.ReplaceAll(words[i], "core", ""), ",")
	}
	if words[1] == "url" {
		return rbacv1.PolicyRule{Verbs: split(0), NonResourceURLs: split(2)}
	}
	return rbacv1.PolicyRule{Verbs: split(0), APIGroups: split(1), Resources: split(2), ResourceNames: split(3)}
}

func subjects(text string) []rbacv1.Subject {
	var list []rbacv1.Subject
	for word := range strings.FieldsSeq(text) {
		kind, name, _ := strings.Cut(word, "=")
		switch kind {
		case "user":
			list = append(list, rbacv1.Subject{Kind: rbacv1.UserKind, Name: name})
		case "group":
			list = append(list, rbacv1.Subject{Kind: rbacv1.GroupKind, Name: name})
		case "account":
			namespace, account, ok := strings.Cut(name, "/")
			if !ok {
				namespace, account = "", name
			}
			list = append(list, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account})
		}
	}
	return list
}

func bindCluster(name, roleName, to string) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Subjects: subjects(to),
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: roleName},
	}
}

func bind(namespace, name, kind, roleName, to string) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Subjects: subjects(to),
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: roleName},
	}
}

func put(state *statetest.State, objects ...any) {
	for _, obj := range objects {
		switch obj := obj.(type) {
		case *rbacv1.ClusterRole:
			state.Put(rbacv1.Resource("clusterroles"), obj)
		case *rbacv1.Role:
			state.Put(rbacv1.Resource("roles"), obj)
		case *rbacv1.ClusterRoleBinding:
			state.Put(rbacv1.Resource("clusterrolebindings"), obj)
		case *rbacv1.RoleBinding:
			state.Put(rbacv1.Resource("rolebindings"), obj)
		default:
			panic(fmt.Sprintf("%T", obj))
		}
	}
}

func mustStart(t testing.TB, state *statetest.State) *authz.RBAC {
	t.Helper()
	rbac := authz.NewRBAC()
	if err := rbac.Start(t.Context(), state); err != nil {
		t.Fatal(err)
	}
	return rbac
}

// action is "verb group resource[/subresource] namespace name" with "-" for empty,
// or "verb /path".
func action(user *authn.User, text string) authz.Attributes {
	words := strings.Fields(text)
	if strings.HasPrefix(words[1], "/") {
		return authz.Attributes{User: user, Verb: words[0], Path: words[1]}
	}
	for i, word := range words {
		if word == "-" {
			words[i] = ""
		}
	}
	resource, subresource, _ := strings.Cut(words[2], "/")
	return authz.Attributes{
		User: user, ResourceRequest: true, Verb: words[0], APIGroup: words[1],
		Resource: resource, Subresource: subresource, Namespace: words[3], Name: words[4],
	}
}

func assertDecision(t *testing.T, authorizer authz.Authorizer, user *authn.User, text string, want authz.Decision) {
	t.Helper()
	decision, reason, err := authorizer.Authorize(t.Context(), action(user, text))
	if err != nil {
		t.Errorf("%s %s: %v", user.Name, text, err)
	}
	if decision != want {
		t.Errorf("%s %s: decision %v (%s), want %v", user.Name, text, decision, reason, want)
	}
}

func TestRBACDecisions(t *testing.T) {
	state := statetest.New()
	put(state,
		clusterRole("reader", rule("get,list core pods,pods/log"), rule("get url /healthz,/debug/*")),
		clusterRole("one", rule("get,update core configmaps only")),
		clusterRole("scaler", rule("update * */scale")),
		clusterRole("root", rule("* * *"), rule("* url *")),
		role("blue", "writer", rule("create,delete apps deployments")),
		role("green", "writer", rule("create core secrets")),
		bindCluster("readers", "reader", "group=readers user=carol"),
		bindCluster("scalers", "scaler", "account=kube-system/hpa"),
		bindCluster("roots", "root", "group=roots"),
		bindCluster("dangling", "missing", "user=dave"),
		bind("blue", "writers", "Role", "writer", "user=alice account=bot"),
		bind("blue", "readers", "ClusterRole", "reader", "user=bob"),
		bind("green", "one", "ClusterRole", "one", "user=alice"),
	)
	rbac := mustStart(t, state)
	user := func(name string, groups ...string) *authn.User { return &authn.User{Name: name, Groups: groups} }
	account := func(namespace, name string) *authn.User {
		return user("system:serviceaccount:" + namespace + ":" + name)
	}
	for _, c := range []struct {
		user *authn.User
		text string
		want authz.Decision
	}{
		{user("carol"), "get - pods blue p", authz.Allow},
		{user("carol"), "get - pods/log blue p", authz.Allow},
		{user("carol"), "get - pods/exec blue p", authz.NoOpinion},
		{user("carol"), "watch - pods blue -", authz.NoOpinion},
		{user("carol"), "get apps pods blue p", authz.NoOpinion},
		{user("carol"), "list - pods - -", authz.Allow},
		{user("x", "readers"), "list - pods blue -", authz.Allow},
		{user("readers"), "list - pods blue -", authz.NoOpinion},
		{user("x", "carol"), "list - pods blue -", authz.NoOpinion},
		{user("carol"), "get /healthz", authz.Allow},
		{user("carol"), "get /healthz/etcd", authz.NoOpinion},
		{user("carol"), "get /debug/pprof/heap", authz.Allow},
		{user("carol"), "post /debug/pprof", authz.NoOpinion},
		{user("alice"), "create apps deployments blue d", authz.Allow},
		{user("alice"), "create apps deployments green d", authz.NoOpinion},
		{user("alice"), "create apps deployments - d", authz.NoOpinion},
		{user("alice"), "create apps deployments/scale blue d", authz.NoOpinion},
		{user("alice"), "create - secrets green s", authz.NoOpinion},
		{account("blue", "bot"), "delete apps deployments blue d", authz.Allow},
		{account("green", "bot"), "delete apps deployments blue d", authz.NoOpinion},
		{user("bob"), "get - pods blue p", authz.Allow},
		{user("bob"), "get - pods green p", authz.NoOpinion},
		{user("bob"), "get - pods - p", authz.NoOpinion},
		{user("bob"), "get /healthz", authz.NoOpinion},
		{user("alice"), "get - configmaps green only", authz.Allow},
		{user("alice"), "get - configmaps green other", authz.NoOpinion},
		{user("alice"), "list - configmaps green -", authz.NoOpinion},
		{account("kube-system", "hpa"), "update apps deployments/scale blue d", authz.Allow},
		{account("kube-system", "hpa"), "update example.com boats/scale blue d", authz.Allow},
		{account("kube-system", "hpa"), "update apps deployments blue d", authz.NoOpinion},
		{account("kube-system", "hpa"), "update apps deployments/status blue d", authz.NoOpinion},
		{user("x", "roots"), "delete - nodes/proxy - n", authz.Allow},
		{user("x", "roots"), "delete /anything", authz.Allow},
		{user("dave"), "get - pods blue p", authz.NoOpinion},
		{user(""), "get - pods blue p", authz.NoOpinion},
	} {
		assertDecision(t, rbac, c.user, c.text, c.want)
	}
}

func TestRBACFollowsChanges(t *testing.T) {
	state := statetest.New()
	rbac := mustStart(t, state)
	alice, bob := &authn.User{Name: "alice"}, &authn.User{Name: "bob"}
	const get, list = "get - pods blue p", "list - pods blue -"
	assertDecision(t, rbac, alice, get, authz.NoOpinion)

	put(state, bind("blue", "b", "Role", "r", "user=alice user=alice"))
	assertDecision(t, rbac, alice, get, authz.NoOpinion)
	put(state, role("blue", "r", rule("get core pods")))
	assertDecision(t, rbac, alice, get, authz.Allow)
	put(state, role("blue", "r", rule("list core pods")))
	assertDecision(t, rbac, alice, get, authz.NoOpinion)
	assertDecision(t, rbac, alice, list, authz.Allow)
	put(state, bind("blue", "b", "Role", "r", "user=bob"))
	assertDecision(t, rbac, alice, list, authz.NoOpinion)
	assertDecision(t, rbac, bob, list, authz.Allow)
	put(state, bind("blue", "c", "Role", "r", "user=bob"))
	if err := state.Delete(t.Context(), rbacv1.Resource("rolebindings"), "blue", "b", nil, false); err != nil {
		t.Fatal(err)
	}
	assertDecision(t, rbac, bob, list, authz.Allow)
	if err := state.Delete(t.Context(), rbacv1.Resource("rolebindings"), "blue", "c", nil, false); err != nil {
		t.Fatal(err)
	}
	assertDecision(t, rbac, bob, list, authz.NoOpinion)

	put(state, clusterRole("r", rule("get core pods")), bindCluster("b", "r", "user=alice"))
	assertDecision(t, rbac, alice, get, authz.Allow)
	if err := state.Delete(t.Context(), rbacv1.Resource("clusterroles"), "", "r", nil, false); err != nil {
		t.Fatal(err)
	}
	assertDecision(t, rbac, alice, get, authz.NoOpinion)
}

func TestRBACTellsOfChanges(t *testing.T) {
	state := statetest.New()
	rbac := mustStart(t, state)
	changed := rbac.Changed()
	put(state, clusterRole("r", rule("get core pods")))
	<-changed
	changed = rbac.Changed()
	select {
	case <-changed:
		t.Error("told of a change that there was not")
	default:
	}
}

// behind is a state whose subscribers hear of nothing until they are let.
type behind struct {
	*statetest.State
	held []func()
}

func (b *behind) Subscribe(ctx context.Context, resource schema.GroupResource, handle func(old, new runtime.Object)) error {
	return b.State.Subscribe(ctx, resource, func(old, new runtime.Object) { b.held = append(b.held, func() { handle(old, new) }) })
}

func TestRBACAwaitsWhatIsStored(t *testing.T) {
	state := &behind{State: statetest.New()}
	put(state.State, clusterRole("c", rule("get core pods")), role("blue", "r", rule("get core pods")), bindCluster("cb", "c", "user=a"), bind("blue", "b", "Role", "r", "user=a"))
	rbac := authz.NewRBAC()
	if err := rbac.Start(t.Context(), state); err != nil {
		t.Fatal(err)
	}
	for _, deliver := range state.held {
		ended, end := context.WithCancel(t.Context())
		end()
		if err := rbac.Await(ended, state); !errors.Is(err, context.Canceled) {
			t.Errorf("an index without everything is complete: %v", err)
		}
		deliver()
	}
	if err := rbac.Await(t.Context(), state); err != nil {
		t.Error(err)
	}
}

func TestRBACNamesTheBindingThatAllows(t *testing.T) {
	state := statetest.New()
	put(state, clusterRole("reader", rule("get core pods")), bindCluster("readers", "reader", "group=dev"), bind("blue", "b", "ClusterRole", "reader", "account=bot"))
	rbac := mustStart(t, state)
	for user, want := range map[*authn.User]string{
		{Name: "x", Groups: []string{"dev"}}:     `RBAC: allowed by ClusterRoleBinding "readers" of ClusterRole "reader" to Group "dev"`,
		{Name: "system:serviceaccount:blue:bot"}: `RBAC: allowed by RoleBinding "b/blue" of ClusterRole "reader" to ServiceAccount "bot/blue"`,
	} {
		if _, reason, _ := rbac.Authorize(t.Context(), action(user, "get - pods blue p")); reason != want {
			t.Errorf("reason %q, want %q", reason, want)
		}
	}
}

func TestUncovered(t *testing.T) {
	for _, c := range []struct {
		held, wanted string
		missing      int
	}{
		{"* * *", "get,list core,apps pods,deployments/scale name", 0},
		{"* * *", "get url /x", 1},
		{"* url *", "get url /x,/y/*", 0},
		{"get url /y/*", "get url /y/z,/y/*,/y/z/*", 0},
		{"get url /y/*", "get url /y,*", 2},
		{"get core pods", "get core pods", 0},
		{"get core pods", "get core pods/log", 1},
		{"get core pods a,b", "get core pods a", 0},
		{"get core pods a,b", "get core pods", 1},
		{"get core pods a", "get core pods a,b,c", 2},
		{"get core pods", "get core pods a", 0},
		{"update * */scale", "update apps deployments/scale,deployments", 1},
		{"get core pods", "* core pods", 1},
		{"get core pods", "get * pods", 1},
		{"get core pods", "get core *", 1},
	} {
		if got := authz.Uncovered([]rbacv1.PolicyRule{rule(c.held)}, []rbacv1.PolicyRule{rule(c.wanted)}); len(got) != c.missing {
			t.Errorf("held %q, wanted %q: missing %v, want %d", c.held, c.wanted, got, c.missing)
		}
	}
}

func TestModes(t *testing.T) {
	rbac, node := authz.NewRBAC(), authz.NewNode()
	for _, modes := range [][]string{nil, {"ABAC"}, {"RBAC", "RBAC"}, {"rbac"}} {
		if _, err := authz.FromModes(modes, rbac, node); err == nil {
			t.Errorf("modes %v were accepted", modes)
		}
	}
	union, err := authz.FromModes([]string{"Node", "RBAC"}, rbac, node)
	if err != nil {
		t.Fatal(err)
	}
	assertDecision(t, union, &authn.User{Name: "x", Groups: []string{authn.MastersGroup}}, "delete - nodes - n", authz.Allow)
	assertDecision(t, union, &authn.User{Name: authn.MastersGroup}, "delete - nodes - n", authz.NoOpinion)
	open, err := authz.FromModes([]string{"AlwaysAllow"}, rbac, node)
	if err != nil {
		t.Fatal(err)
	}
	assertDecision(t, open, &authn.User{Name: "x"}, "delete - nodes - n", authz.Allow)
}

// BenchmarkRBAC decides for a user among 1,000 namespaces with their own bindings.
func BenchmarkRBAC(b *testing.B) {
	state := statetest.New()
	for i := range 1000 {
		namespace := fmt.Sprintf("ns-%d", i)
		put(state, role(namespace, "r", rule("get core pods")), bind(namespace, "b", "Role", "r", fmt.Sprintf("user=u-%d group=all", i)))
	}
	var rules []rbacv1.PolicyRule
	for i := range 40 {
		rules = append(rules, rule(fmt.Sprintf("get,list,watch,create,update example.com things%d", i)))
	}
	put(state, clusterRole("big", append(rules, rule("get,list apps deployments"))...), bindCluster("big", "big", "group=system:authenticated"))
	rbac := mustStart(b, state)
	user := &authn.User{Name: "u-7", Groups: []string{"all", "system:authenticated"}}
	for _, c := range []struct{ name, text string }{
		{"Namespaced", "get - pods ns-7 p"}, {"Late", "list apps deployments ns-7 -"}, {"Denied", "delete - secrets ns-7 s"},
	} {
		attributes := action(user, c.text)
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := rbac.Authorize(b.Context(), attributes); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
