package bootstrap_test

import (
	"log/slog"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission/plugins"
	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/apiserver/internal/authz"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/rbac"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/resources"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
	"github.com/sampan-io/sampan/services/apiserver/internal/rest"
	"github.com/sampan-io/sampan/services/apiserver/internal/storage/bolt"
	"github.com/sampan-io/sampan/services/apiserver/internal/watch"
)

// engine is the registry over a real store, wired as the server wires it.
type engine struct {
	*rest.Engine
	store *bolt.Store
	rbac  *authz.RBAC
	union authz.Union
}

func newEngine(t testing.TB) *engine {
	t.Helper()
	store, err := bolt.Open(bolt.Options{Path: filepath.Join(t.TempDir(), "store.db"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	e := &engine{store: store, rbac: authz.NewRBAC()}
	if e.union, err = authz.FromModes([]string{"Node", "RBAC"}, e.rbac, authz.NewNode()); err != nil {
		t.Fatal(err)
	}
	state := registry.Late(func() registry.State { return e.Engine })
	kinds := resources.New(resources.Deps{
		State:        func() registry.State { return e.Engine },
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, FirstNodePort: 30000, LastNodePort: 32767, EventTTL: time.Hour,
		Others: rbac.Resources(e.rbac, e.union),
	})
	chain, err := plugins.New(plugins.Config{State: state, Authorizer: e.union})
	if err != nil {
		t.Fatal(err)
	}
	caches := map[string]watch.Store{}
	for i, config := range rest.CacheConfigs(kinds) {
		cache := watch.NewCache(config, store, watch.Options{})
		if err := cache.Start(t.Context()); err != nil {
			t.Fatal(i, err)
		}
		caches[config.Prefix[:len(config.Prefix)-1]] = cache
	}
	e.Engine = rest.New(rest.Config{Resources: kinds, Caches: caches, Admission: chain})
	return e
}

func (e *engine) mustRevision(t testing.TB) int64 {
	t.Helper()
	revision, err := e.store.Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

func TestEnsureThroughTheEngine(t *testing.T) {
	e := newEngine(t)
	start := time.Now()
	mustEnsure(t, e, config())
	t.Logf("an empty store took %v", time.Since(start))
	revision := e.mustRevision(t)
	start = time.Now()
	mustEnsure(t, e, config())
	t.Logf("a full one took %v", time.Since(start))
	if now := e.mustRevision(t); now != revision {
		t.Errorf("the second run wrote: revision %d, then %d", revision, now)
	}
	service := mustGet[*corev1.Service](t, e, corev1.Resource("services"), "kube-system", "kube-dns")
	if service.Spec.ClusterIP != "10.96.0.10" {
		t.Errorf("service %+v", service.Spec)
	}
}

func TestGrantsThroughTheEngine(t *testing.T) {
	e := newEngine(t)
	mustEnsure(t, e, config())
	if err := e.rbac.Start(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	alice := &authn.User{Name: "alice", Groups: []string{authn.AuthenticatedGroup}}
	ctx := request.WithUser(t.Context(), alice)
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "mine"}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, Name: "alice"}},
	}
	if _, err := e.Create(ctx, rbacv1.Resource("clusterrolebindings"), binding.DeepCopy()); !apierrors.IsForbidden(err) {
		t.Errorf("alice made herself an administrator: %v", err)
	}
	if _, err := e.Create(t.Context(), rbacv1.Resource("clusterrolebindings"), binding.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for {
		decision, _, err := e.union.Authorize(t.Context(), authz.Attributes{User: alice, ResourceRequest: true, Verb: "get", Resource: "secrets", Namespace: "default", Name: "s"})
		if err != nil {
			t.Fatal(err)
		}
		if decision == authz.Allow {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the binding was not followed")
		}
	}
}
