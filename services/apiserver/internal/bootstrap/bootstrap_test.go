package bootstrap_test

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"pgregory.net/rapid"

	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/apiserver/internal/authz"
	"github.com/sampan-io/sampan/services/apiserver/internal/bootstrap"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/statetest"
)

func config() bootstrap.Config {
	return bootstrap.Config{
		AdvertiseAddress: net.IPv4(10, 89, 0, 1), SecurePort: 6443,
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
		ServiceIP:    net.IPv4(10, 96, 0, 1), DNSIP: net.IPv4(10, 96, 0, 10),
		ClientCA:    []byte("CLIENT CA"),
		ClusterInfo: "kubeconfig",
		RequestHeader: bootstrap.RequestHeader{
			ClientCA: []byte("PROXY CA"), AllowedNames: []string{"front-proxy-client"}, UserHeaders: []string{"X-Remote-User"},
		},
	}
}

func mustEnsure(t testing.TB, state registry.State, cfg bootstrap.Config) {
	t.Helper()
	if err := bootstrap.Ensure(t.Context(), state, cfg); err != nil {
		t.Fatal(err)
	}
}

func mustGet[T any](t testing.TB, state registry.State, resource schema.GroupResource, namespace, name string) T {
	t.Helper()
	obj, err := state.Get(t.Context(), resource, namespace, name)
	if err != nil {
		t.Fatal(err)
	}
	return obj.(any).(T)
}

func TestEnsureWritesNothingTheSecondTime(t *testing.T) {
	state := statetest.New()
	mustEnsure(t, state, config())
	first, writes := state.Dump(), state.Writes()
	mustEnsure(t, state, config())
	if state.Writes() != writes {
		t.Errorf("the second run wrote %d times", state.Writes()-writes)
	}
	if state.Dump() != first {
		t.Error("the second run changed what there is")
	}
	for _, line := range []string{
		"namespaces kube-node-lease", "services default/kubernetes", "services kube-system/kube-dns",
		"endpointslices.discovery.k8s.io default/kubernetes", "endpoints default/kubernetes",
		"priorityclasses.scheduling.k8s.io system-node-critical", "configmaps kube-public/cluster-info",
		"clusterroles.rbac.authorization.k8s.io system:controller:deployment-controller",
		"clusterrolebindings.rbac.authorization.k8s.io system:node-proxier",
		"rolebindings.rbac.authorization.k8s.io kube-system/system::extension-apiserver-authentication-reader",
	} {
		if !strings.Contains(first, line+"\n") {
			t.Errorf("%s is missing", line)
		}
	}
}

// TestEnsureRestoresWhatWasTaken deletes and weakens some objects, and expects the
// next run to bring back all of it, and the one after that to write nothing.
func TestEnsureRestoresWhatWasTaken(t *testing.T) {
	policy := bootstrap.DefaultPolicy()
	rapid.Check(t, func(r *rapid.T) {
		state := statetest.New()
		mustEnsure(t, state, config())
		for range rapid.IntRange(1, 5).Draw(r, "changes") {
			role := rapid.SampledFrom(policy.ClusterRoles).Draw(r, "role")
			if rapid.Bool().Draw(r, "delete") {
				_ = state.Delete(t.Context(), rbacv1.Resource("clusterroles"), "", role.Name, nil, false)
				continue
			}
			weak := role.DeepCopy()
			if len(weak.Rules) > 0 && weak.AggregationRule == nil {
				weak.Rules = weak.Rules[:rapid.IntRange(0, len(weak.Rules)-1).Draw(r, "rules")]
			}
			weak.Labels = nil
			state.Put(rbacv1.Resource("clusterroles"), weak)
		}
		mustEnsure(t, state, config())
		for _, want := range policy.ClusterRoles {
			have := mustGet[*rbacv1.ClusterRole](t, state, rbacv1.Resource("clusterroles"), "", want.Name)
			if missing := authz.Uncovered(have.Rules, want.Rules); len(missing) > 0 {
				r.Errorf("%s lacks %v", want.Name, missing)
			}
			if have.Labels["kubernetes.io/bootstrapping"] != "rbac-defaults" {
				r.Errorf("%s lacks its label", want.Name)
			}
		}
		writes := state.Writes()
		mustEnsure(t, state, config())
		if state.Writes() != writes {
			r.Errorf("a further run wrote %d times", state.Writes()-writes)
		}
	})
}

