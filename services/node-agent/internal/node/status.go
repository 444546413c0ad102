package node

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// sendStatus patches the difference, if there is one or if it must.
func (n *Node) sendStatus(ctx context.Context, must bool) error {
	base := n.Object()
	status := n.makeStatus(ctx, base)
	if !must && equality.Semantic.DeepEqual(withoutHeartbeats(status), withoutHeartbeats(base.Status)) {
		return nil
	}
	before, err := json.Marshal(corev1.Node{Status: base.Status})
	if err != nil {
		return err
	}
	after, err := json.Marshal(corev1.Node{Status: status})
	if err != nil {
		return err
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, corev1.Node{})
	if err != nil {
		return fmt.Errorf("making the node's status patch: %w", err)
	}
	updated, err := n.cfg.Client.CoreV1().Nodes().Patch(ctx, n.cfg.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) {
		return n.tryRegister(ctx)
	}
	if err != nil {
		return err
	}
	n.setObject(updated)
	return nil
}

func withoutHeartbeats(status corev1.NodeStatus) corev1.NodeStatus {
	copied := *status.DeepCopy()
	for i := range copied.Conditions {
		copied.Conditions[i].LastHeartbeatTime = metav1.Time{}
		copied.Conditions[i].LastTransitionTime = metav1.Time{}
	}
	slices.SortFunc(copied.Conditions, func(a, b corev1.NodeCondition) int { return cmp.Compare(a.Type, b.Type) })
	data, err := json.Marshal(copied)
	if err != nil {
		return copied
	}
	var out corev1.NodeStatus
	if json.Unmarshal(data, &out) != nil {
		return copied
	}
	return out
}

// makeStatus is the node's status now; what others have put there stays.
func (n *Node) makeStatus(ctx context.Context, base *corev1.Node) corev1.NodeStatus {
	const patience = 10 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	status := *base.Status.DeepCopy()
	capacity, allocatable := n.Capacity(), n.Allocatable()
	if status.Capacity == nil {
		status.Capacity, status.Allocatable = corev1.ResourceList{}, corev1.ResourceList{}
	}
	for name, value := range capacity {
		status.Capacity[name], status.Allocatable[name] = value, allocatable[name]
	}
	status.Addresses = n.addresses()
	status.NodeInfo = n.cfg.Machine.Info
	status.DaemonEndpoints.KubeletEndpoint.Port = n.cfg.Port
	version, versionErr := n.cfg.Runtime.Version(ctx)
	if versionErr == nil {
		status.NodeInfo.ContainerRuntimeVersion = version.GetRuntimeName() + "://" + version.GetRuntimeVersion()
	} else {
		status.NodeInfo.ContainerRuntimeVersion = base.Status.NodeInfo.ContainerRuntimeVersion
	}
	state, err := n.cfg.Runtime.Status(ctx)
	n.features(&status, state)
	if images, err := n.cfg.Runtime.Images(ctx); err == nil {
		status.Images = listImages(images, n.cfg.MaxImages)
	}
	if n.cfg.VolumesInUse != nil {
		status.VolumesInUse = n.cfg.VolumesInUse()
	}
	n.conditions(&status, state, err)
	return status
}

func (n *Node) features(status *corev1.NodeStatus, state *runtimeapi.StatusResponse) {
	if state == nil {
		return
	}
	status.RuntimeHandlers = nil
	for _, handler := range state.GetRuntimeHandlers() {
		rro, userns := handler.GetFeatures().GetRecursiveReadOnlyMounts(), handler.GetFeatures().GetUserNamespaces()
		status.RuntimeHandlers = append(status.RuntimeHandlers, corev1.NodeRuntimeHandler{
			Name: handler.GetName(), Features: &corev1.NodeRuntimeHandlerFeatures{RecursiveReadOnlyMounts: &rro, UserNamespaces: &userns},
		})
	}
	slices.SortFunc(status.RuntimeHandlers, func(a, b corev1.NodeRuntimeHandler) int { return cmp.Compare(a.Name, b.Name) })
	strict := state.GetFeatures().GetSupplementalGroupsPolicy()
	status.Features = &corev1.NodeFeatures{SupplementalGroupsPolicy: &strict}
}

