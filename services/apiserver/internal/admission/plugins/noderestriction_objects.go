package plugins

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/authz"
)

func (p *nodeRestriction) node(node string, a *admission.Attributes) error {
	if name := nameOf(a); name != node {
		return fmt.Errorf("node %q is not allowed to modify node %q", node, name)
	}
	switch a.Operation {
	case admission.Create:
		object, ok := a.Object.(*corev1.Node)
		if !ok {
			return unexpected(a.Object)
		}
		if object.Spec.ConfigSource != nil { //nolint:staticcheck // stored objects may still have it
			return fmt.Errorf("node %q is not allowed to create pods with a non-nil configSource", node)
		}
		if forbidden := forbiddenLabels(object.Labels, nil); len(forbidden) > 0 {
			return fmt.Errorf("node %q is not allowed to set the following labels: %s", node, strings.Join(forbidden, ", "))
		}
	case admission.Update:
		return nodeUpdate(node, a)
	}
	return nil
}

// nodeUpdate keeps a node from choosing its pods: by its taints and labels, or by
// having itself deleted through an owner that does not exist (CVE-2025-5187).
func nodeUpdate(node string, a *admission.Attributes) error {
	object, ok := a.Object.(*corev1.Node)
	if !ok {
		return unexpected(a.Object)
	}
	old, ok := a.OldObject.(*corev1.Node)
	if !ok {
		return unexpected(a.OldObject)
	}
	if object.Spec.ConfigSource != nil && !equality.Semantic.DeepEqual(object.Spec.ConfigSource, old.Spec.ConfigSource) { //nolint:staticcheck // as above
		return fmt.Errorf("node %q is not allowed to update configSource to a new non-nil configSource", node)
	}
	if !equality.Semantic.DeepEqual(object.Spec.Taints, old.Spec.Taints) {
		return fmt.Errorf("node %q is not allowed to modify taints", node)
	}
	if !equality.Semantic.DeepEqual(object.OwnerReferences, old.OwnerReferences) {
		return fmt.Errorf("node %q is not allowed to modify ownerReferences", node)
	}
	if forbidden := forbiddenLabels(object.Labels, old.Labels); len(forbidden) > 0 {
		return fmt.Errorf("is not allowed to modify labels: %s", strings.Join(forbidden, ", "))
	}
	return nil
}

// forbiddenLabels are the labels that differ and that a node may not set.
func forbiddenLabels(now, before map[string]string) []string {
	var forbidden []string
	changed := map[string]bool{}
	for key, value := range now {
		if old, ok := before[key]; !ok || old != value {
			changed[key] = true
		}
	}
	for key := range before {
		if _, ok := now[key]; !ok {
			changed[key] = true
		}
	}
	for _, key := range slices.Sorted(maps.Keys(changed)) {
		namespace, _, ok := strings.Cut(key, "/")
		if !ok {
			continue
		}
		if within(namespace, corev1.LabelNamespaceNodeRestriction) ||
			(within(namespace, "kubernetes.io") || within(namespace, "k8s.io")) && !nodeLabel(key, namespace) {
			forbidden = append(forbidden, key)
		}
	}
	return forbidden
}

// within says whether a label's namespace is domain or below it.
func within(namespace, domain string) bool {
	return namespace == domain || strings.HasSuffix(namespace, "."+domain)
}

// nodeLabel says whether the label is one that node agents set on their nodes.
func nodeLabel(key, namespace string) bool {
	if within(namespace, "kubelet.kubernetes.io") || within(namespace, "node.kubernetes.io") {
		return true
	}
	switch key {
	case corev1.LabelHostname, corev1.LabelTopologyZone, corev1.LabelTopologyRegion,
		corev1.LabelFailureDomainBetaZone, corev1.LabelFailureDomainBetaRegion,
		corev1.LabelInstanceType, corev1.LabelInstanceTypeStable, corev1.LabelOSStable, corev1.LabelArchStable,
		"beta.kubernetes.io/os", "beta.kubernetes.io/arch":
		return true
	}
	return false
}

