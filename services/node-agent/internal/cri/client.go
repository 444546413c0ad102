// Package cri reaches a container runtime through CRI v1 on a unix socket, and
// tells what it holds of each pod.
package cri

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxMessage is upstream's limit for CRI messages.
const maxMessage = 16 << 20

// Observer is told of each call's name as upstream's metrics have it
// ("create_container"), its duration and its error.
type Observer interface {
	ObserveRuntimeOperation(operation string, elapsed time.Duration, err error)
}

// Client is a connection to a runtime. It connects when it is first used and
// again whenever the connection breaks.
type Client struct {
	runtimeapi.RuntimeServiceClient
	runtimeapi.ImageServiceClient
	conn *grpc.ClientConn
}

// Dial makes a client for endpoint: the path of a unix socket, with or without
// unix:// before it. Close ends it.
func Dial(endpoint string, observer Observer) (*Client, error) {
	path := strings.TrimPrefix(endpoint, "unix://")
	if !strings.HasPrefix(path, "/") {
		return nil, fmt.Errorf("container runtime endpoint %q is not the path of a unix socket", endpoint)
	}
	// A runtime that restarts is back within a moment; the default backs off to 2 min.
	params := grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
		MinConnectTimeout: time.Second,
	}
	conn, err := grpc.NewClient("unix://"+path,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(params),
		grpc.WithAuthority("localhost"),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithUnaryInterceptor(observe(observer)),
	)
	if err != nil {
		return nil, fmt.Errorf("connecting to container runtime %s: %w", endpoint, err)
	}
	return &Client{RuntimeServiceClient: runtimeapi.NewRuntimeServiceClient(conn), ImageServiceClient: runtimeapi.NewImageServiceClient(conn), conn: conn}, nil
}

// Close ends the connection and the calls on it.
func (c *Client) Close() error { return c.conn.Close() }

// AwaitReady waits until the runtime answers, or ctx ends.
func (c *Client) AwaitReady(ctx context.Context) (*runtimeapi.VersionResponse, error) {
	version, err := c.Version(ctx, &runtimeapi.VersionRequest{Version: "v1"}, grpc.WaitForReady(true))
	if err != nil {
		return nil, fmt.Errorf("waiting for the container runtime: %w", err)
	}
	return version, nil
}

func observe(observer Observer) grpc.UnaryClientInterceptor {
	names := operationNames()
	return func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		start := time.Now()
		err := invoke(ctx, method, req, reply, conn, opts...)
		operation, known := names[method[strings.LastIndexByte(method, '/')+1:]]
		if known && observer != nil {
			observer.ObserveRuntimeOperation(operation, time.Since(start), err)
		}
		return err
	}
}

// operationNames are upstream's values of the label operation_type.
func operationNames() map[string]string {
	return map[string]string{
		"Version": "version", "Status": "status", "UpdateRuntimeConfig": "update_runtime_config",
		"RunPodSandbox": "run_podsandbox", "StopPodSandbox": "stop_podsandbox", "RemovePodSandbox": "remove_podsandbox",
		"PodSandboxStatus": "podsandbox_status", "ListPodSandbox": "list_podsandbox",
		"CreateContainer": "create_container", "StartContainer": "start_container", "StopContainer": "stop_container",
		"RemoveContainer": "remove_container", "ListContainers": "list_containers", "ContainerStatus": "container_status",
		"UpdateContainerResources": "update_container", "ExecSync": "exec_sync", "Exec": "exec", "Attach": "attach", "PortForward": "port_forward",
		"ReopenContainerLog": "reopen_container_log", "ContainerStats": "container_stats", "ListContainerStats": "list_container_stats",
		"PodSandboxStats": "podsandbox_stats", "ListPodSandboxStats": "list_podsandbox_stats",
		"ListImages": "list_images", "ImageStatus": "image_status", "PullImage": "pull_image", "RemoveImage": "remove_image", "ImageFsInfo": "image_fs_info",
	}
}
