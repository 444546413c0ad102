package probes

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/env"
	"github.com/sampan-io/sampan/services/node-agent/internal/lifecycle"
)

// execProber runs a command in the container; it succeeds with exit code 0.
type execProber struct{ executor lifecycle.Executor }

func (execProber) owns(probe *corev1.Probe) bool { return probe.Exec != nil }

func (p execProber) probe(ctx context.Context, target Target, probe *corev1.Probe) Outcome {
	timeout := time.Duration(max(1, probe.TimeoutSeconds)) * time.Second
	// Only what is written down in the pod: upstream expands no other variables here.
	var vars []env.Var
	for _, v := range target.Container.Env {
		if v.ValueFrom == nil {
			vars = append(vars, env.Var{Name: v.Name, Value: v.Value})
		}
	}
	command := env.ExpandAll(probe.Exec.Command, env.Lookup(vars))
	response, err := p.executor.Exec(ctx, target.ContainerID, command, timeout)
	if status.Code(err) == codes.DeadlineExceeded || ctx.Err() == context.DeadlineExceeded {
		return Outcome{Output: fmt.Sprintf("command timed out: %q timed out after %v", strings.Join(command, " "), timeout)}
	}
	if err != nil {
		return Outcome{Err: err}
	}
	output := string(response.GetStdout()) + string(response.GetStderr())
	return Outcome{Success: response.GetExitCode() == 0, Output: output}
}
