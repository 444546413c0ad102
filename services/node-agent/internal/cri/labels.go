package cri

import (
	"strconv"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"
)

// Labels of sandboxes and containers, the kubelet's.
const (
	LabelPodName       = kubelettypes.KubernetesPodNameLabel
	LabelPodNamespace  = kubelettypes.KubernetesPodNamespaceLabel
	LabelPodUID        = kubelettypes.KubernetesPodUIDLabel
	LabelContainerName = kubelettypes.KubernetesContainerNameLabel
)

// Annotations of containers, the kubelet's: what must be known of a container
// when its pod's object is gone or this program has been started anew.
const (
	AnnotationHash              = "io.kubernetes.container.hash"
	AnnotationRestartCount      = "io.kubernetes.container.restartCount"
	AnnotationMessagePath       = "io.kubernetes.container.terminationMessagePath"
	AnnotationMessagePolicy     = "io.kubernetes.container.terminationMessagePolicy"
	AnnotationPreStop           = "io.kubernetes.container.preStopHandler"
	AnnotationPodGrace          = "io.kubernetes.pod.terminationGracePeriod"
	AnnotationPorts             = "io.kubernetes.container.ports"
	AnnotationMessageHostPath   = "sampan.io/container.terminationMessageHostPath"
	AnnotationSandboxConfigFrom = "kubernetes.io/config.source"
)

// Container is a container of a pod with the sandbox it is in.
type Container struct {
	*runtimeapi.ContainerStatus
	SandboxID string
}

// Name is the container's name in the pod.
func (c Container) Name() string {
	if name := c.GetLabels()[LabelContainerName]; name != "" {
		return name
	}
	return c.GetMetadata().GetName()
}

// RestartCount is how many containers of that name were before it.
func (c Container) RestartCount() int32 {
	if n, err := strconv.ParseInt(c.GetAnnotations()[AnnotationRestartCount], 10, 32); err == nil {
		return int32(n)
	}
	return int32(c.GetMetadata().GetAttempt())
}

// Running tells whether its process lives.
func (c Container) Running() bool {
	return c.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING
}

// Exited tells whether its process has ended.
func (c Container) Exited() bool { return c.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED }
