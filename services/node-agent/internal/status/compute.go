// Package status finds out what a pod's status is and writes it to the API
// server. Finding out is pure.
package status

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/cri"
	"github.com/sampan-io/sampan/services/node-agent/internal/criconfig"
	"github.com/sampan-io/sampan/services/node-agent/internal/qos"
)

// Reasons of waiting containers and failed pods, upstream's.
const (
	ReasonContainerCreating = "ContainerCreating"
	ReasonPodInitializing   = "PodInitializing"
	ReasonCrashLoopBackOff  = "CrashLoopBackOff"
	ReasonCompleted         = "Completed"
	ReasonError             = "Error"
	ReasonUnknown           = "ContainerStatusUnknown"
	ReasonDeadlineExceeded  = "DeadlineExceeded"
	ReasonEvicted           = "Evicted"
)

// Waiting says why a container does not run.
type Waiting struct{ Reason, Message string }

// End is why a whole pod has failed without its containers' doing.
type End struct {
	Reason, Message string
	// Grace bounds the grace period of the pod's containers, in seconds; 0 leaves it to
	// the pod.
	Grace int64
	// Disruption is the reason of the condition DisruptionTarget; "" makes none.
	Disruption string
}

// Input is all that a status is made from.
type Input struct {
	Pod     *corev1.Pod // its status is the last known one
	Runtime cri.Pod
	// Waiting tells by container name why it does not run now.
	Waiting map[string]Waiting
	// Started and Ready tell what the probes say of a running container.
	Started, Ready func(containerID string) bool
	// Starting tells that a running container is not shown as such yet, because its
	// hook after the start goes on.
	Starting func(containerID string) bool
	// Resources are those that a container has been given and has; nil does not tell.
	Resources func(container string, running bool) (allocated corev1.ResourceList, resources *corev1.ResourceRequirements)
	// Resize are the conditions that are there only while something goes on: a change of
	// resources, a restart of all containers.
	Resize []corev1.PodCondition
	// Message reads the termination message of an exited container.
	Message func(c cri.Container) string
	// RuntimeName is the scheme of container ids: "containerd".
	RuntimeName string
	HostIPs     []string
	End         *End
	// Finished tells that no container runs nor will.
	Finished bool
	Now      time.Time
}

// Compute is the pod's status now.
func Compute(in Input) corev1.PodStatus {
	pod, old := in.Pod, in.Pod.Status
	out := corev1.PodStatus{
		ObservedGeneration:          pod.Generation,
		QOSClass:                    qos.Class(pod),
		StartTime:                   old.StartTime,
		NominatedNodeName:           "",
		ResourceClaimStatuses:       old.ResourceClaimStatuses,
		ExtendedResourceClaimStatus: old.ExtendedResourceClaimStatus,
	}
	if out.StartTime == nil {
		now := metav1.NewTime(in.Now)
		out.StartTime = &now
	}
	addresses(&out, in)
	out.InitContainerStatuses = in.initStatuses()
	out.ContainerStatuses = in.containerStatuses(initialized(pod, out.InitContainerStatuses))
	out.EphemeralContainerStatuses = in.ephemeralStatuses()
	out.Phase = phase(pod, &out, in)
	if in.End != nil {
		out.Phase, out.Reason, out.Message = corev1.PodFailed, in.End.Reason, in.End.Message
	} else if final(old.Phase) {
		out.Reason, out.Message = old.Reason, old.Message
	}
	out.Conditions = conditions(in, &out)
	return out
}

// final tells that a phase is never left.
func final(phase corev1.PodPhase) bool {
	return phase == corev1.PodSucceeded || phase == corev1.PodFailed
}