// claim lets a node report the size and conditions of a claim, and nothing else.
func (p *nodeRestriction) claim(node string, a *admission.Attributes) error {
	if a.Subresource != "status" {
		return errors.New("may only update PVC status")
	}
	if a.Operation != admission.Update {
		return fmt.Errorf("unexpected operation %q", a.Operation)
	}
	old, ok := a.OldObject.(*corev1.PersistentVolumeClaim)
	if !ok {
		return unexpected(a.OldObject)
	}
	claim, ok := a.Object.(*corev1.PersistentVolumeClaim)
	if !ok {
		return unexpected(a.Object)
	}
	old, claim = old.DeepCopy(), claim.DeepCopy()
	for _, c := range []*corev1.PersistentVolumeClaim{old, claim} {
		c.ResourceVersion, c.ManagedFields = "", nil
		c.Status.Capacity, c.Status.Conditions = nil, nil
		c.Status.AllocatedResourceStatuses, c.Status.AllocatedResources = nil, nil
	}
	if !equality.Semantic.DeepEqual(old, claim) {
		return fmt.Errorf("node %q is not allowed to update fields other than status.capacity and status.conditions", node)
	}
	return nil
}

func (p *nodeRestriction) lease(node string, a *admission.Attributes) error {
	if a.Namespace != corev1.NamespaceNodeLease {
		return fmt.Errorf("can only access leases in the %q system namespace", corev1.NamespaceNodeLease)
	}
	if nameOf(a) != node {
		return errors.New("can only access node lease with the same name as the requesting node")
	}
	return nil
}

func (p *nodeRestriction) slice(a *admission.Attributes, node string) error {
	for _, obj := range []any{a.Object, a.OldObject} {
		slice, ok := obj.(*resourcev1.ResourceSlice)
		if ok && (slice.Spec.NodeName == nil || *slice.Spec.NodeName != node) {
			return errors.New("can only access ResourceSlice with the same NodeName as the requesting node")
		}
	}
	return nil
}

func (p *nodeRestriction) podCertificate(ctx context.Context, node string, a *admission.Attributes) error {
	if a.Operation != admission.Create || a.Subresource != "" {
		return fmt.Errorf("unexpected operation %q", a.Operation)
	}
	request, ok := a.Object.(*certificatesv1.PodCertificateRequest)
	if !ok {
		return unexpected(a.Object)
	}
	if string(request.Spec.NodeName) != node {
		return fmt.Errorf("PodCertificateRequest.Spec.NodeName=%q, which is not the requesting node %q", request.Spec.NodeName, node)
	}
	obj, err := p.reader.Get(ctx, corev1.Resource("pods"), a.Namespace, request.Spec.PodName)
	if err != nil {
		return err
	}
	pod, ok := obj.(*corev1.Pod)
	switch {
	case !ok || pod.Spec.NodeName != node:
		return fmt.Errorf("pod %q is not running on node %q", request.Spec.PodName, node)
	case pod.UID != request.Spec.PodUID:
		return fmt.Errorf("PodCertificateRequest for pod %q contains pod UID (%q) which differs from the one on record", request.Spec.PodName, request.Spec.PodUID)
	case isMirror(pod):
		return fmt.Errorf("pod %q is a mirror pod", request.Spec.PodName)
	case pod.Spec.ServiceAccountName != request.Spec.ServiceAccountName:
		return fmt.Errorf("PodCertificateRequest for pod %q names serviceAccountName %q, which differs from the one on record", request.Spec.PodName, request.Spec.ServiceAccountName)
	}
	return nil
}

// token lets a node ask for tokens that are bound to a pod that it runs, for an
// audience that the pod uses.
func (p *nodeRestriction) token(ctx context.Context, node string, a *admission.Attributes) error {
	if a.Operation != admission.Create || a.Subresource != "token" {
		return nil
	}
	request, ok := a.Object.(*authenticationv1.TokenRequest)
	if !ok {
		return unexpected(a.Object)
	}
	ref := request.Spec.BoundObjectRef
	if ref == nil || ref.APIVersion != "v1" || ref.Kind != "Pod" || ref.Name == "" {
		return errors.New("node requested token not bound to a pod")
	}
	if ref.UID == "" {
		return errors.New("node requested token with a pod binding without a uid")
	}
	obj, err := p.reader.Get(ctx, corev1.Resource("pods"), a.Namespace, ref.Name)
	if err != nil {
		return err
	}
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return unexpected(obj)
	}
	if ref.UID != pod.UID {
		return fmt.Errorf("the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID)
	}
	if pod.Spec.NodeName != node {
		return errors.New("node requested token bound to a pod scheduled on a different node")
	}
	return p.audience(ctx, a, pod, request.Spec.Audiences)
}

// audience checks that the pod uses tokens of the audience, or that a rule lets
// the node ask for it.
func (p *nodeRestriction) audience(ctx context.Context, a *admission.Attributes, pod *corev1.Pod, audiences []string) error {
	audience := ""
	if !p.own(audiences) {
		if len(audiences) > 1 {
			return errors.New("node may only request 0 or 1 audiences")
		}
		audience = audiences[0]
	}
	used, err := p.usedAudiences(ctx, pod)
	if err != nil {
		return err
	}
	if slices.Contains(used, audience) {
		return nil
	}
	if p.authorizer != nil {
		decision, _, err := p.authorizer.Authorize(ctx, authz.Attributes{
			User: a.User, ResourceRequest: true, Verb: "request-serviceaccounts-token-audience",
			APIVersion: "*", Resource: audience, Namespace: a.Namespace, Name: a.Name,
		})
		if err == nil && decision == authz.Allow {
			return nil
		}
	}
	return fmt.Errorf("audience %q not found in pod spec volume", audience)
}

// own says whether the audiences are the API server's, or none, which means them.
func (p *nodeRestriction) own(audiences []string) bool {
	for _, audience := range audiences {
		if audience != "" && !slices.Contains(p.apiAudiences, audience) {
			return false
		}
	}
	return true
}

// usedAudiences are the audiences of the tokens that a pod's volumes hold; the
// API server's own is "".
func (p *nodeRestriction) usedAudiences(ctx context.Context, pod *corev1.Pod) ([]string, error) {
	var used []string
	add := func(audience string) {
		if slices.Contains(p.apiAudiences, audience) {
			audience = ""
		}
		used = append(used, audience)
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Projected != nil {
			for _, source := range v.Projected.Sources {
				if source.ServiceAccountToken != nil {
					add(source.ServiceAccountToken.Audience)
				}
			}
		}
		driver, err := p.driverOf(ctx, pod, v)
		if err != nil {
			return nil, err
		}
		if driver != nil {
			for _, request := range driver.Spec.TokenRequests {
				add(request.Audience)
			}
		}
	}
	return used, nil
}

// driverOf is the CSI driver of a volume, nil without one.
func (p *nodeRestriction) driverOf(ctx context.Context, pod *corev1.Pod, v *corev1.Volume) (*storagev1.CSIDriver, error) {
	name, claim := "", ""
	switch {
	case v.CSI != nil:
		name = v.CSI.Driver
	case v.PersistentVolumeClaim != nil:
		claim = v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		claim = pod.Name + "-" + v.Name
	default:
		return nil, nil
	}
	if claim != "" {
		var err error
		if name, err = p.driverOfClaim(ctx, pod.Namespace, claim); err != nil || name == "" {
			return nil, err
		}
	}
	obj, err := p.reader.Get(ctx, storagev1.Resource("csidrivers"), "", name)
	if err != nil {
		return nil, ignoreNotFound(err)
	}
	driver, _ := obj.(*storagev1.CSIDriver)
	return driver, nil
}

func (p *nodeRestriction) driverOfClaim(ctx context.Context, namespace, name string) (string, error) {
	obj, err := p.reader.Get(ctx, corev1.Resource("persistentvolumeclaims"), namespace, name)
	if err != nil {
		return "", ignoreNotFound(err)
	}
	claim, ok := obj.(*corev1.PersistentVolumeClaim)
	if !ok || claim.Spec.VolumeName == "" {
		return "", nil
	}
	if obj, err = p.reader.Get(ctx, corev1.Resource("persistentvolumes"), "", claim.Spec.VolumeName); err != nil {
		return "", ignoreNotFound(err)
	}
	if volume, ok := obj.(*corev1.PersistentVolume); ok && volume.Spec.CSI != nil {
		return volume.Spec.CSI.Driver, nil
	}
	return "", nil
}
