package plugins

import (
	"context"
	"errors"
	"fmt"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/authz"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// nodeRestriction keeps a node agent to its own node and to the pods that run on
// it. It completes the Node authorizer, which does not see bodies.
type nodeRestriction struct {
	plugin
	reader       registry.Reader
	authorizer   authz.Authorizer
	apiAudiences []string
}

func newNodeRestriction(config Config) admission.Plugin {
	return &nodeRestriction{
		plugin{"NodeRestriction", []admission.Operation{admission.Create, admission.Update, admission.Delete}},
		config.State, config.Authorizer, config.APIAudiences,
	}
}

// Admit implements admission.Mutator, as upstream's does: a refusal comes before
// the mutators that follow.
func (p *nodeRestriction) Admit(ctx context.Context, a *admission.Attributes) error {
	node, ok := authz.NodeName(a.User)
	if !ok {
		return nil
	}
	if node == "" {
		return fmt.Errorf("could not determine node from user %q", a.User.Name)
	}
	switch a.Resource.GroupResource() {
	case corev1.Resource("pods"):
		return p.pod(ctx, node, a)
	case corev1.Resource("nodes"):
		return p.node(node, a)
	case corev1.Resource("persistentvolumeclaims"):
		return p.claim(node, a)
	case corev1.Resource("serviceaccounts"):
		return p.token(ctx, node, a)
	case coordinationv1.Resource("leases"):
		return p.lease(node, a)
	case storagev1.Resource("csinodes"):
		if nameOf(a) != node {
			return errors.New("can only access CSINode with the same name as the requesting node")
		}
	case resourcev1.Resource("resourceslices"):
		return p.slice(a, node)
	case certificatesv1.Resource("podcertificaterequests"):
		return p.podCertificate(ctx, node, a)
	}
	return nil
}

// nameOf is the object's name, also for a create.
func nameOf(a *admission.Attributes) string {
	if meta, ok := a.Object.(metav1.Object); ok && a.Operation == admission.Create && a.Subresource == "" {
		return meta.GetName()
	}
	return a.Name
}

// unexpected says that the engine passed an object of a type that the resource
// does not have.
func unexpected(obj any) error { return fmt.Errorf("unexpected type %T", obj) }

func (p *nodeRestriction) pod(ctx context.Context, node string, a *admission.Attributes) error {
	switch a.Subresource + " " + string(a.Operation) {
	case " CREATE":
		return p.podCreate(ctx, node, a)
	case " DELETE":
		return p.ownPod(ctx, a, node, fmt.Errorf("node %q can only delete pods with spec.nodeName set to itself", node))
	case "status UPDATE":
		return podStatus(node, a)
	case "eviction CREATE":
		return p.ownPod(ctx, a, node, fmt.Errorf("node %s can only evict pods with spec.nodeName set to itself", node))
	}
	switch a.Subresource {
	case "":
		return fmt.Errorf("unexpected operation %q, node %q can only create and delete mirror pods", a.Operation, node)
	case "status", "eviction":
		return fmt.Errorf("unexpected operation %q", a.Operation)
	}
	return fmt.Errorf("unexpected pod subresource %q, only 'status' and 'eviction' are allowed", a.Subresource)
}

// ownPod returns refusal unless the pod runs on the node.
func (p *nodeRestriction) ownPod(ctx context.Context, a *admission.Attributes, node string, refusal error) error {
	obj, err := p.reader.Get(ctx, corev1.Resource("pods"), a.Namespace, a.Name)
	if err != nil {
		return err
	}
	if pod, ok := obj.(*corev1.Pod); !ok || pod.Spec.NodeName != node {
		return refusal
	}
	return nil
}

func (p *nodeRestriction) podCreate(ctx context.Context, node string, a *admission.Attributes) error {
	pod, ok := a.Object.(*corev1.Pod)
	if !ok {
		return unexpected(a.Object)
	}
	if !isMirror(pod) {
		return fmt.Errorf("pod does not have %q annotation, node %q can only create mirror pods", corev1.MirrorPodAnnotationKey, node)
	}
	if pod.Spec.NodeName != node {
		return fmt.Errorf("node %q can only create pods with spec.nodeName set to itself", node)
	}
	if err := p.owner(ctx, node, pod.OwnerReferences); err != nil {
		return err
	}
	return noReferences(node, pod)
}

// owner checks that the only owner is the node itself.
func (p *nodeRestriction) owner(ctx context.Context, node string, owners []metav1.OwnerReference) error {
	if len(owners) > 1 {
		return fmt.Errorf("node %q can only create pods with a single owner reference set to itself", node)
	}
	if len(owners) == 0 || owners[0].APIVersion != "v1" || owners[0].Kind != "Node" || owners[0].Name != node {
		return fmt.Errorf("node %q can only create pods with an owner reference set to itself", node)
	}
	owner := owners[0]
	if owner.Controller == nil || !*owner.Controller {
		return fmt.Errorf("node %q can only create pods with a controller owner reference set to itself", node)
	}
	if owner.BlockOwnerDeletion != nil && *owner.BlockOwnerDeletion {
		return fmt.Errorf("node %q must not set blockOwnerDeletion on an owner reference", node)
	}
	obj, err := p.reader.Get(ctx, corev1.Resource("nodes"), "", node)
	if err != nil {
		return err
	}
	if have, ok := obj.(*corev1.Node); !ok || have.UID != owner.UID {
		return fmt.Errorf("node %s UID mismatch: the owner reference has %s", node, owner.UID)
	}
	return nil
}

// noReferences refuses a pod that would give the node a right to other objects.
func noReferences(node string, pod *corev1.Pod) error {
	refuse := func(what string) error {
		return fmt.Errorf("node %q can not create pods that reference %s", node, what)
	}
	secrets := secretsOf(pod)
	switch {
	case pod.Spec.ServiceAccountName != "":
		return refuse("a service account")
	case len(secrets.all()) > 0:
		return refuse("secrets")
	case len(configMapsOf(pod)) > 0:
		return refuse("configmaps")
	case len(pod.Spec.ResourceClaims) > 0:
		return refuse("resourceclaims")
	}
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim != nil || v.Ephemeral != nil {
			return refuse("persistentvolumeclaims")
		}
		if v.Projected == nil {
			continue
		}
		for _, source := range v.Projected.Sources {
			switch {
			case source.ClusterTrustBundle != nil:
				return refuse("clustertrustbundles")
			case source.PodCertificate != nil:
				return refuse("podcertificates")
			case source.ServiceAccountToken != nil:
				return refuse("service account tokens")
			}
		}
	}
	return nil
}

func podStatus(node string, a *admission.Attributes) error {
	old, ok := a.OldObject.(*corev1.Pod)
	if !ok {
		return unexpected(a.OldObject)
	}
	pod, ok := a.Object.(*corev1.Pod)
	if !ok {
		return unexpected(a.Object)
	}
	switch {
	case old.Spec.NodeName != node:
		return fmt.Errorf("node %q can only update pod status for pods with spec.nodeName set to itself", node)
	case !labels.Equals(old.Labels, pod.Labels):
		return fmt.Errorf("node %q cannot update labels through pod status", node)
	case !equality.Semantic.DeepEqual(old.Status.ResourceClaimStatuses, pod.Status.ResourceClaimStatuses):
		return fmt.Errorf("node %q cannot update resource claim statues", node)
	case !equality.Semantic.DeepEqual(old.Status.ExtendedResourceClaimStatus, pod.Status.ExtendedResourceClaimStatus):
		return fmt.Errorf("node %q cannot update extended resource claim status", node)
	}
	return nil
}