func addresses(out *corev1.PodStatus, in Input) {
	for _, ip := range in.HostIPs {
		out.HostIPs = append(out.HostIPs, corev1.HostIP{IP: ip})
	}
	if len(out.HostIPs) > 0 {
		out.HostIP = out.HostIPs[0].IP
	}
	for _, ip := range PodIPs(in.Pod, &in.Runtime, in.HostIPs) {
		out.PodIPs = append(out.PodIPs, corev1.PodIP{IP: ip})
	}
	if len(out.PodIPs) == 0 { // a pod keeps its last address in its status
		out.PodIPs = in.Pod.Status.PodIPs
	}
	if len(out.PodIPs) > 0 {
		out.PodIP = out.PodIPs[0].IP
	}
}

// PodIPs are the addresses of the pod's ready sandbox.
func PodIPs(pod *corev1.Pod, runtime *cri.Pod, hostIPs []string) []string {
	sandbox := runtime.Sandbox()
	if sandbox == nil || sandbox.GetState() != runtimeapi.PodSandboxState_SANDBOX_READY {
		return nil
	}
	if pod.Spec.HostNetwork {
		return hostIPs
	}
	var ips []string
	if ip := sandbox.GetNetwork().GetIp(); ip != "" {
		ips = append(ips, ip)
	}
	for _, more := range sandbox.GetNetwork().GetAdditionalIps() {
		ips = append(ips, more.GetIp())
	}
	return ips
}

func (in *Input) initStatuses() []corev1.ContainerStatus {
	var list []corev1.ContainerStatus
	waiting := ReasonPodInitializing
	for i := range in.Pod.Spec.InitContainers {
		spec := &in.Pod.Spec.InitContainers[i]
		status := in.container(spec, find(in.Pod.Status.InitContainerStatuses, spec.Name), waiting)
		status.Ready = initReady(spec, &status)
		list = append(list, status)
	}
	return list
}

// initReady: an init container is ready when it has ended well, a sidecar as any
// other container.
func initReady(spec *corev1.Container, status *corev1.ContainerStatus) bool {
	if criconfig.Restartable(spec) {
		return status.Ready
	}
	return status.State.Terminated != nil && status.State.Terminated.ExitCode == 0
}

func (in *Input) containerStatuses(initialized bool) []corev1.ContainerStatus {
	waiting := ReasonContainerCreating
	if !initialized {
		waiting = ReasonPodInitializing
	}
	var list []corev1.ContainerStatus
	for i := range in.Pod.Spec.Containers {
		spec := &in.Pod.Spec.Containers[i]
		list = append(list, in.container(spec, find(in.Pod.Status.ContainerStatuses, spec.Name), waiting))
	}
	return list
}

func (in *Input) ephemeralStatuses() []corev1.ContainerStatus {
	var list []corev1.ContainerStatus
	for i := range in.Pod.Spec.EphemeralContainers {
		spec := corev1.Container(in.Pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		status := in.container(&spec, find(in.Pod.Status.EphemeralContainerStatuses, spec.Name), ReasonContainerCreating)
		status.Ready, status.Started = false, nil
		list = append(list, status)
	}
	return list
}

func find(list []corev1.ContainerStatus, name string) *corev1.ContainerStatus {
	if i := slices.IndexFunc(list, func(s corev1.ContainerStatus) bool { return s.Name == name }); i >= 0 {
		return &list[i]
	}
	return nil
}

// container is the status of one; old is the last known one, or nil.
func (in *Input) container(spec *corev1.Container, old *corev1.ContainerStatus, waiting string) corev1.ContainerStatus {
	out := corev1.ContainerStatus{Name: spec.Name, Image: spec.Image, VolumeMounts: nil}
	reason, blocked := in.Waiting[spec.Name]
	instances := in.Runtime.Instances(spec.Name)
	started := false
	if len(instances) == 0 {
		in.missing(&out, old, waiting)
	} else {
		in.present(&out, instances, old, waiting)
	}
	if blocked && out.State.Running == nil {
		if out.State.Terminated != nil {
			out.LastTerminationState = corev1.ContainerState{Terminated: out.State.Terminated}
		}
		out.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason.Reason, Message: reason.Message}}
	}
	if out.State.Running != nil {
		id := instances[0].GetId()
		started = in.Started(id)
		out.Ready = started && in.Ready(id)
	}
	out.Started = &started
	if in.Resources != nil {
		out.AllocatedResources, out.Resources = in.Resources(spec.Name, out.State.Running != nil)
	}
	return out
}

