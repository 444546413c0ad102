package authz

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// Node allows node agents (system:node:NAME in group system:nodes) what they need
// for the pods that run on them: their own Node, Lease and CSINode, their pods,
// and what those pods refer to. What depends on a body is left to the admission
// plugin NodeRestriction. Before Start it knows no pods.
type Node struct {
	graph  *graph
	checks map[schema.GroupResource]nodeCheck
	rules  []rbacv1.PolicyRule // for resources that are the same for every node
}

// NewNode makes an authorizer that knows no pods.
func NewNode() *Node {
	n := &Node{graph: newGraph(), rules: uniformNodeRules()}
	n.checks = n.partial()
	return n
}

// Start fills the graph of what pods refer to, and follows changes until ctx
// ends.
func (n *Node) Start(ctx context.Context, state registry.Subscriber) error {
	return n.graph.start(ctx, state)
}

// NodeName is the node whose agent user is; false for others. A member of
// system:nodes whose name names no node has the name "".
func NodeName(user *authn.User) (string, bool) {
	if user == nil || !strings.HasPrefix(user.Name, authn.NodeUserPrefix) || !user.InGroup(authn.NodesGroup) {
		return "", false
	}
	return strings.TrimPrefix(user.Name, authn.NodeUserPrefix), true
}

// Authorize implements Authorizer.
func (n *Node) Authorize(_ context.Context, a Attributes) (Decision, string, error) {
	node, ok := NodeName(a.User)
	if !ok {
		return NoOpinion, "", nil
	}
	if node == "" {
		return NoOpinion, fmt.Sprintf("unknown node for user %q", a.User.Name), nil
	}
	if a.ResourceRequest {
		if check := n.checks[schema.GroupResource{Group: a.APIGroup, Resource: a.Resource}]; check != nil {
			allowed, reason := check(node, &a)
			if allowed {
				return Allow, "", nil
			}
			return NoOpinion, reason, nil
		}
	}
	for i := range n.rules {
		if RuleAllows(&n.rules[i], &a) {
			return Allow, "", nil
		}
	}
	return NoOpinion, "", nil
}

// Rules implements RuleLister. What a node may do depends on its pods.
func (n *Node) Rules(user *authn.User, _ string) ([]rbacv1.PolicyRule, error) {
	if _, ok := NodeName(user); ok {
		return nil, errors.New("node authorizer does not support user rule resolution")
	}
	return nil, nil
}

// nodeCheck decides for one resource.
type nodeCheck func(node string, a *Attributes) (allowed bool, reason string)

// partial are the checks of resources of which a node may see a part only.
func (n *Node) partial() map[schema.GroupResource]nodeCheck {
	return map[schema.GroupResource]nodeCheck{
		corev1.Resource("pods"):                           n.pod,
		corev1.Resource("nodes"):                          n.node,
		corev1.Resource("secrets"):                        n.read(secretRef),
		corev1.Resource("configmaps"):                     n.read(configMapRef),
		corev1.Resource("persistentvolumeclaims"):         n.claim,
		corev1.Resource("persistentvolumes"):              n.get(volumeRef),
		corev1.Resource("serviceaccounts"):                n.serviceAccount,
		coordinationv1.Resource("leases"):                 n.lease,
		storagev1.Resource("csinodes"):                    n.csiNode,
		storagev1.Resource("volumeattachments"):           n.get(attachmentRef),
		resourcev1.Resource("resourceclaims"):             n.get(resourceClaimRef),
		resourcev1.Resource("resourceslices"):             n.slice,
		certificatesv1.Resource("podcertificaterequests"): n.podCertificate,
	}
}

// related says whether the object has to do with a pod on the node.
func (n *Node) related(node string, kind refKind, a *Attributes) (bool, string) {
	name := a.name()
	if name == "" {
		return false, "No Object name found"
	}
	if n.graph.related(ref{kind, a.Namespace, name}, node) {
		return true, ""
	}
	return false, fmt.Sprintf("no relationship found between node '%s' and this object", node)
}

// read allows get, list and watch of single objects in a namespace.
func (n *Node) read(kind refKind) nodeCheck {
	return func(node string, a *Attributes) (bool, string) {
		switch {
		case !slices.Contains([]string{"get", "list", "watch"}, a.Verb):
			return false, "can only read resources of this type"
		case a.Subresource != "":
			return false, "cannot read subresource"
		case a.Namespace == "":
			return false, "can only read namespaced object of this type"
		}
		return n.related(node, kind, a)
	}
}

// get allows get of single objects.
func (n *Node) get(kind refKind) nodeCheck {
	return func(node string, a *Attributes) (bool, string) {
		switch {
		case a.Verb != "get":
			return false, "can only get individual resources of this type"
		case a.Subresource != "":
			return false, "cannot get subresource"
		}
		return n.related(node, kind, a)
	}
}

func (n *Node) claim(node string, a *Attributes) (bool, string) {
	if a.Subresource != "status" {
		return n.get(claimRef)(node, a)
	}
	if a.Verb != "update" && a.Verb != "patch" {
		return false, "can only get/update/patch this type"
	}
	return n.related(node, claimRef, a)
}

func (n *Node) serviceAccount(node string, a *Attributes) (bool, string) {
	switch {
	case a.Verb == "get" && a.Subresource == "":
		return n.related(node, serviceAccountRef, a)
	case a.Verb != "create" || a.Name == "":
		return false, "can only create tokens for individual service accounts"
	case a.Subresource != "token":
		return false, "can only create token subresource of serviceaccount"
	}
	return n.related(node, serviceAccountRef, a)
}

