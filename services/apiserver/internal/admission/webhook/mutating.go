package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/admission/intercept"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
)

// MutatingName is the plugin's name.
const MutatingName = "MutatingAdmissionWebhook"

// Mutating is the plugin MutatingAdmissionWebhook.
type Mutating struct {
	caller
	source intercept.Source
	hooks  *intercept.Snapshot[*hooks]
}

// Name implements admission.Plugin.
func (m *Mutating) Name() string { return MutatingName }

// Handles implements admission.Plugin.
func (m *Mutating) Handles(admission.Operation) bool { return true }

// Admit implements admission.Mutator: webhooks are called one after the other, each
// with what the one before left.
func (m *Mutating) Admit(ctx context.Context, a *admission.Attributes) error {
	if intercept.Exempt(ctx, a) {
		return nil
	}
	hooks, err := m.hooks.Get(ctx)
	if err != nil {
		return err
	}
	if len(hooks.all) == 0 {
		return nil
	}
	rounds := intercept.RoundsOf[key](a, MutatingName)
	limited, cancel := budget(ctx)
	defer cancel()
	r := m.source.Request(a)
	defer r.Close()
	for index, h := range hooks.all {
		if err := m.one(ctx, limited, h, index, r, rounds); err != nil {
			return err
		}
	}
	rounds.End(a)
	return nil
}

func (m *Mutating) one(ctx, limited context.Context, h *hook, index int, r *intercept.Request, rounds *intercept.Rounds[key]) error {
	target, ok, err := m.match(ctx, h, r)
	if err != nil || !ok || !rounds.Runs(r.Attributes, h.key()) {
		return err
	}
	started := time.Now()
	changed, failure := m.call(limited, h, target, index, r)
	round := 0
	if r.Second() {
		round = 1
	}
	place := fmt.Sprintf("round_%d_index_%d", round, index)
	if request.Annotated(ctx) {
		note(ctx, "mutation.webhook.admission.k8s.io/"+place, map[string]any{"configuration": h.configuration, "webhook": h.Name, "mutated": changed})
	}
	rounds.Ran(r.Attributes, h.key(), changed, h.ReinvocationPolicy != nil && *h.ReinvocationPolicy == admissionregistrationv1.IfNeededReinvocationPolicy)
	return m.finish(ctx, h, r, started, failure, func() {
		request.AddAnnotation(ctx, "failed-open.mutation.webhook.admission.k8s.io/"+place, h.Name)
	})
}

// call asks one webhook, and changes the object as it wants.
func (m *Mutating) call(ctx context.Context, h *hook, target intercept.Target, index int, r *intercept.Request) (changed bool, err error) {
	v, err := r.As(ctx, target)
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	response, err := m.ask(ctx, h, r, v)
	if err != nil || len(response.Patch) == 0 {
		return false, err
	}
	patch, err := decodePatch(response.Patch)
	if err != nil {
		return false, &callError{h.Name, fmt.Errorf("received undecodable patch in webhook response: %w", err), 503}
	}
	if len(patch) == 0 {
		return false, nil
	}
	if v.Object == nil {
		return false, apierrors.NewInternalError(fmt.Errorf("admission webhook %q attempted to modify the object, which is not supported for this operation", h.Name))
	}
	return m.patch(ctx, h, index, r, v, patch)
}

func (m *Mutating) patch(ctx context.Context, h *hook, index int, r *intercept.Request, v *intercept.Version, patch jsonpatch.Patch) (bool, error) {
	document, _, err := v.JSON()
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	obj, err := intercept.ApplyPatch(patch, document, v.Object)
	if err != nil {
		return false, apierrors.NewInternalError(fmt.Errorf("applying the patch of admission webhook %q: %w", h.Name, err))
	}
	changed, err := r.Change(ctx, v, obj)
	if err != nil {
		return false, apierrors.NewInternalError(fmt.Errorf("the object as admission webhook %q wants it: %w", h.Name, err))
	}
	if request.Annotated(ctx) {
		round := 0
		if r.Second() {
			round = 1
		}
		note(ctx, fmt.Sprintf("patch.webhook.admission.k8s.io/round_%d_index_%d", round, index),
			map[string]any{"configuration": h.configuration, "webhook": h.Name, "patch": patch, "patchType": "JSONPatch"})
	}
	return changed, nil
}

// note adds a document to the request's audit event.
func note(ctx context.Context, key string, document any) {
	if data, err := json.Marshal(document); err == nil {
		request.AddAnnotation(ctx, key, string(data))
	}
}
