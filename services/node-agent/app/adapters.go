package app

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/cri"
	"github.com/sampan-io/sampan/services/node-agent/internal/podworker"
	"github.com/sampan-io/sampan/services/node-agent/internal/qos"
	"github.com/sampan-io/sampan/services/node-agent/internal/volumes"
)

// runtimeAdapter gives each part the view of the runtime that it needs.
type runtimeAdapter struct{ client *cri.Client }

// Status implements node.Runtime.
func (a runtimeAdapter) Status(ctx context.Context) (*runtimeapi.StatusResponse, error) {
	return a.client.Status(ctx, &runtimeapi.StatusRequest{})
}

// Version implements node.Runtime.
func (a runtimeAdapter) Version(ctx context.Context) (*runtimeapi.VersionResponse, error) {
	return a.client.Version(ctx, &runtimeapi.VersionRequest{Version: "v1"})
}

// Images implements node.Runtime.
func (a runtimeAdapter) Images(ctx context.Context) ([]*runtimeapi.Image, error) {
	response, err := a.client.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	return response.GetImages(), err
}

// Image implements pulling.Service.
func (a runtimeAdapter) Image(ctx context.Context, image string) (*runtimeapi.Image, error) {
	response, err := a.client.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: image}})
	return response.GetImage(), err
}

// Pull implements pulling.Service.
func (a runtimeAdapter) Pull(ctx context.Context, image string, auth *runtimeapi.AuthConfig, sandbox *runtimeapi.PodSandboxConfig) (string, error) {
	response, err := a.client.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: image}, Auth: auth, SandboxConfig: sandbox})
	return response.GetImageRef(), err
}

// Exec implements lifecycle.Executor.
func (a runtimeAdapter) Exec(ctx context.Context, containerID string, command []string, timeout time.Duration) (*runtimeapi.ExecSyncResponse, error) {
	return a.client.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: containerID, Cmd: command, Timeout: int64(timeout / time.Second)})
}

// Reopen implements logs.Runtime.
func (a runtimeAdapter) Reopen(ctx context.Context, containerID string) error {
	_, err := a.client.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: containerID})
	return err
}

// podLogs tells the rotator of the logs that grow.
type podLogs struct {
	runtimeAdapter
	workers *podworker.Workers
}

// RunningLogs implements logs.Runtime.
func (l podLogs) RunningLogs(context.Context) (map[string]string, error) {
	paths := map[string]string{}
	for _, state := range l.workers.States() {
		for _, c := range state.Runtime.Running() {
			if c.GetLogPath() != "" {
				paths[c.GetId()] = c.GetLogPath()
			}
		}
	}
	return paths, nil
}

// handlerOf finds the runtime's handler for a runtime class.
func handlerOf(client kubernetes.Interface) func(ctx context.Context, class string) (string, error) {
	return func(ctx context.Context, class string) (string, error) {
		found, err := client.NodeV1().RuntimeClasses().Get(ctx, class, metav1.GetOptions{})
		if err != nil {
			return "", fmt.Errorf("reading runtime class %s: %w", class, err)
		}
		return found.Handler, nil
	}
}

// orphans finds what earlier runs have left of pods that are gone, and lets it be
// removed.
type orphans struct {
	client  *cri.Client
	workers *podworker.Workers
	volumes *volumes.Manager
	cgroups qos.Tree
	log     *slog.Logger
}

// sweep looks once. It must not be called before all sources have told their pods.
func (o *orphans) sweep(ctx context.Context) {
	found := map[types.UID]types.NamespacedName{}
	if uids, err := o.volumes.Pods(); err == nil {
		for _, uid := range uids {
			found[uid] = types.NamespacedName{}
		}
	}
	if uids, err := o.cgroups.Pods(); err == nil {
		for _, uid := range uids {
			found[uid] = types.NamespacedName{}
		}
	}
	running, err := o.client.PodUIDs(ctx)
	if err != nil {
		o.log.WarnContext(ctx, "Looking for pods that are gone", "err", err)
		return
	}
	for uid, name := range running {
		found[uid] = name
	}
	for uid, name := range found {
		if !o.workers.Known(uid) {
			o.log.InfoContext(ctx, "Removing a pod that is gone", "uid", uid, "pod", name.String())
			o.workers.Orphan(uid, name)
		}
	}
}

// run sweeps when it is told to, and then every minute.
func (o *orphans) run(ctx context.Context, begin <-chan struct{}) error {
	select {
	case <-begin:
	case <-ctx.Done():
		return nil
	}
	ticker := time.NewTicker(time.Minute)
	defer ticker.Stop()
	for {
		o.sweep(ctx)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func addressStrings[T fmt.Stringer](list []T) []string {
	out := make([]string, 0, len(list))
	for _, item := range list {
		out = append(out, item.String())
	}
	return out
}

// countRunning is for the metrics of running pods and containers.
func countRunning(workers *podworker.Workers) (pods int, containers map[string]int) {
	containers = map[string]int{"running": 0, "exited": 0, "created": 0}
	for _, state := range workers.States() {
		if state.Runtime.Sandbox().GetState() == runtimeapi.PodSandboxState_SANDBOX_READY && len(state.Runtime.Sandboxes) > 0 {
			pods++
		}
		for _, c := range state.Runtime.Containers {
			switch {
			case c.Running():
				containers["running"]++
			case c.Exited():
				containers["exited"]++
			default:
				containers["created"]++
			}
		}
	}
	return pods, containers
}

// tolerant is a pod source's view of the workers.
type sink struct {
	*podworker.Workers
	removed func(uid types.UID)
}

// Remove implements podsource.Sink.
func (s sink) Remove(uid types.UID) {
	s.Workers.Remove(uid)
	s.removed(uid)
}

// listServices is what env.Make wants of the informer.
func listServices(list func() []any) func() []*corev1.Service {
	return func() []*corev1.Service {
		objects := list()
		services := make([]*corev1.Service, 0, len(objects))
		for _, object := range objects {
			if service, ok := object.(*corev1.Service); ok {
				services = append(services, service)
			}
		}
		return services
	}
}
