package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

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

// memory is what the plugin keeps between the rounds of one write.
type memory struct {
	again  map[key]bool   // webhooks that were called and may be again
	due    map[key]bool   // of them those that have not seen the newest object
	output runtime.Object // as the last round left it
}

// changed makes every webhook that was called before due.
func (m *memory) changed() {
	for k := range m.again {
		m.due[k] = true
	}
	m.again = map[key]bool{}
}

// Admit implements admission.Mutator: webhooks are called one after the other, each
// with what the one before left.
func (m *Mutating) Admit(ctx context.Context, a *admission.Attributes) error {
	if intercept.Exempt(a) || exempt(ctx) {
		return nil
	}
	hooks, err := m.hooks.Get(ctx)
	if err != nil {
		return err
	}
	if len(hooks.all) == 0 {
		return nil
	}
	past := a.Memory(MutatingName, func() any { return &memory{again: map[key]bool{}, due: map[key]bool{}} }).(*memory)
	if a.Second() && past.output != nil && !apiequality.Semantic.DeepEqual(past.output, a.Object) {
		past.changed()
	}
	limited, cancel := budget(ctx)
	defer cancel()
	r := m.source.Request(a)
	for index, h := range hooks.all {
		if err := m.one(ctx, limited, h, index, r, past); err != nil {
			return err
		}
	}
	if len(past.again) > 0 && a.Object != nil {
		past.output = a.Object.DeepCopyObject()
	}
	return nil
}

func (m *Mutating) one(ctx, limited context.Context, h *hook, index int, r *intercept.Request, past *memory) error {
	target, ok, err := m.match(ctx, h, r)
	if err != nil || !ok || r.Second() && !past.due[h.key()] {
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
	if changed {
		past.changed()
		r.Again()
	}
	if h.ReinvocationPolicy != nil && *h.ReinvocationPolicy == admissionregistrationv1.IfNeededReinvocationPolicy {
		past.again[h.key()] = true
	}
	return m.finish(ctx, ctx, h, r, started, failure, func() {
		request.AddAnnotation(ctx, "failed-open.mutation.webhook.admission.k8s.io/"+place, h.Name)
	})
}

// call asks one webhook, and changes the object as it wants.
func (m *Mutating) call(ctx context.Context, h *hook, target intercept.Target, index int, r *intercept.Request) (changed bool, err error) {
	v, err := r.As(target)
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
	obj, err := applyPatch(patch, document, v.Object)
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
