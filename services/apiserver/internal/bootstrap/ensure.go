package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// writers is how many objects are written at once, so that the store commits
// them together.
const writers = 64

// Config says what this cluster's objects hold.
type Config struct {
	// AdvertiseAddress and SecurePort are where clients in the cluster reach this
	// API server.
	AdvertiseAddress net.IP
	SecurePort       int32
	// Peers announces this server to the others over the same store, and tells where
	// all of them are reached. Nil when this is the only one.
	Peers func(ctx context.Context) ([]net.IP, error)
	// ServiceCIDRs are the ranges of ServiceCIDR kubernetes, the primary family's
	// first.
	ServiceCIDRs []netip.Prefix
	// Repair is called when that ServiceCIDR exists, and before Services are
	// written: it makes the addresses agree with the stored Services. May be nil.
	Repair func(ctx context.Context) error
	// ServiceIP is the cluster IP of Service default/kubernetes: the first of the
	// range.
	ServiceIP net.IP
	// DNSIP is the cluster IP of Service kube-system/kube-dns: the tenth of the
	// range. Nil ensures no such Service.
	DNSIP net.IP
	// ClientCA and the request-header settings are published for extension API
	// servers in kube-system/extension-apiserver-authentication.
	ClientCA      []byte // PEM
	RequestHeader RequestHeader
	// ClusterInfo is published in kube-public/cluster-info as a kubeconfig without
	// credentials; "" publishes none.
	ClusterInfo string
}

// RequestHeader is how a front proxy names users.
type RequestHeader struct {
	ClientCA                                                   []byte // PEM; empty publishes none
	AllowedNames, UserHeaders, GroupHeaders, UIDHeaders, Extra []string
}

// item is one object that must be there.
type item struct {
	resource schema.GroupResource
	want     registry.Object
	// repair changes have, a copy of what is stored, into what is wanted, and says
	// whether it had to. Nil leaves what is stored alone.
	repair func(have runtime.Object) (changed bool, err error)
}

// errReplace is a repair's way to ask for a new object in place of the old.
var errReplace = errors.New("the object must be replaced")

// Ensure creates what is missing and repairs what is not as wanted. It writes
// nothing when all is well, and returns when all of it can be read.
func Ensure(ctx context.Context, state registry.State, cfg Config) error {
	if err := ensureAll(ctx, state, namespaces()); err != nil {
		return err
	}
	if err := ensureServiceCIDR(ctx, state, cfg.ServiceCIDRs); err != nil {
		return err
	}
	if cfg.Repair != nil {
		if err := cfg.Repair(ctx); err != nil {
			return err
		}
	}
	items := append(policyItems(DefaultPolicy()), priorityClasses()...)
	items = append(items, accounts()...)
	items = append(items, flowControl()...)
	items = append(items, services(cfg)...)
	here, err := endpoints(ctx, cfg)
	if err != nil {
		return err
	}
	items = append(items, here...)
	items = append(items, configMaps(cfg)...)
	if err := ensureAll(ctx, state, items); err != nil {
		return err
	}
	return removeObsolete(ctx, state)
}

func ensureAll(ctx context.Context, state registry.State, items []item) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for _, it := range items {
		group.Go(func() error {
			if err := ensure(ctx, state, it); err != nil {
				return fmt.Errorf("ensuring %s %s: %w", it.resource, keyOf(it.want), err)
			}
			return nil
		})
	}
	return group.Wait()
}

func ensure(ctx context.Context, state registry.State, it item) error {
	namespace, name := it.want.GetNamespace(), it.want.GetName()
	have, err := state.Get(ctx, it.resource, namespace, name)
	if apierrors.IsNotFound(err) {
		_, err = state.Create(ctx, it.resource, it.want.DeepCopyObject())
		if !apierrors.IsAlreadyExists(err) {
			return err
		}
		have, err = state.Get(ctx, it.resource, namespace, name) // another API server was faster
	}
	if err != nil || it.repair == nil {
		return err
	}
	changed, err := it.repair(have.DeepCopyObject())
	if errors.Is(err, errReplace) {
		if err := state.Delete(ctx, it.resource, namespace, name, &metav1.DeleteOptions{}, false); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		_, err = state.Create(ctx, it.resource, it.want.DeepCopyObject())
		return err
	}
	if err != nil || !changed {
		return err
	}
	_, err = state.Update(ctx, it.resource, "", namespace, name, false, func(fresh runtime.Object) error {
		_, err := it.repair(fresh)
		return err
	})
	return err
}

func keyOf(obj registry.Object) string {
	if obj.GetNamespace() == "" {
		return obj.GetName()
	}
	return obj.GetNamespace() + "/" + obj.GetName()
}

func namespaces() []item {
	var items []item
	for _, name := range []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease} {
		items = append(items, item{corev1.Resource("namespaces"), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil})
	}
	return items
}

func priorityClasses() []item {
	class := func(name string, value int32, description string) item {
		return item{schedulingv1.Resource("priorityclasses"), &schedulingv1.PriorityClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value, Description: description,
		}, nil}
	}
	return []item{
		class("system-node-critical", 2000001000, "Used for system critical pods that must not be moved from their current node."),
		class("system-cluster-critical", 2000000000, "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary."),
	}
}

// accounts are the service accounts that are not a controller's to make: the
// proxy listens to the bus with a token of its own.
func accounts() []item {
	return []item{{corev1.Resource("serviceaccounts"), &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "kube-proxy"},
	}, nil}}
}

// Resources are the kinds that Ensure writes.
func Resources() []schema.GroupResource {
	return []schema.GroupResource{
		corev1.Resource("namespaces"), corev1.Resource("services"), corev1.Resource("endpoints"), corev1.Resource("configmaps"),
		corev1.Resource("serviceaccounts"), discoveryv1.Resource("endpointslices"), schedulingv1.Resource("priorityclasses"),
		flowSchemas, priorityLevels, serviceCIDRs,
		rbacv1.Resource("roles"), rbacv1.Resource("rolebindings"), rbacv1.Resource("clusterroles"), rbacv1.Resource("clusterrolebindings"),
	}
}
