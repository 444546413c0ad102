package probes

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/lifecycle"
)

// tcpProber succeeds when the port takes a connection.
type tcpProber struct{}

func (tcpProber) owns(probe *corev1.Probe) bool { return probe.TCPSocket != nil }

func (tcpProber) probe(ctx context.Context, target Target, probe *corev1.Probe) Outcome {
	port, err := lifecycle.Port(probe.TCPSocket.Port, target.Container)
	if err != nil {
		return Outcome{Err: err}
	}
	host := probe.TCPSocket.Host
	if host == "" {
		host = target.PodIP
	}
	if err := lifecycle.Dial(ctx, host, port); err != nil {
		return Outcome{Output: err.Error()}
	}
	return Outcome{Success: true}
}
