package criconfig

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"path/filepath"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/cri"
	"github.com/sampan-io/sampan/services/node-agent/internal/env"
)

// Image is what is known of the container's image once it is on the node.
type Image struct {
	ID       string // what the runtime calls it
	UID      *int64 // the user it runs as, if that is a number
	Username string // or a name
}

// Assigned is what only one container can have: devices, CPUs and memory.
type Assigned struct {
	CPUs, Mems  string // in the kernel's form of lists; "" is all
	Env         []*runtimeapi.KeyValue
	Mounts      []*runtimeapi.Mount
	Devices     []*runtimeapi.Device
	CDI         []*runtimeapi.CDIDevice
	Annotations map[string]string
}

// Container is all that a container's configuration is made from.
type Container struct {
	Pod      *corev1.Pod
	Spec     *corev1.Container
	Image    Image
	Restarts int32
	Env      []env.Var
	Mounts   []*runtimeapi.Mount
	// TargetID is the container whose processes an ephemeral one sees, or "".
	TargetID string
	// Assigned is what the container has of the node for itself.
	Assigned Assigned
	// MessagePath is the file on the host that the termination message goes to.
	MessagePath string
}

// Container is the configuration that the container is created with. Errors are
// for the pod's author.
func (n Node) Container(c Container) (*runtimeapi.ContainerConfig, error) {
	spec := c.Spec
	lookup := env.Lookup(c.Env)
	security, err := n.security(c)
	if err != nil {
		return nil, err
	}
	config := &runtimeapi.ContainerConfig{
		Metadata:   &runtimeapi.ContainerMetadata{Name: spec.Name, Attempt: uint32(c.Restarts)},
		Image:      &runtimeapi.ImageSpec{Image: c.Image.ID, UserSpecifiedImage: spec.Image},
		Command:    env.ExpandAll(spec.Command, lookup),
		Args:       env.ExpandAll(spec.Args, lookup),
		WorkingDir: spec.WorkingDir,
		Mounts:     append([]*runtimeapi.Mount(nil), c.Mounts...),
		Labels: map[string]string{
			cri.LabelPodName: c.Pod.Name, cri.LabelPodNamespace: c.Pod.Namespace, cri.LabelPodUID: string(c.Pod.UID), cri.LabelContainerName: spec.Name,
		},
		Annotations: containerAnnotations(c),
		LogPath:     LogPath(spec.Name, c.Restarts),
		Stdin:       spec.Stdin, StdinOnce: spec.StdinOnce, Tty: spec.TTY,
		StopSignal: stopSignal(spec),
		Linux:      &runtimeapi.LinuxContainerConfig{Resources: n.resources(c.Pod, spec), SecurityContext: security},
	}
	config.Linux.Resources.CpusetCpus, config.Linux.Resources.CpusetMems = c.Assigned.CPUs, c.Assigned.Mems
	config.Mounts = append(config.Mounts, c.Assigned.Mounts...)
	config.Devices, config.CDIDevices = c.Assigned.Devices, c.Assigned.CDI
	config.Envs = append(config.Envs, c.Assigned.Env...) // what the container says wins
	maps.Copy(config.Annotations, c.Assigned.Annotations)
	for _, v := range c.Env {
		config.Envs = append(config.Envs, &runtimeapi.KeyValue{Key: v.Name, Value: []byte(v.Value)})
	}
	if c.MessagePath != "" {
		config.Mounts = append(config.Mounts, &runtimeapi.Mount{ContainerPath: spec.TerminationMessagePath, HostPath: c.MessagePath})
	}
	mapOwners(config.Mounts, security.GetNamespaceOptions().GetUsernsOptions())
	return config, nil
}

// mapOwners lets root of a pod with users of its own be the owner of what is root's on
// the node. The runtime does so for images itself.
func mapOwners(mounts []*runtimeapi.Mount, user *runtimeapi.UserNamespace) {
	if user == nil || user.GetMode() != runtimeapi.NamespaceMode_POD {
		return
	}
	for _, mount := range mounts {
		if mount.GetImage() == nil {
			mount.UidMappings, mount.GidMappings = user.GetUids(), user.GetGids()
		}
	}
}

// Hash tells apart containers that must be made anew when the pod changes: only
// the image may.
func Hash(spec *corev1.Container) string {
	h := fnv.New32a()
	h.Write([]byte(spec.Name + "\x00" + spec.Image))
	return strconv.FormatUint(uint64(h.Sum32()), 16)
}

func containerAnnotations(c Container) map[string]string {
	spec := c.Spec
	annotations := map[string]string{
		cri.AnnotationHash:          Hash(spec),
		cri.AnnotationRestartCount:  strconv.Itoa(int(c.Restarts)),
		cri.AnnotationMessagePath:   spec.TerminationMessagePath,
		cri.AnnotationMessagePolicy: string(spec.TerminationMessagePolicy),
	}
	if c.MessagePath != "" {
		annotations[cri.AnnotationMessageHostPath] = c.MessagePath
	}
	if grace := c.Pod.Spec.TerminationGracePeriodSeconds; grace != nil {
		annotations[cri.AnnotationPodGrace] = strconv.FormatInt(*grace, 10)
	}
	if spec.Lifecycle != nil && spec.Lifecycle.PreStop != nil {
		if data, err := json.Marshal(spec.Lifecycle.PreStop); err == nil {
			annotations[cri.AnnotationPreStop] = string(data)
		}
	}
	return annotations
}

func stopSignal(spec *corev1.Container) runtimeapi.Signal {
	if spec.Lifecycle == nil || spec.Lifecycle.StopSignal == nil {
		return runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT
	}
	return runtimeapi.Signal(runtimeapi.Signal_value[string(*spec.Lifecycle.StopSignal)])
}

// VolumePath is where a mount's source lies on the host.
type VolumePath struct {
	HostPath string
	ReadOnly bool
}

// Mount turns a volume mount into the runtime's.
func Mount(mount *corev1.VolumeMount, source VolumePath) (*runtimeapi.Mount, error) {
	target := mount.MountPath
	if !filepath.IsAbs(target) {
		target = filepath.Join("/", target)
	}
	out := &runtimeapi.Mount{ContainerPath: target, HostPath: source.HostPath, Readonly: mount.ReadOnly || source.ReadOnly}
	if mount.MountPropagation != nil {
		switch *mount.MountPropagation {
		case corev1.MountPropagationHostToContainer:
			out.Propagation = runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
		case corev1.MountPropagationBidirectional:
			out.Propagation = runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL
		case corev1.MountPropagationNone:
		default:
			return nil, fmt.Errorf("invalid MountPropagation mode: %q", *mount.MountPropagation)
		}
	}
	if mount.RecursiveReadOnly != nil && *mount.RecursiveReadOnly != corev1.RecursiveReadOnlyDisabled {
		out.RecursiveReadOnly = out.Readonly && out.Propagation == runtimeapi.MountPropagation_PROPAGATION_PRIVATE
	}
	return out, nil
}
