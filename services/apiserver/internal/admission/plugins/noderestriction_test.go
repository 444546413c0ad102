package plugins_test

import (
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

func agent(name string) *authn.User {
	return &authn.User{Name: authn.NodeUserPrefix + name, Groups: []string{authn.NodesGroup}}
}

// node1 is the stored Node of the agent that the tests act as.
func node1(change ...func(*corev1.Node)) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "n1", Labels: map[string]string{"own": "a", "kubernetes.io/hostname": "node-1"}}}
	for _, f := range change {
		f(node)
	}
	return node
}

func runningPod(name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": "x"}},
		Spec: corev1.PodSpec{NodeName: node, ServiceAccountName: "default", Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{
			Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
				{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{}},
				{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: "vault"}},
			}},
		}}}},
	}
}

func mirrorPod(change ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "blue", Name: "static-node-1", Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "x"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "node-1", UID: "n1", Controller: new(true)}},
		},
		Spec: corev1.PodSpec{NodeName: "node-1", Containers: []corev1.Container{{Name: "c"}}},
	}
	for _, f := range change {
		f(pod)
	}
	return pod
}

func tokenRequest(change ...func(*authenticationv1.TokenRequest)) *authenticationv1.TokenRequest {
	r := &authenticationv1.TokenRequest{
		ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "default"},
		Spec: authenticationv1.TokenRequestSpec{Audiences: []string{"api"}, BoundObjectRef: &authenticationv1.BoundObjectReference{
			APIVersion: "v1", Kind: "Pod", Name: "mine", UID: "uid-mine",
		}},
	}
	for _, f := range change {
		f(r)
	}
	return r
}

func TestNodeRestriction(t *testing.T) {
	mine, theirs := runningPod("mine", "node-1"), runningPod("theirs", "node-2")
	status := func(pod *corev1.Pod, change ...func(*corev1.Pod)) *corev1.Pod {
		pod = pod.DeepCopy()
		pod.Status.Phase = corev1.PodRunning
		for _, f := range change {
			f(pod)
		}
		return pod
	}
	lease := func(namespace, name string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	}
	eviction := func(name string) *policyv1.Eviction {
		return &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: name}}
	}
	label := func(key, value string) func(*corev1.Node) {
		return func(n *corev1.Node) { n.Labels[key] = value }
	}
	const create, update, remove = admission.Create, admission.Update, admission.Delete
	for _, c := range []struct {
		name      string
		operation admission.Operation
		resource  string
		obj, old  registry.Object
		refusal   string // "" admits, "404" is not found
	}{
		{"own node", create, "nodes", node1(), nil, ""},
		{"another node", create, "nodes", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-2"}}, nil, "is not allowed to modify node"},
		{"node with a reserved label", create, "nodes", node1(label("node-restriction.kubernetes.io/x", "1")), nil, "not allowed to set the following labels: node-restriction.kubernetes.io/x"},
		{"node with a role", create, "nodes", node1(label("node-role.kubernetes.io/control-plane", "")), nil, "not allowed to set the following labels"},
		{"node with agents' labels", create, "nodes", node1(label("topology.kubernetes.io/zone", "a"), label("node.kubernetes.io/x", "1"), label("x.kubelet.kubernetes.io/y", "2"), label("example.com/z", "3")), nil, ""},
		{"own node's labels", update, "nodes", node1(label("own", "b")), node1(), ""},
		{"reserved label changed", update, "nodes", node1(label("x.node-restriction.kubernetes.io/y", "b")), node1(), "is not allowed to modify labels"},
		{"reserved label taken", update, "nodes", node1(), node1(label("node-role.kubernetes.io/x", "")), "is not allowed to modify labels"},
		{"taints", update, "nodes", node1(), node1(func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "a"}} }), "is not allowed to modify taints"},
		{"taints through status", update, "nodes/status", node1(func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "a"}} }), node1(), "is not allowed to modify taints"},
		{"owner", update, "nodes", node1(func(n *corev1.Node) {
			n.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Namespace", Name: "absent", UID: "x"}}
		}), node1(), "is not allowed to modify ownerReferences"},
		{"another node's status", update, "nodes/status", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-2"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-2"}}, "is not allowed to modify node"},

		{"mirror pod", create, "pods", mirrorPod(), nil, ""},
		{"plain pod", create, "pods", mirrorPod(func(p *corev1.Pod) { p.Annotations = nil }), nil, "can only create mirror pods"},
		{"mirror pod elsewhere", create, "pods", mirrorPod(func(p *corev1.Pod) { p.Spec.NodeName = "node-2" }), nil, "spec.nodeName set to itself"},
		{"mirror pod without owner", create, "pods", mirrorPod(func(p *corev1.Pod) { p.OwnerReferences = nil }), nil, "owner reference set to itself"},
		{"mirror pod of a DaemonSet", create, "pods", mirrorPod(func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "DaemonSet" }), nil, "owner reference set to itself"},
		{"mirror pod with two owners", create, "pods", mirrorPod(func(p *corev1.Pod) { p.OwnerReferences = append(p.OwnerReferences, p.OwnerReferences[0]) }), nil, "single owner reference"},
		{"mirror pod of an older node", create, "pods", mirrorPod(func(p *corev1.Pod) { p.OwnerReferences[0].UID = "n0" }), nil, "UID mismatch"},
		{"mirror pod that blocks", create, "pods", mirrorPod(func(p *corev1.Pod) { p.OwnerReferences[0].BlockOwnerDeletion = new(true) }), nil, "blockOwnerDeletion"},
		{"mirror pod with an account", create, "pods", mirrorPod(func(p *corev1.Pod) { p.Spec.ServiceAccountName = "x" }), nil, "reference a service account"},
		{"mirror pod with a secret", create, "pods", mirrorPod(func(p *corev1.Pod) {
			p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}}}}
		}), nil, "reference secrets"},
		{"mirror pod with a config map", create, "pods", mirrorPod(func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}}}
		}), nil, "reference configmaps"},
		{"mirror pod with a claim", create, "pods", mirrorPod(func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}}}
		}), nil, "reference persistentvolumeclaims"},
		{"mirror pod with a device", create, "pods", mirrorPod(func(p *corev1.Pod) { p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "x"}} }), nil, "reference resourceclaims"},
		{"mirror pod with a token", create, "pods", mirrorPod(func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{}}}}}}}
		}), nil, "service account tokens"},
		{"own pod's deletion", remove, "pods", nil, mine, ""},
		{"another's pod's deletion", remove, "pods", nil, theirs, "can only delete pods with spec.nodeName set to itself"},
		{"absent pod's deletion", remove, "pods", nil, runningPod("absent", "node-1"), "404"},
		{"pod update", update, "pods", mine, mine, "can only create and delete mirror pods"},
		{"own pod's status", update, "pods/status", status(mine), mine, ""},
		{"another's pod's status", update, "pods/status", status(theirs), theirs, "can only update pod status"},
		{"labels through status", update, "pods/status", status(mine, func(p *corev1.Pod) { p.Labels["app"] = "y" }), mine, "cannot update labels through pod status"},
		{"claims through status", update, "pods/status", status(mine, func(p *corev1.Pod) { p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "x"}} }), mine, "cannot update resource claim"},
		{"own pod's eviction", create, "pods/eviction", eviction("mine"), nil, ""},
		{"another's pod's eviction", create, "pods/eviction", eviction("theirs"), nil, "can only evict pods"},
		{"binding", create, "pods/binding", &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "mine"}}, nil, "unexpected pod subresource"},

		{"own lease", create, "leases.coordination.k8s.io", lease("kube-node-lease", "node-1"), nil, ""},
		{"another's lease", create, "leases.coordination.k8s.io", lease("kube-node-lease", "node-2"), nil, "same name as the requesting node"},
		{"lease elsewhere", create, "leases.coordination.k8s.io", lease("kube-system", "node-1"), nil, "can only access leases"},
		{"another's lease's update", update, "leases.coordination.k8s.io", lease("kube-node-lease", "node-2"), lease("kube-node-lease", "node-2"), "same name as the requesting node"},

		{"token", create, "serviceaccounts/token", tokenRequest(), nil, ""},
		{"token without audience", create, "serviceaccounts/token", tokenRequest(func(r *authenticationv1.TokenRequest) { r.Spec.Audiences = nil }), nil, ""},
		{"token for a volume's audience", create, "serviceaccounts/token", tokenRequest(func(r *authenticationv1.TokenRequest) { r.Spec.Audiences = []string{"vault"} }), nil, ""},
		{"token for another audience", create, "serviceaccounts/token", tokenRequest(func(r *authenticationv1.TokenRequest) { r.Spec.Audiences = []string{"bank"} }), nil, `audience "bank" not found in pod spec volume`},
		{"token for two audiences", create, "serviceaccounts/token", tokenRequest(func(r *authenticationv1.TokenRequest) { r.Spec.Audiences = []string{"vault", "bank"} }), nil, "0 or 1 audiences"},
		{"unbound token", create, "serviceaccounts/token", tokenRequest(func(r *authenticationv1.TokenRequest) { r.Spec.BoundObjectRef = nil }), nil, "not bound to a pod"},
		{"node-bound token", create, "serviceaccounts/token", tokenRequest(func(r *authenticationv1.TokenRequest) { r.Spec.BoundObjectRef.Kind = "Node" }), nil, "not bound to a pod"},
		{"token without uid", create, "serviceaccounts/token", tokenRequest(func(r *authenticationv1.TokenRequest) { r.Spec.BoundObjectRef.UID = "" }), nil, "without a uid"},
		{"token of an older pod", create, "serviceaccounts/token", tokenRequest(func(r *authenticationv1.TokenRequest) { r.Spec.BoundObjectRef.UID = "old" }), nil, "does not match the UID"},
		{"token of another's pod", create, "serviceaccounts/token", tokenRequest(func(r *authenticationv1.TokenRequest) {
			r.Spec.BoundObjectRef.Name, r.Spec.BoundObjectRef.UID = "theirs", "uid-theirs"
		}), nil, "different node"},
		{"token of an absent pod", create, "serviceaccounts/token", tokenRequest(func(r *authenticationv1.TokenRequest) { r.Spec.BoundObjectRef.Name = "absent" }), nil, "404"},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			state := newState()
			state.Put(corev1.Resource("nodes"), node1())
			state.Put(corev1.Resource("pods"), mine)
			state.Put(corev1.Resource("pods"), theirs)
			a := write(c.operation, c.resource, c.obj, c.old)
			a.User = agent("node-1")
			err := run(t.Context(), only(t, state, "NodeRestriction"), a)
			switch c.refusal {
			case "":
				if err != nil {
					t.Error(err)
				}
			case "404":
				if !apierrors.IsNotFound(err) {
					t.Errorf("got %v, want not found", err)
				}
			default:
				assertRefused(t, err, c.refusal)
			}
		})
	}
}

func TestNodeRestrictionIsForNodesOnly(t *testing.T) {
	state := newState()
	chain := only(t, state, "NodeRestriction")
	a := write(admission.Update, "nodes", node1(func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "a"}} }), node1())
	if err := run(t.Context(), chain, a); err != nil {
		t.Error(err)
	}
	a.User = agent("")
	assertRefused(t, run(t.Context(), chain, a), "could not determine node")
}
