package main

import (
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// serveHealth answers gRPC health checks of the service "checked" with a status.
func serveHealth(address, status string) {
	listener, err := net.Listen("tcp", address)
	check(err)
	checks := health.NewServer()
	checks.SetServingStatus("checked", healthpb.HealthCheckResponse_ServingStatus(healthpb.HealthCheckResponse_ServingStatus_value[status]))
	server := grpc.NewServer()
	healthpb.RegisterHealthServer(server, checks)
	fmt.Println("listening")
	check(server.Serve(listener))
}