func TestEnsureLeavesToTheAdministratorWhatIsHis(t *testing.T) {
	state := statetest.New()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "system:basic-user", Annotations: map[string]string{rbacv1.AutoUpdateAnnotationKey: "false"}}}
	state.Put(rbacv1.Resource("clusterroles"), role)
	extra := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "system:discovery"}, Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, NonResourceURLs: []string{"/mine"}}}}
	state.Put(rbacv1.Resource("clusterroles"), extra)
	mustEnsure(t, state, config())
	if have := mustGet[*rbacv1.ClusterRole](t, state, rbacv1.Resource("clusterroles"), "", role.Name); len(have.Rules) > 0 {
		t.Error("a role that is not to be updated was")
	}
	if have := mustGet[*rbacv1.ClusterRole](t, state, rbacv1.Resource("clusterroles"), "", extra.Name); len(have.Rules) != 2 {
		t.Errorf("rules %v: want the administrator's and ours", have.Rules)
	}
}

func TestEnsureReplacesBindingToAnotherRole(t *testing.T) {
	state := statetest.New()
	state.Put(rbacv1.Resource("clusterrolebindings"), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "system:discovery"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
	})
	mustEnsure(t, state, config())
	have := mustGet[*rbacv1.ClusterRoleBinding](t, state, rbacv1.Resource("clusterrolebindings"), "", "system:discovery")
	if have.RoleRef.Name != "system:discovery" || len(have.Subjects) != 1 {
		t.Errorf("binding %+v", have)
	}
}

func TestEnsureFollowsTheServersAddress(t *testing.T) {
	state := statetest.New()
	mustEnsure(t, state, config())
	moved := config()
	moved.AdvertiseAddress, moved.SecurePort = net.IPv4(10, 89, 0, 2), 7443
	mustEnsure(t, state, moved)
	slice := mustGet[*discoveryv1.EndpointSlice](t, state, discoveryv1.Resource("endpointslices"), "default", "kubernetes")
	if slice.Endpoints[0].Addresses[0] != "10.89.0.2" || *slice.Ports[0].Port != 7443 {
		t.Errorf("slice %+v", slice)
	}
	endpoints := mustGet[*corev1.Endpoints](t, state, corev1.Resource("endpoints"), "default", "kubernetes") //nolint:staticcheck // clients still read the older kind
	if endpoints.Subsets[0].Addresses[0].IP != "10.89.0.2" {
		t.Errorf("endpoints %+v", endpoints)
	}
	service := mustGet[*corev1.Service](t, state, corev1.Resource("services"), "default", "kubernetes")
	if service.Spec.Ports[0].TargetPort.IntVal != 7443 || service.Spec.ClusterIP != "10.96.0.1" {
		t.Errorf("service %+v", service.Spec)
	}
}

func TestAggregatedRolesContainEachOther(t *testing.T) {
	roles := map[string][]rbacv1.PolicyRule{}
	for _, role := range bootstrap.DefaultPolicy().ClusterRoles {
		roles[role.Name] = role.Rules
	}
	for _, pair := range [][2]string{{"admin", "edit"}, {"edit", "view"}, {"admin", "system:aggregate-to-admin"}, {"view", "system:aggregate-to-view"}} {
		if missing := authz.Uncovered(roles[pair[0]], roles[pair[1]]); len(missing) > 0 {
			t.Errorf("%s lacks of %s: %v", pair[0], pair[1], missing)
		}
	}
	if len(authz.Uncovered(roles["view"], []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"secrets"}}})) == 0 {
		t.Error("viewers can read secrets")
	}
}

