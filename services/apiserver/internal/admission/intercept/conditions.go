package intercept

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission/expression"
)

// Conditions are the compiled match conditions of a webhook or policy.
type Conditions []condition

type condition struct {
	name    string
	program *expression.Program
	err     error
}

// CompileConditions compiles conditions. One that does not compile is an error
// whenever it is evaluated.
func CompileConditions(e *expression.Environments, list []admissionregistrationv1.MatchCondition, params bool) Conditions {
	compiled := make(Conditions, len(list))
	for i, c := range list {
		compiled[i].name = c.Name
		program, err := e.Compile(expression.Declarations{Params: params, Authorizer: true}, expression.Stored, strings.TrimSpace(c.Expression), cel.BoolType)
		if err != nil {
			compiled[i].err = err
			continue
		}
		compiled[i].program = program
	}
	return compiled
}

// Met says whether all conditions are true. One that is false decides, whatever
// errors there are; an error decides otherwise. The metrics tell of it under the
// subject's name.
func (c Conditions) Met(ctx context.Context, vars *expression.Variables, metrics *ConditionMetrics, subject Subject) (bool, error) {
	started := time.Now()
	defer func() { metrics.evaluated(subject, time.Since(started)) }()
	var failures []error
	budget := expression.Budget(celconfig.RuntimeCELCostBudgetMatchConditions)
	for i := range c {
		if c[i].err != nil {
			failures = append(failures, c[i].err)
			metrics.failed(subject)
			continue
		}
		value, err := c[i].program.Run(ctx, vars, &budget)
		var spent *expression.OutOfBudgetError
		switch {
		case errors.As(err, &spent):
			return false, err
		case err != nil:
			failures = append(failures, err)
			metrics.failed(subject)
		case value == types.False:
			return false, nil
		}
	}
	return len(failures) == 0, errors.Join(failures...)
}
