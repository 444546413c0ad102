package plugins

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/sampan-io/sampan/services/scheduler/internal/cluster"
	"github.com/sampan-io/sampan/services/scheduler/internal/framework"
)

const (
	volumeBindingName = "VolumeBinding"
	// bindTimeout is how long a pod waits for its claims to be bound, and bindPause
	// how often it looks.
	bindTimeout = 10 * time.Minute
	bindPause   = 50 * time.Millisecond

	noProvisioner = "kubernetes.io/no-provisioner"
)

// volumeBinding sends a pod to where its volumes are, and binds those that wait
// for the pod's node.
type volumeBinding struct {
	volumes framework.Volumes
	timeout time.Duration
}

func newVolumeBinding(args []byte, handle framework.Handle) (framework.Plugin, error) {
	var parsed struct {
		BindTimeoutSeconds *int64 `json:"bindTimeoutSeconds,omitempty"`
	}
	if err := decode(volumeBindingName, args, &parsed); err != nil {
		return nil, err
	}
	p := &volumeBinding{volumes: handle.Volumes, timeout: bindTimeout}
	if parsed.BindTimeoutSeconds != nil {
		if *parsed.BindTimeoutSeconds < 0 {
			return nil, errors.New("bindTimeoutSeconds of VolumeBinding must not be negative")
		}
		p.timeout = time.Duration(*parsed.BindTimeoutSeconds) * time.Second
	}
	return p, nil
}

func (*volumeBinding) Name() string { return volumeBindingName }

// podClaims are a pod's claims: those that are bound, with their volumes, and
// those that wait for the pod's node.
type podClaims struct {
	bound  []*corev1.PersistentVolume
	waits  []*corev1.PersistentVolumeClaim
	chosen map[string]map[string]*corev1.PersistentVolume // by node, by claim; nil volume is to be provisioned
}

func (p *volumeBinding) PreFilter(_ context.Context, state *framework.CycleState, pod *cluster.Pod, _ *cluster.Snapshot) (onlyNodes, *framework.Status) {
	if p.volumes == nil || !slices.ContainsFunc(pod.Object.Spec.Volumes, claims) {
		return nil, framework.NewStatus(framework.Skip)
	}
	found := &podClaims{chosen: map[string]map[string]*corev1.PersistentVolume{}}
	for i := range pod.Object.Spec.Volumes {
		volume := &pod.Object.Spec.Volumes[i]
		if !claims(*volume) {
			continue
		}
		if status := p.find(pod.Object, volume, found); status != nil {
			return nil, status
		}
	}
	state.Write(volumeBindingName, found)
	return nil, nil
}

func claims(volume corev1.Volume) bool {
	return volume.PersistentVolumeClaim != nil || volume.Ephemeral != nil
}

// find adds the claim of one of the pod's volumes.
func (p *volumeBinding) find(pod *corev1.Pod, volume *corev1.Volume, found *podClaims) *framework.Status {
	name := pod.Name + "-" + volume.Name
	if volume.PersistentVolumeClaim != nil {
		name = volume.PersistentVolumeClaim.ClaimName
	}
	claim := p.volumes.Claim(pod.Namespace, name)
	switch {
	case claim == nil && volume.Ephemeral != nil:
		return refusal(volumeBindingName, framework.UnschedulableAndUnresolvable, fmt.Sprintf("waiting for ephemeral volume controller to create the persistentvolumeclaim %q", name))
	case claim == nil:
		return refusal(volumeBindingName, framework.UnschedulableAndUnresolvable, fmt.Sprintf("persistentvolumeclaim %q not found", name))
	case claim.DeletionTimestamp != nil:
		return refusal(volumeBindingName, framework.UnschedulableAndUnresolvable, fmt.Sprintf("persistentvolumeclaim %q is being deleted", name))
	case claim.Status.Phase == corev1.ClaimLost:
		return refusal(volumeBindingName, framework.UnschedulableAndUnresolvable, fmt.Sprintf("persistentvolumeclaim %q bound to non-existent persistentvolume %q", name, claim.Spec.VolumeName))
	case claim.Spec.VolumeName != "" && claim.Status.Phase == corev1.ClaimBound:
		bound := p.volumes.Volume(claim.Spec.VolumeName)
		if bound == nil {
			return refusal(volumeBindingName, framework.UnschedulableAndUnresolvable, fmt.Sprintf("persistentvolume %q not found", claim.Spec.VolumeName))
		}
		found.bound = append(found.bound, bound)
		return nil
	}
	if class := p.class(claim); class == nil || class.VolumeBindingMode == nil || *class.VolumeBindingMode != storagev1.VolumeBindingWaitForFirstConsumer {
		return refusal(volumeBindingName, framework.UnschedulableAndUnresolvable, "pod has unbound immediate PersistentVolumeClaims")
	}
	found.waits = append(found.waits, claim)
	return nil
}