// present takes what the runtime tells.
func (in *Input) present(out *corev1.ContainerStatus, instances []cri.Container, old *corev1.ContainerStatus, waiting string) {
	now := instances[0]
	out.RestartCount = now.RestartCount()
	out.ContainerID = in.RuntimeName + "://" + now.GetId()
	if image := now.GetImage().GetImage(); image != "" {
		out.Image = image
	}
	out.ImageID = now.GetImageRef()
	if user := now.GetUser().GetLinux(); user != nil {
		out.User = &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{UID: user.GetUid(), GID: user.GetGid(), SupplementalGroups: user.GetSupplementalGroups()}}
	}
	switch {
	case now.Running() && in.Starting(now.GetId()):
		out.State.Waiting = &corev1.ContainerStateWaiting{Reason: waiting}
	case now.Running():
		out.State.Running = &corev1.ContainerStateRunning{StartedAt: unixTime(now.GetStartedAt())}
	case now.Exited():
		out.State.Terminated = in.terminated(now)
	default:
		out.State.Waiting = &corev1.ContainerStateWaiting{Reason: waiting}
	}
	for _, earlier := range instances[1:] {
		if earlier.Exited() {
			out.LastTerminationState.Terminated = in.terminated(earlier)
			return
		}
	}
	if old != nil && old.RestartCount == out.RestartCount {
		out.LastTerminationState = old.LastTerminationState
	}
}

// missing is for a container that the runtime has nothing of: it was never made,
// or has been removed, which the old status then still tells of.
func (in *Input) missing(out *corev1.ContainerStatus, old *corev1.ContainerStatus, waiting string) {
	out.State.Waiting = &corev1.ContainerStateWaiting{Reason: waiting}
	if old == nil || old.ContainerID == "" {
		if old != nil {
			out.RestartCount, out.LastTerminationState = old.RestartCount, old.LastTerminationState
		}
		return
	}
	out.RestartCount, out.LastTerminationState = old.RestartCount, old.LastTerminationState
	out.ContainerID, out.ImageID, out.Image = old.ContainerID, old.ImageID, old.Image
	switch {
	case old.State.Terminated != nil:
		out.State = old.State
	case old.State.Running != nil:
		gone := &corev1.ContainerStateTerminated{
			Reason: ReasonUnknown, Message: "The container could not be located when the pod was terminated",
			ExitCode: 137, StartedAt: old.State.Running.StartedAt, ContainerID: old.ContainerID,
		}
		if in.Finished || in.End != nil {
			out.State = corev1.ContainerState{Terminated: gone}
			return
		}
		gone.Message = "The container could not be located when the pod was deleted.  The container used to be Running"
		out.LastTerminationState = corev1.ContainerState{Terminated: gone}
	}
}

func (in *Input) terminated(c cri.Container) *corev1.ContainerStateTerminated {
	reason := c.GetReason()
	if reason == "" {
		reason = ReasonError
		if c.GetExitCode() == 0 {
			reason = ReasonCompleted
		}
	}
	return &corev1.ContainerStateTerminated{
		ExitCode: c.GetExitCode(), Reason: reason, Message: in.Message(c),
		StartedAt: unixTime(c.GetStartedAt()), FinishedAt: unixTime(c.GetFinishedAt()),
		ContainerID: fmt.Sprintf("%s://%s", in.RuntimeName, c.GetId()),
	}
}

func unixTime(nanoseconds int64) metav1.Time {
	if nanoseconds <= 0 {
		return metav1.Time{}
	}
	return metav1.NewTime(time.Unix(0, nanoseconds))
}
