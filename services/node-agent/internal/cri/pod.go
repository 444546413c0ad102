package cri

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
)

// Pod is what the runtime holds of a pod, the newest first.
type Pod struct {
	UID        types.UID
	Name       string
	Namespace  string
	Sandboxes  []*runtimeapi.PodSandboxStatus
	Containers []Container
}

// Sandbox is the newest one, or nil.
func (p *Pod) Sandbox() *runtimeapi.PodSandboxStatus {
	if len(p.Sandboxes) == 0 {
		return nil
	}
	return p.Sandboxes[0]
}

// Latest is the newest container of that name, whatever its sandbox.
func (p *Pod) Latest(name string) (Container, bool) {
	for _, c := range p.Containers {
		if c.Name() == name {
			return c, true
		}
	}
	return Container{}, false
}

// In is the newest container of that name in a sandbox.
func (p *Pod) In(sandboxID, name string) (Container, bool) {
	for _, c := range p.Containers {
		if c.SandboxID == sandboxID && c.Name() == name {
			return c, true
		}
	}
	return Container{}, false
}

// Instances are all containers of that name, the newest first.
func (p *Pod) Instances(name string) []Container {
	var list []Container
	for _, c := range p.Containers {
		if c.Name() == name {
			list = append(list, c)
		}
	}
	return list
}

// Running are the containers whose processes live.
func (p *Pod) Running() []Container {
	var list []Container
	for _, c := range p.Containers {
		if c.Running() {
			list = append(list, c)
		}
	}
	return list
}

// Pod asks the runtime for all that it holds of a pod. What it holds nothing of
// is empty.
func (c *Client) Pod(ctx context.Context, uid types.UID) (Pod, error) {
	pod := Pod{UID: uid}
	selector := map[string]string{LabelPodUID: string(uid)}
	list, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{LabelSelector: selector}})
	if err != nil {
		return pod, fmt.Errorf("listing sandboxes of pod %s: %w", uid, err)
	}
	for _, item := range list.GetItems() {
		if err := c.addSandbox(ctx, &pod, item); err != nil {
			return pod, err
		}
	}
	if len(pod.Containers) == 0 && len(pod.Sandboxes) > 0 {
		if err := c.addContainers(ctx, &pod, selector); err != nil {
			return pod, err
		}
	}
	slices.SortStableFunc(pod.Sandboxes, func(a, b *runtimeapi.PodSandboxStatus) int { return cmp.Compare(b.GetCreatedAt(), a.GetCreatedAt()) })
	slices.SortStableFunc(pod.Containers, func(a, b Container) int { return cmp.Compare(b.GetCreatedAt(), a.GetCreatedAt()) })
	return pod, nil
}

func (c *Client) addSandbox(ctx context.Context, pod *Pod, item *runtimeapi.PodSandbox) error {
	resp, err := c.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: item.GetId()})
	if IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading status of sandbox %s: %w", item.GetId(), err)
	}
	pod.Name, pod.Namespace = item.GetMetadata().GetName(), item.GetMetadata().GetNamespace()
	pod.Sandboxes = append(pod.Sandboxes, resp.GetStatus())
	for _, container := range resp.GetContainersStatuses() {
		pod.Containers = append(pod.Containers, Container{ContainerStatus: container, SandboxID: item.GetId()})
	}
	return nil
}

// addContainers is for runtimes that do not tell of containers with their sandbox.
func (c *Client) addContainers(ctx context.Context, pod *Pod, selector map[string]string) error {
	list, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{LabelSelector: selector}})
	if err != nil {
		return fmt.Errorf("listing containers of pod %s: %w", pod.UID, err)
	}
	for _, item := range list.GetContainers() {
		resp, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: item.GetId()})
		if IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("reading status of container %s: %w", item.GetId(), err)
		}
		pod.Containers = append(pod.Containers, Container{ContainerStatus: resp.GetStatus(), SandboxID: item.GetPodSandboxId()})
	}
	return nil
}

// PodUIDs are the pods that the runtime holds a sandbox of.
func (c *Client) PodUIDs(ctx context.Context) (map[types.UID]types.NamespacedName, error) {
	list, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, fmt.Errorf("listing sandboxes: %w", err)
	}
	pods := map[types.UID]types.NamespacedName{}
	for _, item := range list.GetItems() {
		uid := item.GetLabels()[LabelPodUID]
		if uid == "" {
			continue // not made by a kubelet
		}
		pods[types.UID(uid)] = types.NamespacedName{Namespace: item.GetMetadata().GetNamespace(), Name: item.GetMetadata().GetName()}
	}
	return pods, nil
}

// IsNotFound tells that the runtime does not know the object.
func IsNotFound(err error) bool { return status.Code(err) == codes.NotFound }