func (p *volumeBinding) class(claim *corev1.PersistentVolumeClaim) *storagev1.StorageClass {
	if claim.Spec.StorageClassName == nil || *claim.Spec.StorageClassName == "" {
		return nil
	}
	return p.volumes.Class(*claim.Spec.StorageClassName)
}

func (p *volumeBinding) Filter(_ context.Context, state *framework.CycleState, _ *cluster.Pod, node *cluster.Node) *framework.Status {
	found, ok := framework.Read[*podClaims](state, volumeBindingName)
	if !ok {
		return nil
	}
	for _, volume := range found.bound {
		if !reachable(volume, node.Object) {
			return refusal(volumeBindingName, framework.UnschedulableAndUnresolvable, "node(s) didn't match PersistentVolume's node affinity")
		}
	}
	_, status := p.match(found.waits, node.Object)
	return status
}

// reachable says whether a volume can be had on a node.
func reachable(volume *corev1.PersistentVolume, node *corev1.Node) bool {
	if volume.Spec.NodeAffinity == nil || volume.Spec.NodeAffinity.Required == nil {
		return true
	}
	selector, err := nodeaffinity.NewNodeSelector(volume.Spec.NodeAffinity.Required)
	return err == nil && selector.Match(node)
}

// match finds for each claim a volume that is free and can be had on the node, or
// nil where its class's provisioner can make one there.
func (p *volumeBinding) match(waits []*corev1.PersistentVolumeClaim, node *corev1.Node) (map[string]*corev1.PersistentVolume, *framework.Status) {
	chosen := map[string]*corev1.PersistentVolume{}
	taken := map[string]bool{}
	for _, claim := range waits {
		if selected := claim.Annotations[selectedNode]; selected != "" && selected != node.Name {
			return nil, refusal(volumeBindingName, framework.Unschedulable, "node(s) didn't find available persistent volumes to bind")
		}
		var best *corev1.PersistentVolume
		for _, volume := range p.volumes.OfClass(*claim.Spec.StorageClassName) {
			if !taken[volume.Name] && fitsClaim(volume, claim) && reachable(volume, node) && (best == nil || storageOf(volume.Spec.Capacity).Cmp(*storageOf(best.Spec.Capacity)) < 0) {
				best = volume
			}
		}
		if best == nil && !provisionable(p.class(claim), node) {
			return nil, refusal(volumeBindingName, framework.Unschedulable, "node(s) didn't find available persistent volumes to bind")
		}
		if best == nil && !p.enough(p.class(claim), claim, node) {
			return nil, refusal(volumeBindingName, framework.Unschedulable, "node(s) did not have enough free storage")
		}
		if best != nil {
			taken[best.Name] = true
		}
		chosen[claim.Name] = best
	}
	return chosen, nil
}

const selectedNode = "volume.kubernetes.io/selected-node"

func storageOf(list corev1.ResourceList) *resource.Quantity {
	quantity := list[corev1.ResourceStorage]
	return &quantity
}

// fitsClaim says whether a volume is free for a claim and large enough.
func fitsClaim(volume *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	if reference := volume.Spec.ClaimRef; reference != nil {
		if reference.Namespace != claim.Namespace || reference.Name != claim.Name || reference.UID != "" && reference.UID != claim.UID {
			return false
		}
	} else if volume.Status.Phase != corev1.VolumeAvailable || volume.DeletionTimestamp != nil {
		return false
	}
	for _, mode := range claim.Spec.AccessModes {
		if !slices.Contains(volume.Spec.AccessModes, mode) {
			return false
		}
	}
	if claim.Spec.Selector != nil {
		selector, err := metav1.LabelSelectorAsSelector(claim.Spec.Selector)
		if err != nil || !selector.Matches(labels.Set(volume.Labels)) {
			return false
		}
	}
	return storageOf(volume.Spec.Capacity).Cmp(*storageOf(claim.Spec.Resources.Requests)) >= 0 && volumeMode(volume.Spec.VolumeMode) == volumeMode(claim.Spec.VolumeMode)
}

