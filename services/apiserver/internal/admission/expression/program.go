package expression

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types/ref"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
)

// Program is a compiled expression. It may be run by many goroutines at once.
type Program struct {
	source  string
	program cel.Program
	output  *cel.Type
}

// Source is the text that was compiled.
func (p *Program) Source() string { return p.source }

// Compile compiles an expression that must have one of the types; none allows
// all. The error is for the author of the expression.
func (e *Environments) Compile(d Declarations, mode Mode, source string, returns ...*cel.Type) (*Program, *apiservercel.Error) {
	set, err := e.set(d)
	if err != nil {
		return nil, internalError(err)
	}
	return compile(set, mode, source, returns)
}

func compile(set *environment.EnvSet, mode Mode, source string, returns []*cel.Type) (*Program, *apiservercel.Error) {
	env, err := set.Env(mode)
	if err != nil {
		return nil, internalError(err)
	}
	ast, issues := env.Compile(source)
	if issues != nil {
		return nil, &apiservercel.Error{
			Type: apiservercel.ErrorTypeInvalid, Detail: "compilation failed: " + issues.String(), Cause: apiservercel.NewCompilationError(issues),
		}
	}
	output := ast.OutputType()
	if len(returns) > 0 && !slices.ContainsFunc(returns, func(t *cel.Type) bool { return output.IsExactType(t) || t.IsExactType(cel.AnyType) }) {
		return nil, wrongType(output, returns)
	}
	program, err := env.Program(ast, cel.InterruptCheckFrequency(celconfig.CheckFrequency))
	if err != nil {
		return nil, internalError(fmt.Errorf("program instantiation failed: %w", err))
	}
	return &Program{source: source, program: program, output: output}, nil
}

func wrongType(output *cel.Type, returns []*cel.Type) *apiservercel.Error {
	detail := fmt.Sprintf("must evaluate to one of %v but got %v", returns, output)
	if len(returns) == 1 {
		detail = fmt.Sprintf("must evaluate to %v but got %v", returns[0], output)
	}
	return &apiservercel.Error{Type: apiservercel.ErrorTypeInvalid, Detail: detail}
}

func internalError(err error) *apiservercel.Error {
	return &apiservercel.Error{Type: apiservercel.ErrorTypeInternal, Detail: err.Error(), Cause: err}
}

// OutOfBudgetError says that expressions cost more than they may together; what
// was left to run has not run.
type OutOfBudgetError struct{ Source string }

// Error implements error.
func (e *OutOfBudgetError) Error() string {
	return "validation failed due to running out of cost budget, no further validation rules will be run"
}

// Budget is the cost that a group of expressions may still have. It is used by
// one goroutine.
type Budget int64

// spend takes cost off, and says whether there was as much.
func (b *Budget) spend(cost *uint64) bool {
	if cost == nil || *cost > math.MaxInt64 || int64(*cost) > int64(*b) {
		*b = -1
		return false
	}
	*b -= Budget(*cost)
	return true
}

// Run evaluates the program. Errors are those of the expression, or an
// *OutOfBudgetError.
func (p *Program) Run(ctx context.Context, vars *Variables, budget *Budget) (ref.Val, error) {
	vars.ctx, vars.budget = ctx, budget
	value, details, err := vars.Frame.eval(ctx, p.program, vars)
	if *budget < 0 || details == nil || !budget.spend(details.ActualCost()) {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		*budget = -1
		return nil, &OutOfBudgetError{Source: p.source}
	}
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("expression '%v' resulted in error: %w", p.source, err)
	}
	return value, nil
}
