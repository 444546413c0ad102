package expression

import (
	"context"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
)

// Frame is where the expressions of one request are evaluated, one after the other:
// to make one takes as long as a small expression. The zero Frame is ready. It is
// used by one goroutine.
type Frame struct {
	ctx   context.Context // of the evaluations
	frame *interpreter.ExecutionFrame
	busy  bool
}

// Close gives back what the frame holds; it may be used again.
func (f *Frame) Close() {
	if f.frame != nil {
		f.frame.Close()
		*f = Frame{}
	}
}

// eval evaluates a program in the frame, or in one of its own: what an expression
// composes is evaluated while the expression is.
func (f *Frame) eval(ctx context.Context, program cel.Program, vars *Variables) (ref.Val, *cel.EvalDetails, error) {
	if f == nil || f.busy || f.ctx != nil && f.ctx != ctx {
		return program.ContextEval(ctx, vars)
	}
	if f.frame == nil {
		frame, err := interpreter.NewExecutionFrame(vars)
		if err != nil {
			return nil, nil, err
		}
		if err := frame.SetContext(ctx, celconfig.CheckFrequency); err != nil {
			return nil, nil, err
		}
		f.ctx, f.frame = ctx, frame
	}
	f.frame.Activation, f.busy = vars, true
	defer func() { f.busy = false }()
	return program.Eval(f.frame)
}
