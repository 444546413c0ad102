package csi

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// measure times what drivers do, under upstream's names.
type measure struct {
	storage *prometheus.HistogramVec
	calls   *prometheus.HistogramVec
}

func newMeasure(registry prometheus.Registerer) *measure {
	m := &measure{
		storage: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "storage_operation_duration_seconds", Help: "Storage operation duration",
			Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600},
		}, []string{"volume_plugin", "operation_name", "status", "migrated"}),
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "csi_operations_seconds", Help: "Container Storage Interface operation duration with gRPC error code status total",
			Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600},
		}, []string{"driver_name", "grpc_status_code", "method_name", "migrated"}),
	}
	if registry != nil {
		registry.MustRegister(m.storage, m.calls)
	}
	return m
}

// operation times one operation on a volume; call the result with its error.
func (m *measure) operation(driver, name string) func(error) {
	begun := time.Now()
	return func(err error) {
		result := "success"
		if err != nil {
			result = "fail-unknown"
		}
		m.storage.WithLabelValues(plugin+":"+driver, name, result, "false").Observe(time.Since(begun).Seconds())
	}
}

// interceptor times each call to a driver and gives it a deadline.
func (m *measure) interceptor(driver string) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoker grpc.UnaryInvoker, options ...grpc.CallOption) error {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		begun := time.Now()
		err := invoker(ctx, method, request, reply, conn, options...)
		m.calls.WithLabelValues(driver, status.Code(err).String(), method, "false").Observe(time.Since(begun).Seconds())
		return err
	}
}
