package plugins

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/sampan-io/sampan/services/scheduler/internal/cluster"
	"github.com/sampan-io/sampan/services/scheduler/internal/framework"
)

const nodeVolumeLimitsName = "NodeVolumeLimits"

// nodeVolumeLimits keeps a node from more volumes of a CSI driver than the driver
// can attach to it, as the node's CSINode says.
type nodeVolumeLimits struct{ volumes framework.Volumes }

func newNodeVolumeLimits(args []byte, handle framework.Handle) (framework.Plugin, error) {
	return &nodeVolumeLimits{handle.Volumes}, none(nodeVolumeLimitsName, args)
}

func (*nodeVolumeLimits) Name() string { return nodeVolumeLimitsName }

func (p *nodeVolumeLimits) PreFilter(_ context.Context, _ *framework.CycleState, pod *cluster.Pod, _ *cluster.Snapshot) (onlyNodes, *framework.Status) {
	if p.volumes == nil || !slices.ContainsFunc(pod.Object.Spec.Volumes, claims) {
		return nil, framework.NewStatus(framework.Skip)
	}
	return nil, nil
}

func (p *nodeVolumeLimits) Filter(_ context.Context, _ *framework.CycleState, pod *cluster.Pod, node *cluster.Node) *framework.Status {
	limits := limitsOf(p.volumes.CSINode(node.Name))
	if len(limits) == 0 {
		return nil
	}
	added := map[string]string{}
	p.count(pod.Object, added)
	used := map[string]string{}
	for _, other := range node.Pods {
		p.count(other.Object, used)
	}
	counts := map[string]int32{}
	for _, driver := range used {
		counts[driver]++
	}
	for volume, driver := range added {
		limit, limited := limits[driver]
		if _, there := used[volume]; there || !limited {
			continue
		}
		if counts[driver]++; counts[driver] > limit {
			return refusal(nodeVolumeLimitsName, framework.Unschedulable, "node(s) exceed max volume count")
		}
	}
	return nil
}

func limitsOf(node *storagev1.CSINode) map[string]int32 {
	limits := map[string]int32{}
	if node == nil {
		return limits
	}
	for _, driver := range node.Spec.Drivers {
		if driver.Allocatable != nil && driver.Allocatable.Count != nil {
			limits[driver.Name] = *driver.Allocatable.Count
		}
	}
	return limits
}

// count adds the volumes of a pod's claims and their drivers. One that is yet to be
// provisioned counts for the driver of its class.
func (p *nodeVolumeLimits) count(pod *corev1.Pod, into map[string]string) {
	for i := range pod.Spec.Volumes {
		if !claims(pod.Spec.Volumes[i]) {
			continue
		}
		claim := p.volumes.Claim(pod.Namespace, claimName(pod, &pod.Spec.Volumes[i]))
		if claim == nil {
			continue
		}
		if volume := p.volumes.Volume(claim.Spec.VolumeName); claim.Spec.VolumeName != "" && volume != nil {
			if volume.Spec.CSI != nil {
				into[volume.Spec.CSI.Driver+"/"+volume.Spec.CSI.VolumeHandle] = volume.Spec.CSI.Driver
			}
			continue
		}
		if claim.Spec.StorageClassName == nil {
			continue
		}
		if class := p.volumes.Class(*claim.Spec.StorageClassName); class != nil && class.Provisioner != noProvisioner {
			into["claim/"+claim.Namespace+"/"+claim.Name] = class.Provisioner
		}
	}
}

// claimName is that of the claim which one of the pod's volumes stands for.
func claimName(pod *corev1.Pod, volume *corev1.Volume) string {
	if volume.PersistentVolumeClaim != nil {
		return volume.PersistentVolumeClaim.ClaimName
	}
	return pod.Name + "-" + volume.Name
}

func (*nodeVolumeLimits) Interests() []framework.Interest {
	return []framework.Interest{
		{Resource: framework.StorageResource, Actions: framework.All},
		{Resource: framework.NodeResource, Actions: framework.Add},
		{Resource: framework.PodResource, Actions: framework.Delete},
	}
}
