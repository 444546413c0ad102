package policy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/admission/expression"
	"github.com/sampan-io/sampan/services/apiserver/internal/admission/intercept"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
)

// ValidatingName is the plugin's name.
const ValidatingName = "ValidatingAdmissionPolicy"

// Config is what the plugins need of the server.
type Config struct {
	Configuration intercept.Configuration
	Source        intercept.Source
	Environments  *expression.Environments
	Kinds         Kinds
	Metrics       *Metrics
}

// Validating is the plugin ValidatingAdmissionPolicy.
type Validating struct {
	config   Config
	policies *intercept.Snapshot[*validatingPolicies]
}

// NewValidating makes the plugin.
func NewValidating(config Config) *Validating {
	p := &Validating{config: config}
	p.policies = intercept.NewSnapshot(config.Configuration, p.prepare, resource("validatingadmissionpolicies"), resource("validatingadmissionpolicybindings"))
	return p
}

func resource(name string) schema.GroupResource {
	return schema.GroupResource{Group: admissionregistrationv1.GroupName, Resource: name}
}

// validatingPolicies are the policies that have bindings, and all that are
// compiled.
type validatingPolicies struct {
	active   []boundPolicy
	compiled map[version]*validatingPolicy
}

type boundPolicy struct {
	*validatingPolicy
	bindings []binding
}

// validatingPolicy is a compiled policy.
type validatingPolicy struct {
	rule
	validations []validation
	annotations []annotation
}

// validation is one compiled expression with what is said when it is false.
type validation struct {
	program *expression.Program
	err     error
	message *expression.Program // nil without a message expression, or one that does not compile
	text    string              // of the message
	source  string
	reason  metav1.StatusReason
}

type annotation struct {
	key     string
	program *expression.Program
	err     error
}

// Name implements admission.Plugin.
func (p *Validating) Name() string { return ValidatingName }

// Handles implements admission.Plugin.
func (p *Validating) Handles(admission.Operation) bool { return true }

func (p *Validating) prepare(objects [][]runtime.Object, last *validatingPolicies) *validatingPolicies {
	now := &validatingPolicies{compiled: map[version]*validatingPolicy{}}
	bindings := map[string][]*admissionregistrationv1.ValidatingAdmissionPolicyBinding{}
	for _, obj := range byName(objects[1]) {
		b := obj.(*admissionregistrationv1.ValidatingAdmissionPolicyBinding)
		bindings[b.Spec.PolicyName] = append(bindings[b.Spec.PolicyName], b)
	}
	for _, obj := range byName(objects[0]) {
		policy := obj.(*admissionregistrationv1.ValidatingAdmissionPolicy)
		bound := bindings[policy.Name]
		if len(bound) == 0 {
			continue
		}
		v := versionOf(policy)
		var compiled *validatingPolicy
		if last != nil {
			compiled = last.compiled[v]
		}
		if compiled == nil {
			compiled = compileValidating(p.config.Environments, policy)
		}
		now.compiled[v] = compiled
		active := boundPolicy{validatingPolicy: compiled}
		for _, b := range bound {
			made := newBinding(b.Name, policy.Spec.ParamKind, b.Spec.ParamRef, b.Spec.MatchResources)
			made.actions = b.Spec.ValidationActions
			active.bindings = append(active.bindings, made)
		}
		now.active = append(now.active, active)
	}
	return now
}

func compileValidating(e *expression.Environments, policy *admissionregistrationv1.ValidatingAdmissionPolicy) *validatingPolicy {
	spec := &policy.Spec
	out := &validatingPolicy{rule: newRule(e, source{
		name: policy.Name, failure: spec.FailurePolicy, params: spec.ParamKind, constraints: spec.MatchConstraints,
		conditions: spec.MatchConditions, variables: spec.Variables,
	})}
	if out.invalid != nil {
		return out
	}
	messages, err := e.Sibling(out.scope, expression.Declarations{Params: spec.ParamKind != nil})
	if err != nil {
		out.invalid = err
		return out
	}
	for _, v := range spec.Validations {
		made := validation{text: strings.TrimSpace(v.Message), source: strings.TrimSpace(v.Expression), reason: metav1.StatusReasonInvalid}
		if v.Reason != nil {
			made.reason = *v.Reason
		}
		program, problem := out.scope.Compile(expression.Stored, v.Expression, cel.BoolType)
		made.program = program
		if problem != nil {
			made.err = fmt.Errorf("compilation error: %w", problem)
		}
		if v.MessageExpression != "" {
			if program, problem := messages.Compile(expression.Stored, v.MessageExpression, cel.StringType); problem == nil {
				made.message = program
			}
		}
		out.validations = append(out.validations, made)
	}
	for _, a := range spec.AuditAnnotations {
		made := annotation{key: a.Key}
		program, problem := out.scope.Compile(expression.Stored, strings.TrimSpace(a.ValueExpression), cel.StringType, cel.NullType)
		made.program = program
		if problem != nil {
			made.err = fmt.Errorf("compilation error: %w", problem)
		}
		out.annotations = append(out.annotations, made)
	}
	return out
}

