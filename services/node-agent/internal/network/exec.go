package network

import (
	"context"
	"os"

	"github.com/containernetworking/cni/pkg/invoke"

	"github.com/sampan-io/sampan/services/node-agent/internal/runc"
)

// leanExec runs plugins with less of Go's runtime than it takes by itself; those that are
// not in Go ignore it. The plugins that they run in turn inherit it.
type leanExec struct{ invoke.DefaultExec }

func newLeanExec() invoke.Exec {
	return &leanExec{invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: os.Stderr}}}
}

// ExecPlugin implements invoke.Exec.
func (e *leanExec) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	return e.DefaultExec.ExecPlugin(ctx, path, stdin, append(environ, runc.LeanEnv()...))
}
