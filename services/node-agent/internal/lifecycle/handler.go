package lifecycle

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Executor runs commands in containers.
type Executor interface {
	Exec(ctx context.Context, containerID string, command []string, timeout time.Duration) (*runtimeapi.ExecSyncResponse, error)
}

// Handle runs a handler of a container. PodIP is the host of HTTP requests that
// name none.
func Handle(ctx context.Context, executor Executor, handler *corev1.LifecycleHandler, container *corev1.Container, containerID, podIP string) error {
	switch {
	case handler.Exec != nil:
		// No timeout: the context of the pod's start or stop ends it.
		response, err := executor.Exec(ctx, containerID, handler.Exec.Command, 0)
		if err != nil {
			return err
		}
		if code := response.GetExitCode(); code != 0 {
			output := strings.TrimSpace(string(response.GetStdout()) + string(response.GetStderr()))
			return fmt.Errorf("command '%s' exited with %d: %s", strings.Join(handler.Exec.Command, " "), code, output)
		}
		return nil
	case handler.HTTPGet != nil:
		response, err := Get(ctx, handler.HTTPGet, container, podIP, "kube-lifecycle")
		if err != nil {
			return err
		}
		if response.Code < 200 || response.Code >= 400 {
			return fmt.Errorf("HTTP lifecycle hook answered %s", response.Status)
		}
		return nil
	case handler.Sleep != nil:
		return Sleep(ctx, time.Duration(handler.Sleep.Seconds)*time.Second)
	case handler.TCPSocket != nil:
		return nil // upstream accepts and ignores it
	}
	return fmt.Errorf("invalid handler: %v", handler)
}