// ownVerbs are the verbs on objects that bear the node's name.
func ownVerbs() []string { return []string{"get", "create", "update", "patch", "delete"} }

func (n *Node) lease(node string, a *Attributes) (bool, string) {
	switch {
	case !slices.Contains(ownVerbs(), a.Verb):
		return false, "can only get, create, update, patch, or delete a node lease"
	case a.Namespace != corev1.NamespaceNodeLease:
		return false, fmt.Sprintf("can only access leases in the %q system namespace", corev1.NamespaceNodeLease)
	case a.Verb != "create" && a.Name != node: // a create's name is NodeRestriction's business
		return false, "can only access node lease with the same name as the requesting node"
	}
	return true, ""
}

func (n *Node) csiNode(node string, a *Attributes) (bool, string) {
	switch {
	case !slices.Contains(ownVerbs(), a.Verb):
		return false, "can only get, create, update, patch, or delete a CSINode"
	case a.Subresource != "":
		return false, "cannot authorize CSINode subresources"
	case a.Verb != "create" && a.Name != node:
		return false, "can only access CSINode with the same name as the requesting node"
	}
	return true, ""
}

func (n *Node) slice(node string, a *Attributes) (bool, string) {
	if a.Subresource != "" {
		return false, "cannot authorize ResourceSlice subresources"
	}
	switch a.Verb {
	case "create":
		return true, ""
	case "get", "update", "patch", "delete":
		return n.related(node, sliceRef, a)
	case "watch", "list", "deletecollection":
		if a.selects("spec.nodeName", node) || a.selects("nodeName", node) {
			return true, ""
		}
		return false, "can only list/watch/deletecollection resourceslices with nodeName field selector"
	}
	return false, "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, deletecollection"
}

func (n *Node) podCertificate(node string, a *Attributes) (bool, string) {
	if a.Subresource != "" {
		return false, "nodes may not access the subresources of PodCertificateRequests"
	}
	switch a.Verb {
	case "create":
		return true, ""
	case "get":
		return n.related(node, certificateRequestRef, a)
	case "list", "watch":
		if a.selects("spec.nodeName", node) {
			return true, ""
		}
		return false, "can only list/watch podcertificaterequests with spec.nodeName field selector"
	}
	return false, "only the following verbs are allowed for a PodCertificateRequest: get, list, watch, create"
}

func (n *Node) node(node string, a *Attributes) (bool, string) {
	switch {
	case a.Subresource == "" && slices.Contains([]string{"create", "update", "patch"}, a.Verb),
		a.Subresource == "status" && (a.Verb == "update" || a.Verb == "patch"):
		return true, "" // which node is NodeRestriction's business
	case a.Subresource == "" && slices.Contains([]string{"get", "list", "watch"}, a.Verb):
		switch name := a.name(); name {
		case node:
			return true, ""
		case "":
			return false, fmt.Sprintf("node '%s' cannot read all nodes, only its own Node object", node)
		default:
			return false, fmt.Sprintf("node '%s' cannot read '%s', only its own Node object", node, name)
		}
	}
	return false, ""
}

func (n *Node) pod(node string, a *Attributes) (bool, string) {
	switch a.Subresource + " " + a.Verb {
	case " get":
		return n.related(node, podRef, a)
	case " list", " watch":
		if a.selects("spec.nodeName", node) {
			return true, ""
		}
		if a.name() != "" {
			return n.related(node, podRef, a)
		}
		return false, "can only list/watch pods with spec.nodeName field selector"
	case " create", " delete", "status update", "status patch", "eviction create":
		return true, "" // which pods is NodeRestriction's business
	}
	return false, ""
}

// name is the object's name, also when a field selector names it.
func (a *Attributes) name() string {
	if a.Name != "" || a.FieldSelector == "" {
		return a.Name
	}
	value, _ := a.selected("metadata.name")
	return value
}

// selects says whether the field selector pins the field to value.
func (a *Attributes) selects(field, value string) bool {
	got, ok := a.selected(field)
	return ok && got == value
}

// selected is the value to which the field selector pins a field.
func (a *Attributes) selected(field string) (string, bool) {
	if a.FieldSelector == "" {
		return "", false
	}
	selector, err := fields.ParseSelector(a.FieldSelector)
	if err != nil {
		return "", false
	}
	for _, requirement := range selector.Requirements() {
		if requirement.Field == field && (requirement.Operator == selection.Equals || requirement.Operator == selection.DoubleEquals) {
			return requirement.Value, true
		}
	}
	return "", false
}

// uniformNodeRules are for what is not divided among nodes.
func uniformNodeRules() []rbacv1.PolicyRule {
	read := []string{"get", "list", "watch"}
	rule := func(verbs []string, group string, resources ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{Verbs: verbs, APIGroups: []string{group}, Resources: resources}
	}
	return []rbacv1.PolicyRule{
		rule([]string{"create"}, "authentication.k8s.io", "tokenreviews"),
		rule([]string{"create"}, "authorization.k8s.io", "subjectaccessreviews", "localsubjectaccessreviews"),
		rule(read, "", "services"),
		rule([]string{"get"}, "", "endpoints"),
		rule([]string{"create", "update", "patch"}, "", "events"),
		rule([]string{"create", "update", "patch"}, "events.k8s.io", "events"),
		rule([]string{"create", "get", "list", "watch"}, "certificates.k8s.io", "certificatesigningrequests"),
		rule(read, "certificates.k8s.io", "clustertrustbundles"),
		rule(read, "storage.k8s.io", "csidrivers"),
		rule(read, "node.k8s.io", "runtimeclasses"),
	}
}