// Validate implements admission.Validator.
func (p *Validating) Validate(ctx context.Context, a *admission.Attributes) error {
	if intercept.Exempt(ctx, a) {
		return nil
	}
	policies, err := p.policies.Get(ctx)
	if err != nil || len(policies.active) == 0 {
		return err
	}
	c := &checking{Validating: p, request: p.config.Source.Request(a)}
	defer c.request.Close()
	for i := range policies.active {
		if err := c.policy(ctx, &policies.active[i]); err != nil {
			return err
		}
	}
	c.publish(ctx)
	return c.verdict()
}

// denial is one reason to refuse the request.
type denial struct {
	policy, binding, message string
	reason                   metav1.StatusReason
}

// checking is the check of one request by all policies.
type checking struct {
	*Validating
	request  *intercept.Request
	denials  []denial
	failures []auditFailure
	noted    map[string][]string
}

// auditFailure is upstream's form of a failed validation in an audit event.
type auditFailure struct {
	Message           string                                     `json:"message"`
	Policy            string                                     `json:"policy"`
	Binding           string                                     `json:"binding"`
	ExpressionIndex   int                                        `json:"expressionIndex"`
	ValidationActions []admissionregistrationv1.ValidationAction `json:"validationActions"`
}

// policy checks the request by one policy. What it returns is not of the policy's
// doing.
func (c *checking) policy(ctx context.Context, policy *boundPolicy) error {
	return policy.uses(ctx, c.config.Kinds, c.request, policy.bindings,
		func(u use) error {
			c.use(ctx, policy, u)
			return ctx.Err()
		},
		func(f failure) {
			if policy.ignore {
				return
			}
			d := denial{policy: policy.name, message: f.message(), reason: metav1.StatusReasonInvalid}
			if f.binding != nil {
				d.binding = f.binding.name
			}
			c.denials = append(c.denials, d)
		})
}

func (c *checking) use(ctx context.Context, policy *boundPolicy, u use) {
	met, err := policy.met(ctx, c.config.Metrics.conditions, c.request, u)
	if err != nil {
		c.failed(ctx, policy, u, 0, err, 0)
		return
	}
	if !met {
		return
	}
	budget := expression.Budget(celconfig.RuntimeCELCostBudget)
	for i := range policy.validations {
		v := &policy.validations[i]
		started := time.Now()
		passed, err := v.check(ctx, u.vars, &budget)
		var spent *expression.OutOfBudgetError
		switch {
		case errors.As(err, &spent):
			c.failed(ctx, policy, u, i, err, time.Since(started))
			return
		case err != nil:
			c.failed(ctx, policy, u, i, err, time.Since(started))
		case !passed:
			message, err := v.explain(ctx, u.vars, &budget)
			if err != nil {
				c.failed(ctx, policy, u, i, err, time.Since(started))
				return
			}
			c.denied(ctx, policy, u, i, denial{policy.name, u.binding.name, message, v.reason}, messageKind(message), time.Since(started))
		}
	}
	c.annotate(ctx, policy, u)
}

func (v *validation) check(ctx context.Context, vars *expression.Variables, budget *expression.Budget) (bool, error) {
	if v.err != nil {
		return false, v.err
	}
	value, err := v.program.Run(ctx, vars, budget)
	return value == types.True, err
}

// explain is the message of a validation that is false. An error says that its
// expression was too costly.
func (v *validation) explain(ctx context.Context, vars *expression.Variables, budget *expression.Budget) (string, error) {
	if v.message != nil {
		value, err := v.message.Run(ctx, vars, budget)
		var spent *expression.OutOfBudgetError
		if errors.As(err, &spent) {
			return "", fmt.Errorf("failed messageExpression: %w", err)
		}
		if text, ok := value.(types.String); err == nil && ok {
			message := strings.TrimSpace(string(text))
			if message != "" && len(message) <= celconfig.MaxEvaluatedMessageExpressionSizeBytes && !strings.Contains(message, "\n") {
				return message, nil
			}
		}
	}
	if v.text != "" {
		return v.text, nil
	}
	return "failed expression: " + v.source, nil
}

