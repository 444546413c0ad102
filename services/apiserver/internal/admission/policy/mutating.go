package policy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/cel-go/cel"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/admission/expression"
	"github.com/sampan-io/sampan/services/apiserver/internal/admission/intercept"
)

// MutatingName is the plugin's name.
const MutatingName = "MutatingAdmissionPolicy"

// Mutating is the plugin MutatingAdmissionPolicy.
type Mutating struct {
	config   Config
	policies *intercept.Snapshot[*mutatingPolicies]
}

// NewMutating makes the plugin.
func NewMutating(config Config) *Mutating {
	p := &Mutating{config: config}
	p.policies = intercept.NewSnapshot(config.Configuration, p.prepare, resource("mutatingadmissionpolicies"), resource("mutatingadmissionpolicybindings"))
	return p
}

// mutatingPolicies are the policies that have bindings, and all that are
// compiled.
type mutatingPolicies struct {
	active   []boundMutation
	compiled map[version]*mutatingPolicy
}

type boundMutation struct {
	*mutatingPolicy
	bindings []binding
}

// mutatingPolicy is a compiled policy.
type mutatingPolicy struct {
	rule
	mutations   []mutation
	reinvocable bool
}

// mutation is one compiled change.
type mutation struct {
	program *expression.Program
	err     error
	apply   bool // an apply configuration, else a JSON patch
}

// Name implements admission.Plugin.
func (p *Mutating) Name() string { return MutatingName }

// Handles implements admission.Plugin.
func (p *Mutating) Handles(operation admission.Operation) bool { return operation != admission.Delete }

func (p *Mutating) prepare(objects [][]runtime.Object, last *mutatingPolicies) *mutatingPolicies {
	now := &mutatingPolicies{compiled: map[version]*mutatingPolicy{}}
	bindings := map[string][]*admissionregistrationv1.MutatingAdmissionPolicyBinding{}
	for _, obj := range byName(objects[1]) {
		b := obj.(*admissionregistrationv1.MutatingAdmissionPolicyBinding)
		bindings[b.Spec.PolicyName] = append(bindings[b.Spec.PolicyName], b)
	}
	for _, obj := range byName(objects[0]) {
		policy := obj.(*admissionregistrationv1.MutatingAdmissionPolicy)
		bound := bindings[policy.Name]
		if len(bound) == 0 {
			continue
		}
		v := versionOf(policy)
		var compiled *mutatingPolicy
		if last != nil {
			compiled = last.compiled[v]
		}
		if compiled == nil {
			compiled = compileMutating(p.config.Environments, policy)
		}
		now.compiled[v] = compiled
		active := boundMutation{mutatingPolicy: compiled}
		for _, b := range bound {
			active.bindings = append(active.bindings, newBinding(b.Name, policy.Spec.ParamKind, b.Spec.ParamRef, b.Spec.MatchResources))
		}
		now.active = append(now.active, active)
	}
	return now
}

func compileMutating(e *expression.Environments, policy *admissionregistrationv1.MutatingAdmissionPolicy) *mutatingPolicy {
	spec := &policy.Spec
	out := &mutatingPolicy{
		reinvocable: spec.ReinvocationPolicy == admissionregistrationv1.IfNeededReinvocationPolicy,
		rule: newRule(e, source{
			name: policy.Name, failure: spec.FailurePolicy, params: spec.ParamKind, constraints: spec.MatchConstraints,
			conditions: spec.MatchConditions, variables: spec.Variables, patches: true,
		}),
	}
	if out.invalid != nil {
		return out
	}
	for i := range spec.Mutations {
		out.mutations = append(out.mutations, compileMutation(out.scope, &spec.Mutations[i]))
	}
	return out
}

func compileMutation(scope *expression.Scope, m *admissionregistrationv1.Mutation) mutation {
	var source string
	var returns *cel.Type
	made := mutation{apply: m.PatchType == admissionregistrationv1.PatchTypeApplyConfiguration}
	switch {
	case made.apply && m.ApplyConfiguration != nil:
		source, returns = m.ApplyConfiguration.Expression, expression.ApplyConfigurationType()
	case m.PatchType == admissionregistrationv1.PatchTypeJSONPatch && m.JSONPatch != nil:
		source, returns = m.JSONPatch.Expression, expression.JSONPatchType()
	default:
		made.err = fmt.Errorf("the mutation has no %s", m.PatchType)
		return made
	}
	program, problem := scope.Compile(expression.Stored, source, returns)
	made.program = program
	if problem != nil {
		made.err = fmt.Errorf("compilation error: %w", problem)
	}
	return made
}

