package plugins

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/sampan-io/sampan/services/scheduler/internal/cluster"
	"github.com/sampan-io/sampan/services/scheduler/internal/framework"
)

const volumeRestrictionsName = "VolumeRestrictions"

// volumeRestrictions lets one pod at a time have a claim that is ReadWriteOncePod.
type volumeRestrictions struct{ volumes framework.Volumes }

func newVolumeRestrictions(args []byte, handle framework.Handle) (framework.Plugin, error) {
	return &volumeRestrictions{handle.Volumes}, none(volumeRestrictionsName, args)
}

func (*volumeRestrictions) Name() string { return volumeRestrictionsName }

// exclusive is what a pod wants alone, and how many of its claims others have, on
// any node. A what-if has a copy.
type exclusive struct {
	claims    sets.Set[string]
	conflicts int
}

// Clone implements framework.Cloner.
func (e *exclusive) Clone() any {
	copied := *e
	return &copied
}

func (p *volumeRestrictions) PreFilter(_ context.Context, state *framework.CycleState, pod *cluster.Pod, snapshot *cluster.Snapshot) (onlyNodes, *framework.Status) {
	wanted := sets.New[string]()
	if p.volumes != nil {
		for _, name := range claimNames(pod.Object) {
			if claim := p.volumes.Claim(pod.Object.Namespace, name); claim != nil && slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteOncePod) {
				wanted.Insert(name)
			}
		}
	}
	if len(wanted) == 0 {
		return nil, framework.NewStatus(framework.Skip)
	}
	found := &exclusive{claims: wanted}
	for _, node := range snapshot.Nodes() {
		for _, other := range node.Pods {
			found.conflicts += found.shared(pod, other)
		}
	}
	state.Write(volumeRestrictionsName, found)
	return nil, nil
}

func (e *exclusive) shared(pod, other *cluster.Pod) int {
	if other.Object.Namespace != pod.Object.Namespace || other.Object.UID == pod.Object.UID {
		return 0
	}
	count := 0
	for _, name := range claimNames(other.Object) {
		if e.claims.Has(name) {
			count++
		}
	}
	return count
}

func claimNames(pod *corev1.Pod) []string {
	var names []string
	for i := range pod.Spec.Volumes {
		if claims(pod.Spec.Volumes[i]) {
			names = append(names, claimName(pod, &pod.Spec.Volumes[i]))
		}
	}
	return names
}

func (p *volumeRestrictions) AddPod(state *framework.CycleState, pod, other *cluster.Pod, _ *cluster.Node, _ *cluster.Snapshot) *framework.Status {
	if found, ok := framework.Read[*exclusive](state, volumeRestrictionsName); ok {
		found.conflicts += found.shared(pod, other)
	}
	return nil
}

func (p *volumeRestrictions) RemovePod(state *framework.CycleState, pod, other *cluster.Pod, _ *cluster.Node, _ *cluster.Snapshot) *framework.Status {
	if found, ok := framework.Read[*exclusive](state, volumeRestrictionsName); ok {
		found.conflicts -= found.shared(pod, other)
	}
	return nil
}

func (p *volumeRestrictions) Filter(_ context.Context, state *framework.CycleState, _ *cluster.Pod, _ *cluster.Node) *framework.Status {
	if found, ok := framework.Read[*exclusive](state, volumeRestrictionsName); ok && found.conflicts > 0 {
		return refusal(volumeRestrictionsName, framework.Unschedulable, "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode")
	}
	return nil
}

func (*volumeRestrictions) Interests() []framework.Interest {
	return []framework.Interest{
		{Resource: framework.PodResource, Actions: framework.Delete},
		{Resource: framework.StorageResource, Actions: framework.All},
	}
}