// failed is a validation that could not be evaluated.
func (c *checking) failed(ctx context.Context, policy *boundPolicy, u use, index int, err error, took time.Duration) {
	kind := errorKind(err)
	if policy.ignore {
		c.config.Metrics.validated(policy.name, u.binding.name, kind, "allow", took)
		return
	}
	c.denied(ctx, policy, u, index, denial{policy.name, u.binding.name, err.Error(), metav1.StatusReasonInvalid}, kind, took)
}

// denied does what the binding wants done with a validation that failed.
func (c *checking) denied(ctx context.Context, policy *boundPolicy, u use, index int, d denial, kind string, took time.Duration) {
	for _, action := range u.binding.actions {
		switch action {
		case admissionregistrationv1.Deny:
			c.denials = append(c.denials, d)
			c.config.Metrics.validated(policy.name, u.binding.name, kind, "deny", took)
		case admissionregistrationv1.Audit:
			c.failures = append(c.failures, auditFailure{d.message, d.policy, d.binding, index, u.binding.actions})
			c.config.Metrics.validated(policy.name, u.binding.name, kind, "audit", took)
		case admissionregistrationv1.Warn:
			request.AddWarning(ctx, fmt.Sprintf("Validation failed for ValidatingAdmissionPolicy '%s' with binding '%s': %s", d.policy, d.binding, d.message))
			c.config.Metrics.validated(policy.name, u.binding.name, kind, "warn", took)
		}
	}
}

// annotate notes what the policy says for the audit event.
func (c *checking) annotate(ctx context.Context, policy *boundPolicy, u use) {
	budget := expression.Budget(celconfig.RuntimeCELCostBudget)
	for i := range policy.annotations {
		a := &policy.annotations[i]
		err := a.err
		if err == nil {
			value, failure := a.program.Run(ctx, u.vars, &budget)
			err = failure
			if text, ok := value.(types.String); err == nil && ok {
				c.note(policy.name+"/"+a.key, strings.TrimSpace(string(text)))
			}
		}
		if err != nil && !policy.ignore {
			c.denials = append(c.denials, denial{policy.name, u.binding.name, err.Error(), metav1.StatusReasonInvalid})
			c.config.Metrics.validated(policy.name, u.binding.name, errorKind(err), "deny", 0)
		}
	}
}

const (
	maxAnnotation    = 10 * 1024 // bytes
	maxAuditFailures = 50
)

func (c *checking) note(key, value string) {
	if value == "" {
		return
	}
	if c.noted == nil {
		c.noted = map[string][]string{}
	}
	value = value[:min(len(value), maxAnnotation)]
	if !slices.Contains(c.noted[key], value) {
		c.noted[key] = append(c.noted[key], value)
	}
}

// publish adds the annotations to the audit event.
func (c *checking) publish(ctx context.Context) {
	if !request.Annotated(ctx) {
		return
	}
	for key, values := range c.noted {
		request.AddAnnotation(ctx, key, strings.Join(values, ", "))
	}
	if len(c.failures) > 0 {
		note(ctx, "validation.policy.admission.k8s.io/validation_failure", c.failures[:min(len(c.failures), maxAuditFailures)])
	}
}

// verdict is the refusal, nil when nothing denies the request.
func (c *checking) verdict() error {
	if len(c.denials) == 0 {
		return nil
	}
	d := c.denials[0]
	message := fmt.Sprintf("ValidatingAdmissionPolicy '%s' denied request: %s", d.policy, d.message)
	if d.binding != "" {
		message = fmt.Sprintf("ValidatingAdmissionPolicy '%s' with binding '%s' denied request: %s", d.policy, d.binding, d.message)
	}
	refused := apierrors.NewForbidden(c.request.Resource.GroupResource(), c.request.Name, errors.New(message))
	refused.ErrStatus.Reason = d.reason
	refused.ErrStatus.Code = codeOf(d.reason)
	refused.ErrStatus.Details.Causes = append(refused.ErrStatus.Details.Causes, metav1.StatusCause{Message: message})
	return refused
}

func codeOf(reason metav1.StatusReason) int32 {
	switch reason {
	case metav1.StatusReasonForbidden:
		return http.StatusForbidden
	case metav1.StatusReasonUnauthorized:
		return http.StatusUnauthorized
	case metav1.StatusReasonRequestEntityTooLarge:
		return http.StatusRequestEntityTooLarge
	}
	return http.StatusUnprocessableEntity
}