func volumeMode(mode *corev1.PersistentVolumeMode) corev1.PersistentVolumeMode {
	if mode == nil {
		return corev1.PersistentVolumeFilesystem
	}
	return *mode
}

// provisionable says whether a class's provisioner makes volumes for the node.
func provisionable(class *storagev1.StorageClass, node *corev1.Node) bool {
	if class == nil || class.Provisioner == noProvisioner {
		return false
	}
	return len(class.AllowedTopologies) == 0 || slices.ContainsFunc(class.AllowedTopologies, func(term corev1.TopologySelectorTerm) bool {
		return within(term, node)
	})
}

// enough says whether a class's provisioner has the room for a claim on the node.
// Only drivers that publish their capacity are judged.
func (p *volumeBinding) enough(class *storagev1.StorageClass, claim *corev1.PersistentVolumeClaim, node *corev1.Node) bool {
	driver := p.volumes.CSIDriver(class.Provisioner)
	if driver == nil || driver.Spec.StorageCapacity == nil || !*driver.Spec.StorageCapacity {
		return true
	}
	size := storageOf(claim.Spec.Resources.Requests)
	return slices.ContainsFunc(p.volumes.Capacities(class.Name), func(capacity *storagev1.CSIStorageCapacity) bool {
		limit := capacity.Capacity
		if capacity.MaximumVolumeSize != nil {
			limit = capacity.MaximumVolumeSize
		}
		if limit == nil || limit.Cmp(*size) < 0 || capacity.NodeTopology == nil {
			return false
		}
		selector, err := metav1.LabelSelectorAsSelector(capacity.NodeTopology)
		return err == nil && selector.Matches(labels.Set(node.Labels))
	})
}

// within says whether the node has all that a term of allowed topologies asks for.
func within(term corev1.TopologySelectorTerm, node *corev1.Node) bool {
	for _, expression := range term.MatchLabelExpressions {
		if value, has := node.Labels[expression.Key]; !has || !slices.Contains(expression.Values, value) {
			return false
		}
	}
	return len(term.MatchLabelExpressions) > 0
}

// Reserve keeps what was matched for PreBind, under the node that was chosen.
func (p *volumeBinding) Reserve(_ context.Context, state *framework.CycleState, _ *cluster.Pod, node string) *framework.Status {
	found, ok := framework.Read[*podClaims](state, volumeBindingName)
	if !ok || len(found.waits) == 0 {
		return nil
	}
	object := p.volumes.Node(node)
	if object == nil {
		return framework.AsStatus(fmt.Errorf("node %s is gone", node))
	}
	chosen, status := p.match(found.waits, object)
	if status != nil {
		return status
	}
	found.chosen[node] = chosen
	return nil
}

func (p *volumeBinding) Unreserve(_ context.Context, state *framework.CycleState, _ *cluster.Pod, node string) {
	if found, ok := framework.Read[*podClaims](state, volumeBindingName); ok {
		delete(found.chosen, node)
	}
}

// PreBind has the claims bound: to the volumes that were chosen, or to what is
// provisioned for the node; and waits until they are.
func (p *volumeBinding) PreBind(ctx context.Context, state *framework.CycleState, pod *cluster.Pod, node string) *framework.Status {
	found, ok := framework.Read[*podClaims](state, volumeBindingName)
	if !ok || len(found.waits) == 0 {
		return nil
	}
	for _, claim := range found.waits {
		if err := p.volumes.Assign(ctx, claim, found.chosen[node][claim.Name], node); err != nil {
			return framework.AsStatus(fmt.Errorf("binding volumes: %w", err))
		}
	}
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	ticker := time.NewTicker(bindPause)
	defer ticker.Stop()
	for {
		if p.allBound(pod.Object.Namespace, found.waits) {
			return nil
		}
		select {
		case <-ctx.Done():
			return framework.AsStatus(fmt.Errorf("binding volumes: %w", ctx.Err()))
		case <-ticker.C:
		}
	}
}

func (p *volumeBinding) allBound(namespace string, waits []*corev1.PersistentVolumeClaim) bool {
	for _, claim := range waits {
		if now := p.volumes.Claim(namespace, claim.Name); now == nil || now.Status.Phase != corev1.ClaimBound {
			return false
		}
	}
	return true
}

func (*volumeBinding) Interests() []framework.Interest {
	return []framework.Interest{
		{Resource: framework.StorageResource, Actions: framework.All},
		{Resource: framework.NodeResource, Actions: framework.Add | framework.UpdateNodeLabels},
	}
}
