// Package plugins has the admission plugins, one a file, and makes the chain of
// those that are switched on.
package plugins

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/authz"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// State is what plugins read of the stored objects.
type State interface {
	registry.Reader
	registry.Subscriber
}

// Config says which plugins are on and what they need.
type Config struct {
	State      State
	Authorizer authz.Authorizer
	// Writer writes what plugins keep in objects: quotas' usage, namespaces.
	Writer registry.Writer
	// Configurations are what --admission-control-config-file says.
	Configurations Configurations
	// Enable and Disable name plugins besides those that are on by default
	// (--enable-admission-plugins, --disable-admission-plugins).
	Enable, Disable []string
	// NotReadySeconds and UnreachableSeconds are how long a pod tolerates a node
	// that is not ready or not reachable (--default-not-ready-toleration-seconds,
	// --default-unreachable-toleration-seconds); 0 is 300.
	NotReadySeconds, UnreachableSeconds int64
	// ResourcesOf finds the resources of a kind. OwnerReferencesPermissionEnforcement
	// refuses every blocking owner without it.
	ResourcesOf func(kind schema.GroupVersionKind) []*registry.Resource
	// APIAudiences are the API server's own audiences; a node's request for a token
	// with one of them counts as one that names none.
	APIAudiences []string
	// Configured are the plugins that ask what is configured in the cluster.
	Configured Configured
}

// Configured are the plugins whose work is configured by objects in the cluster; nil
// ones are left out.
type Configured struct {
	MutatingPolicies, MutatingWebhooks     admission.Plugin
	ValidatingPolicies, ValidatingWebhooks admission.Plugin
}

// entry is one line of the list of plugins.
type entry struct {
	name string
	on   bool // by default
	make func(Config) admission.Plugin
}

// entries are all plugins in the order in which they run, which is upstream's,
// and so are those that are on by default.
func entries() []entry {
	return []entry{
		{"AlwaysAdmit", false, newAlwaysAdmit},
		{"NamespaceAutoProvision", false, newNamespaceAutoProvision},
		{"NamespaceLifecycle", true, newNamespaceLifecycle},
		{"NamespaceExists", false, newNamespaceExists},
		{"LimitPodHardAntiAffinityTopology", false, newLimitPodHardAntiAffinityTopology},
		{"LimitRanger", true, newLimitRanger},
		{"ServiceAccount", true, newServiceAccount},
		{"NodeRestriction", false, newNodeRestriction},
		{"TaintNodesByCondition", true, newTaintNodesByCondition},
		{"AlwaysPullImages", false, newAlwaysPullImages},
		{"ImagePolicyWebhook", false, newImagePolicyWebhook},
		{"PodSecurity", true, newPodSecurity},
		{"PodNodeSelector", false, newPodNodeSelector},
		{"Priority", true, newPriority},
		{"DefaultTolerationSeconds", true, newDefaultTolerationSeconds},
		{"PodTolerationRestriction", false, newPodTolerationRestriction},
		{"EventRateLimit", false, newEventRateLimit},
		{"ExtendedResourceToleration", false, newExtendedResourceToleration},
		{"DefaultStorageClass", true, newDefaultStorageClass},
		{"StorageObjectInUseProtection", true, newStorageObjectInUseProtection},
		{"OwnerReferencesPermissionEnforcement", false, newOwnerReferencesPermissionEnforcement},
		{"PersistentVolumeClaimResize", true, newPersistentVolumeClaimResize},
		{"RuntimeClass", true, newRuntimeClass},
		{"CertificateApproval", true, newCertificateApproval},
		{"CertificateSigning", true, newCertificateSigning},
		{"ClusterTrustBundleAttest", true, newClusterTrustBundleAttest},
		{"CertificateSubjectRestriction", true, newCertificateSubjectRestriction},
		{"DefaultIngressClass", true, newDefaultIngressClass},
		{"DenyServiceExternalIPs", false, newDenyServiceExternalIPs},
		{"PodTopologyLabels", true, newPodTopologyLabels},
		{"NodeDeclaredFeatureValidator", true, newNodeDeclaredFeatureValidator},
		{"PodResizeValidator", true, newPodResizeValidator},
		// What charges quota must see the changes of policies and webhooks.
		{"MutatingAdmissionPolicy", true, func(c Config) admission.Plugin { return c.Configured.MutatingPolicies }},
		{"MutatingAdmissionWebhook", true, func(c Config) admission.Plugin { return c.Configured.MutatingWebhooks }},
		{"ValidatingAdmissionPolicy", true, func(c Config) admission.Plugin { return c.Configured.ValidatingPolicies }},
		{"ValidatingAdmissionWebhook", true, func(c Config) admission.Plugin { return c.Configured.ValidatingWebhooks }},
		{"ResourceQuota", true, newResourceQuota},
		{"AlwaysDeny", false, newAlwaysDeny},
	}
}

// Names are the names of all plugins in their order.
func Names() []string {
	var names []string
	for _, e := range entries() {
		names = append(names, e.name)
	}
	return names
}

// New makes the chain. It refuses names that no plugin has, and a name that is
// both enabled and disabled.
func New(config Config) (admission.Chain, error) {
	for flag, names := range map[string][]string{"--enable-admission-plugins": config.Enable, "--disable-admission-plugins": config.Disable} {
		for _, name := range names {
			if !slices.Contains(Names(), name) {
				return nil, fmt.Errorf("%s: this server has no admission plugin %q (it has %s)", flag, name, strings.Join(Names(), ", "))
			}
		}
	}
	var chain admission.Chain
	for _, e := range entries() {
		enabled, disabled := slices.Contains(config.Enable, e.name), slices.Contains(config.Disable, e.name)
		if enabled && disabled {
			return nil, fmt.Errorf("admission plugin %q is both enabled and disabled", e.name)
		}
		if (e.on || enabled) && !disabled {
			if plugin := e.make(config); plugin != nil {
				chain = append(chain, plugin)
			}
		}
	}
	return chain, nil
}

// plugin is the name and the operations that every plugin has.
type plugin struct {
	name       string
	operations []admission.Operation
}

// Name implements admission.Plugin.
func (p plugin) Name() string { return p.name }

// Handles implements admission.Plugin.
func (p plugin) Handles(operation admission.Operation) bool {
	return slices.Contains(p.operations, operation)
}

// is says whether the write is to that resource itself, not to a subresource.
func is(a *admission.Attributes, resource schema.GroupResource) bool {
	return a.Subresource == "" && a.Resource.GroupResource() == resource
}

// podOf is the pod that is written; nil when the write is not to a pod.
func podOf(a *admission.Attributes) *corev1.Pod {
	if !is(a, corev1.Resource("pods")) {
		return nil
	}
	pod, _ := a.Object.(*corev1.Pod)
	return pod
}