// listImages are the largest ones, for the scheduler.
func listImages(images []*runtimeapi.Image, most int) []corev1.ContainerImage {
	const namesOfImage = 5
	sorted := slices.SortedStableFunc(slices.Values(images), func(a, b *runtimeapi.Image) int {
		return cmp.Or(cmp.Compare(b.GetSize(), a.GetSize()), cmp.Compare(a.GetId(), b.GetId()))
	})
	if most >= 0 {
		sorted = sorted[:min(len(sorted), most)]
	}
	var list []corev1.ContainerImage
	for _, image := range sorted {
		names := slices.Concat(image.GetRepoDigests(), image.GetRepoTags())
		if len(names) == 0 {
			continue
		}
		list = append(list, corev1.ContainerImage{Names: names[:min(len(names), namesOfImage)], SizeBytes: int64(image.GetSize())})
	}
	return list
}

func (n *Node) conditions(status *corev1.NodeStatus, state *runtimeapi.StatusResponse, err error) {
	now := metav1.Now()
	for _, condition := range append(n.pressures(), n.readiness(state, err)) {
		condition.LastHeartbeatTime, condition.LastTransitionTime = now, now
		at := slices.IndexFunc(status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == condition.Type })
		if at < 0 {
			status.Conditions = append(status.Conditions, condition)
			continue
		}
		if status.Conditions[at].Status == condition.Status {
			condition.LastTransitionTime = status.Conditions[at].LastTransitionTime
		}
		status.Conditions[at] = condition
	}
}

// pressures are what the node may run short of.
func (n *Node) pressures() []corev1.NodeCondition {
	var list []corev1.NodeConditionType
	if n.cfg.Pressure != nil {
		list = n.cfg.Pressure()
	}
	var out []corev1.NodeCondition
	for _, p := range []struct {
		condition                                    corev1.NodeConditionType
		noReason, noMessage, someReason, someMessage string
	}{
		{corev1.NodeMemoryPressure, "KubeletHasSufficientMemory", "kubelet has sufficient memory available", "KubeletHasInsufficientMemory", "kubelet has insufficient memory available"},
		{corev1.NodeDiskPressure, "KubeletHasNoDiskPressure", "kubelet has no disk pressure", "KubeletHasDiskPressure", "kubelet has disk pressure"},
		{corev1.NodePIDPressure, "KubeletHasSufficientPID", "kubelet has sufficient PID available", "KubeletHasInsufficientPID", "kubelet has insufficient PID available"},
	} {
		condition := corev1.NodeCondition{Type: p.condition, Status: corev1.ConditionFalse, Reason: p.noReason, Message: p.noMessage}
		if slices.Contains(list, p.condition) {
			condition.Status, condition.Reason, condition.Message = corev1.ConditionTrue, p.someReason, p.someMessage
		}
		out = append(out, condition)
	}
	return out
}

// readiness is what the runtime says of itself and of the pod network.
func (n *Node) readiness(state *runtimeapi.StatusResponse, err error) corev1.NodeCondition {
	condition := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status"}
	problem := ""
	if err != nil {
		problem = fmt.Sprintf("container runtime is down: %v", err)
	}
	for _, c := range state.GetStatus().GetConditions() {
		if c.GetStatus() {
			continue
		}
		what := fmt.Sprintf("%s=false reason:%s message:%s", c.GetType(), c.GetReason(), c.GetMessage())
		switch c.GetType() {
		case runtimeapi.RuntimeReady:
			problem = "container runtime not ready: " + what
		case runtimeapi.NetworkReady:
			problem = "container runtime network not ready: " + what
		}
	}
	if n.cfg.Unready != nil && problem == "" {
		problem = n.cfg.Unready()
	}
	if problem != "" {
		condition.Status, condition.Reason, condition.Message = corev1.ConditionFalse, "KubeletNotReady", problem
	}
	return condition
}
