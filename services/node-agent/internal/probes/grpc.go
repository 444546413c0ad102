package probes

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
)

// grpcProber asks the gRPC health service; it succeeds when that is SERVING.
type grpcProber struct{}

func (grpcProber) owns(probe *corev1.Probe) bool { return probe.GRPC != nil }

func (grpcProber) probe(ctx context.Context, target Target, probe *corev1.Probe) Outcome {
	service := ""
	if probe.GRPC.Service != nil {
		service = *probe.GRPC.Service
	}
	timeout := time.Duration(max(1, probe.TimeoutSeconds)) * time.Second
	address := net.JoinHostPort(target.PodIP, strconv.Itoa(int(probe.GRPC.Port)))
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUserAgent("kube-probe"), grpc.WithNoProxy())
	if err != nil {
		return Outcome{Err: err}
	}
	defer func() { _ = conn.Close() }()
	response, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: service})
	switch code := status.Code(err); {
	case err == nil && response.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING:
		return Outcome{Success: true, Output: "service healthy"}
	case err == nil:
		return Outcome{Output: fmt.Sprintf("service unhealthy (responded with %q)", response.GetStatus().String())}
	case code == codes.Unimplemented:
		return Outcome{Output: fmt.Sprintf("error: this server does not implement the grpc health protocol (grpc.health.v1.Health): %s", status.Convert(err).Message())}
	case code == codes.DeadlineExceeded:
		return Outcome{Output: fmt.Sprintf("timeout: failed to connect service %q within %v: %v", address, timeout, err)}
	}
	return Outcome{Output: fmt.Sprintf("error: health rpc probe failed: %v", err)}
}
