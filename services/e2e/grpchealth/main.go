// Command grpchealth is a server of the end-to-end tests that answers gRPC health
// checks: that it serves, and after SERVES_FOR, if that is set, that it does not.
package main

import (
	"fmt"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	listener, err := net.Listen("tcp", ":5000")
	if err != nil {
		return err
	}
	status := health.NewServer()
	if text := os.Getenv("SERVES_FOR"); text != "" {
		span, err := time.ParseDuration(text)
		if err != nil {
			return err
		}
		time.AfterFunc(span, func() { status.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING) })
	}
	server := grpc.NewServer()
	healthpb.RegisterHealthServer(server, status)
	return server.Serve(listener)
}