func TestAggregatorAddsAndTakesRules(t *testing.T) {
	state := statetest.New()
	mustEnsure(t, state, config())
	aggregator := bootstrap.NewAggregator(state, slog.New(slog.DiscardHandler))
	settle := func() {
		for range 4 {
			if err := aggregator.Reconcile(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	settle()
	writes := state.Writes()
	settle()
	if state.Writes() != writes {
		t.Error("a settled policy was written again")
	}
	rule := rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{"example.com"}, Resources: []string{"boats"}}
	state.Put(rbacv1.Resource("clusterroles"), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "boats", Labels: map[string]string{"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
		Rules:      []rbacv1.PolicyRule{rule},
	})
	settle()
	has := func(name string) bool {
		role := mustGet[*rbacv1.ClusterRole](t, state, rbacv1.Resource("clusterroles"), "", name)
		return slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return equality.Semantic.DeepEqual(r, rule) })
	}
	for _, name := range []string{"view", "edit", "admin"} {
		if !has(name) {
			t.Errorf("%s did not get the rule", name)
		}
	}
	if err := state.Delete(t.Context(), rbacv1.Resource("clusterroles"), "", "boats", nil, false); err != nil {
		t.Fatal(err)
	}
	settle()
	for _, name := range []string{"view", "edit", "admin"} {
		if has(name) {
			t.Errorf("%s kept the rule", name)
		}
	}
}

func TestAggregatorRunsUntilToldToStop(t *testing.T) {
	state := statetest.New()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- bootstrap.NewAggregator(state, slog.New(slog.DiscardHandler)).Run(ctx) }()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestComponentsMayDoTheirWork asks what each component does and what it must not.
func TestComponentsMayDoTheirWork(t *testing.T) {
	state := statetest.New()
	mustEnsure(t, state, config())
	rbac := authz.NewRBAC()
	if err := rbac.Start(t.Context(), state); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		user                                        string
		verb, group, resource, sub, namespace, name string
		want                                        authz.Decision
	}{
		{"system:kube-scheduler", "create", "", "pods", "binding", "default", "p", authz.Allow},
		{"system:kube-scheduler", "update", "coordination.k8s.io", "leases", "", "kube-system", "kube-scheduler", authz.Allow},
		{"system:kube-scheduler", "get", "", "secrets", "", "kube-system", "x", authz.NoOpinion},
		{"system:kube-controller-manager", "create", "", "serviceaccounts", "token", "kube-system", "node-controller", authz.Allow},
		{"system:kube-controller-manager", "delete", "", "pods", "", "default", "p", authz.NoOpinion},
		{"system:kube-proxy", "watch", "discovery.k8s.io", "endpointslices", "", "", "", authz.Allow},
		{"system:kube-proxy", "list", "", "nodes", "", "", "", authz.Allow},
		{"system:kube-proxy", "create", "", "serviceaccounts", "token", "kube-system", "kube-proxy", authz.Allow},
		{"system:kube-proxy", "create", "", "serviceaccounts", "token", "kube-system", "default", authz.NoOpinion},
		{"system:kube-proxy", "list", "", "secrets", "", "", "", authz.NoOpinion},
		{"system:serviceaccount:kube-system:kube-proxy", "watch", "", "services", "", "", "", authz.Allow},
		{"system:serviceaccount:kube-system:replicaset-controller", "create", "", "pods", "", "default", "", authz.Allow},
		{"system:serviceaccount:kube-system:replicaset-controller", "delete", "apps", "deployments", "", "default", "d", authz.NoOpinion},
		{"system:serviceaccount:kube-system:horizontal-pod-autoscaler", "update", "apps", "deployments", "scale", "default", "d", authz.Allow},
		{"system:serviceaccount:default:replicaset-controller", "create", "", "pods", "", "default", "", authz.NoOpinion},
		{"system:node:node-1", "get", "", "secrets", "", "default", "s", authz.NoOpinion},
		{"kube-apiserver-kubelet-client", "get", "", "nodes", "log", "", "node-1", authz.Allow},
	} {
		decision, _, err := rbac.Authorize(t.Context(), authz.Attributes{
			User:            &authn.User{Name: c.user, Groups: []string{authn.AuthenticatedGroup}},
			ResourceRequest: true, Verb: c.verb, APIGroup: c.group, Resource: c.resource, Subresource: c.sub, Namespace: c.namespace, Name: c.name,
		})
		if err != nil || decision != c.want {
			t.Errorf("%+v: got %v, %v", c, decision, err)
		}
	}
}