// part names what may run twice: a policy by one binding with one parameter.
type part struct{ policy, binding, paramNamespace, paramName string }

func partOf(policy string, u use) part {
	p := part{policy: policy, binding: u.binding.name}
	if meta, ok := u.param.(metav1.Object); ok {
		p.paramNamespace, p.paramName = meta.GetNamespace(), meta.GetName()
	}
	return p
}

// Admit implements admission.Mutator: policies change the object one after the other,
// in the order of their names.
func (p *Mutating) Admit(ctx context.Context, a *admission.Attributes) error {
	if intercept.Exempt(ctx, a) {
		return nil
	}
	policies, err := p.policies.Get(ctx)
	if err != nil || len(policies.active) == 0 {
		return err
	}
	m := &mutating{Mutating: p, request: p.config.Source.Request(a), rounds: intercept.RoundsOf[part](a, MutatingName)}
	defer m.request.Close()
	for i := range policies.active {
		if err := m.policy(ctx, &policies.active[i]); err != nil {
			return err
		}
	}
	m.rounds.End(a)
	return m.verdict()
}

// mutating is the change of one request by all policies.
type mutating struct {
	*Mutating
	request *intercept.Request
	rounds  *intercept.Rounds[part]
	denials []denial
}

func (m *mutating) policy(ctx context.Context, policy *boundMutation) error {
	failed := func(f failure) {
		if policy.ignore {
			return
		}
		d := denial{policy: policy.name, message: f.message()}
		if f.binding != nil {
			d.binding = f.binding.name
		}
		m.denials = append(m.denials, d)
	}
	return policy.uses(ctx, m.config.Kinds, m.request, policy.bindings, func(u use) error { return m.use(ctx, policy, u) }, failed)
}

func (m *mutating) use(ctx context.Context, policy *boundMutation, u use) error {
	refuse := func(err error) {
		if !policy.ignore {
			m.denials = append(m.denials, denial{policy.name, u.binding.name, err.Error(), metav1.StatusReasonInvalid})
		}
	}
	met, err := policy.met(ctx, m.config.Metrics.conditions, m.request, u)
	if err != nil {
		refuse(err)
		return nil
	}
	this := partOf(policy.name, u)
	if !met || m.request.Object == nil || !m.rounds.Runs(m.request.Attributes, this) {
		return nil
	}
	changed := false
	for i := range policy.mutations {
		started := time.Now()
		did, err := m.mutate(ctx, policy, &policy.mutations[i], u)
		m.config.Metrics.mutated(policy.name, u.binding.name, errorKind(err), time.Since(started))
		changed = changed || did
		var status *apierrors.StatusError
		switch {
		case errors.As(err, &status):
			return err
		case err != nil:
			refuse(err)
		}
	}
	m.rounds.Ran(m.request.Attributes, this, changed, policy.reinvocable)
	return ctx.Err()
}

// mutate applies one mutation to the object as it is now.
func (m *mutating) mutate(ctx context.Context, policy *boundMutation, mutation *mutation, u use) (changed bool, err error) {
	if mutation.err != nil {
		return false, mutation.err
	}
	v, err := m.request.As(ctx, u.target)
	if err != nil {
		return false, err
	}
	vars, err := m.request.Variables(ctx, v)
	if err != nil {
		return false, err
	}
	budget := expression.Budget(celconfig.RuntimeCELCostBudget)
	value, err := mutation.program.Run(ctx, vars.With(policy.scope, u.vars.Params), &budget)
	if err != nil {
		return false, err
	}
	var obj runtime.Object
	if mutation.apply {
		obj, err = applyConfiguration(m.typesOf(v), v.Object, value)
	} else {
		obj, err = applyJSONPatch(v, value)
	}
	if err != nil || obj == nil {
		return false, err
	}
	return m.request.Change(ctx, v, obj)
}

// verdict is the refusal, nil when no policy failed.
func (m *mutating) verdict() error {
	if len(m.denials) == 0 {
		return nil
	}
	refused := apierrors.NewForbidden(m.request.Resource.GroupResource(), m.request.Name, errors.New("admission request denied by policy"))
	for i, d := range m.denials {
		message := fmt.Sprintf("policy %q denied request: %s", d.policy, d.message)
		if d.binding != "" {
			message = fmt.Sprintf("policy '%s' with binding '%s' denied request: %s", d.policy, d.binding, d.message)
		}
		if i == 0 {
			refused.ErrStatus.Message = message
			if d.reason != "" {
				refused.ErrStatus.Reason = d.reason
			}
		}
		refused.ErrStatus.Details.Causes = append(refused.ErrStatus.Details.Causes, metav1.StatusCause{Message: message})
	}
	return refused
}
