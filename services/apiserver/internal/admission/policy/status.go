package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission/expression"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// Status writes into the status of validating policies what their expressions do
// not fit.
type Status struct {
	State        registry.State
	Environments *expression.Environments
	// Schemas loads what is checked against, for one round of checks.
	Schemas func() (Schemas, error)
	Log     *slog.Logger

	mu      sync.Mutex
	pending map[string]bool
}

// retryPause is how long a policy waits whose check or write failed.
const retryPause = 5 * time.Second

// Run checks each policy after its specification has changed, until ctx ends.
func (s *Status) Run(ctx context.Context) error {
	s.pending = map[string]bool{}
	news := make(chan struct{}, 1)
	tell := func() {
		select {
		case news <- struct{}{}:
		default:
		}
	}
	err := s.State.Subscribe(ctx, resource("validatingadmissionpolicies"), func(_, now runtime.Object) {
		policy, ok := now.(*admissionregistrationv1.ValidatingAdmissionPolicy)
		if !ok || checked(policy) {
			return
		}
		s.mu.Lock()
		s.pending[policy.Name] = true
		s.mu.Unlock()
		tell()
	})
	if err != nil {
		return fmt.Errorf("following validating policies: %w", err)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-news:
		}
		if err := s.round(ctx); err != nil && ctx.Err() == nil {
			s.Log.Warn("Checking the types of policies", "err", err)
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(retryPause):
				tell()
			}
		}
	}
}

func checked(policy *admissionregistrationv1.ValidatingAdmissionPolicy) bool {
	return policy.Status.ObservedGeneration >= policy.Generation
}

// round checks what is pending; what fails stays so.
func (s *Status) round(ctx context.Context) error {
	s.mu.Lock()
	names := make([]string, 0, len(s.pending))
	for name := range s.pending {
		names = append(names, name)
	}
	clear(s.pending)
	s.mu.Unlock()
	if len(names) == 0 {
		return nil
	}
	schemas, err := s.Schemas()
	if err != nil {
		s.later(names...)
		return err
	}
	c := &checker{base: s.Environments.Base(), schemas: schemas, log: s.Log}
	var failures []error
	for _, name := range names {
		if err := s.check(ctx, c, name); err != nil {
			s.later(name)
			failures = append(failures, fmt.Errorf("policy %s: %w", name, err))
		}
	}
	return errors.Join(failures...)
}

func (s *Status) later(names ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		s.pending[name] = true
	}
}

func (s *Status) check(ctx context.Context, c *checker, name string) error {
	_, err := s.State.Update(ctx, resource("validatingadmissionpolicies"), "status", "", name, false, func(obj runtime.Object) error {
		policy := obj.(*admissionregistrationv1.ValidatingAdmissionPolicy)
		if checked(policy) {
			return errChecked
		}
		warnings, err := c.warnings(policy)
		if err != nil {
			// The policy works without it.
			s.Log.Warn("Checking the types of a policy", "policy", name, "err", err)
		}
		policy.Status.TypeChecking = &admissionregistrationv1.TypeChecking{ExpressionWarnings: warnings}
		policy.Status.ObservedGeneration = policy.Generation
		return nil
	})
	if errors.Is(err, errChecked) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
