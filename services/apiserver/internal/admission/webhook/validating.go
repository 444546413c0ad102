package webhook

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/admission/intercept"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
)

// ValidatingName is the plugin's name.
const ValidatingName = "ValidatingAdmissionWebhook"

// Validating is the plugin ValidatingAdmissionWebhook.
type Validating struct {
	caller
	source intercept.Source
	hooks  *intercept.Snapshot[*hooks]
}

// Name implements admission.Plugin.
func (p *Validating) Name() string { return ValidatingName }

// Handles implements admission.Plugin.
func (p *Validating) Handles(admission.Operation) bool { return true }

// Validate implements admission.Validator: all webhooks that match are called at the
// same time, and the refusal of the first in order is answered.
func (p *Validating) Validate(ctx context.Context, a *admission.Attributes) error {
	if intercept.Exempt(ctx, a) {
		return nil
	}
	hooks, err := p.hooks.Get(ctx)
	if err != nil {
		return err
	}
	if len(hooks.all) == 0 {
		return nil
	}
	r := p.source.Request(a)
	defer r.Close()
	calls, err := p.matching(ctx, hooks.all, r)
	if err != nil || len(calls) == 0 {
		return err
	}
	limited, cancel := budget(ctx)
	defer cancel()
	failures := make([]error, len(calls))
	var group sync.WaitGroup
	for i := range calls {
		group.Go(func() { failures[i] = p.one(ctx, limited, &calls[i], i, r) })
	}
	group.Wait()
	for _, failure := range failures {
		if failure != nil {
			return failure
		}
	}
	return nil
}

// prepared is a webhook that a request matches, with the request in the version
// that it gets.
type prepared struct {
	*hook
	version *intercept.Version
}

// matching are the webhooks to call. Everything that they share is made here, for
// they are called at the same time.
func (p *Validating) matching(ctx context.Context, all []*hook, r *intercept.Request) ([]prepared, error) {
	var calls []prepared
	for _, h := range all {
		target, ok, err := p.match(ctx, h, r)
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		v, err := r.As(ctx, target)
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		r.AdmissionRequest(v)
		if _, _, err := v.JSON(); err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		calls = append(calls, prepared{h, v})
	}
	return calls, nil
}

func (p *Validating) one(ctx, limited context.Context, call *prepared, index int, r *intercept.Request) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = apierrors.NewInternalError(fmt.Errorf("%s/%s has panicked: %v", ValidatingName, call.Name, v))
		}
	}()
	started := time.Now()
	_, failure := p.ask(limited, call.hook, r, call.version)
	return p.finish(ctx, call.hook, r, started, failure, func() {
		request.AddAnnotation(ctx, fmt.Sprintf("failed-open.validating.webhook.admission.k8s.io/round_0_index_%d", index), call.Name)
	})
}
