package webhook

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission/intercept"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
)

// callError says that a webhook gave no valid answer. The failure policy decides
// what that means.
type callError struct {
	hook   string
	reason error
	code   int
}

// Error implements error.
func (e *callError) Error() string {
	return fmt.Sprintf("failed calling webhook %q: %v", e.hook, e.reason)
}

// Unwrap gives the reason.
func (e *callError) Unwrap() error { return e.reason }

// rejection is the refusal of a webhook.
type rejection struct{ *apierrors.StatusError }

// caller asks webhooks of one kind.
type caller struct {
	kind     string // "admit" or "validating", in metrics
	mutating bool
	metrics  *Metrics
	watch    *watchdog
}

// match says whether a request is for the webhook.
func (c *caller) match(ctx context.Context, h *hook, r *intercept.Request) (intercept.Target, bool, error) {
	if h.invalid != nil {
		return intercept.Target{}, false, apierrors.NewInternalError(fmt.Errorf("webhook %q: %w", h.Name, h.invalid))
	}
	target, ok, err := r.Match(ctx, h.criteria)
	if err != nil || !ok || len(h.conditions) == 0 {
		return target, ok && err == nil, err
	}
	v, err := r.As(ctx, target)
	if err != nil {
		return target, false, apierrors.NewInternalError(err)
	}
	subject := intercept.Subject{Name: h.Name, Kind: "webhook", Type: c.kind, Operation: r.Operation}
	met, err := h.conditions.Met(ctx, r.ConditionVariables(v), c.metrics.conditions, subject)
	if err != nil && !h.ignores() {
		return target, false, apierrors.NewForbidden(r.Resource.GroupResource(), r.Name, err)
	}
	if !met {
		c.metrics.conditions.Excluded(subject)
	}
	return target, met && err == nil, nil
}

// ask calls a webhook and returns its valid answer that allows the request. Errors
// are a *rejection, a *callError, or another API status.
func (c *caller) ask(ctx context.Context, h *hook, r *intercept.Request, v *intercept.Version) (*admissionv1.AdmissionResponse, error) {
	if r.DryRun && !h.quiet() {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("admission webhook %q does not support dry run", h.Name))
	}
	if err := h.breaker.allow(); err != nil {
		return nil, &callError{h.Name, fmt.Errorf("failed to call webhook: %w", err), http.StatusGatewayTimeout}
	}
	review, id, err := newReview(r, v, r.DryRun)
	if err != nil {
		return nil, &callError{h.Name, fmt.Errorf("could not create admission objects: %w", err), http.StatusBadRequest}
	}
	limited, cancel := context.WithTimeout(ctx, h.timeout)
	defer cancel()
	data, err := h.client.post(limited, review)
	c.judge(ctx, limited, h, r, v, err)
	if err != nil {
		return nil, &callError{h.Name, fmt.Errorf("failed to call webhook: %w", err), codeOf(err)}
	}
	response, err := readResponse(data, id, c.mutating)
	if err != nil {
		return nil, &callError{h.Name, fmt.Errorf("received invalid webhook response: %w", err), http.StatusServiceUnavailable}
	}
	for key, value := range response.AuditAnnotations {
		request.AddAnnotation(ctx, h.Name+"/"+key, value)
	}
	for _, warning := range response.Warnings {
		request.AddWarning(ctx, warning)
	}
	if !response.Allowed {
		return nil, &rejection{refusal(h.Name, response.Result)}
	}
	return response, nil
}

// judge tells the breaker how a call ended. A call that the client or the budget
// of its request cut short says nothing about the webhook.
func (c *caller) judge(ctx, limited context.Context, h *hook, r *intercept.Request, v *intercept.Version, err error) {
	switch {
	case err == nil || limited.Err() == nil:
		c.watch.closed(h.breaker, h.breaker.answered())
	case ctx.Err() == nil && errors.Is(limited.Err(), context.DeadlineExceeded):
		c.watch.opened(h.breaker, h.breaker.timedOut(func() []byte {
			if !h.quiet() {
				return nil
			}
			review, _, err := newReview(r, v, true)
			if err != nil {
				return nil
			}
			return review
		}))
	}
}

func codeOf(err error) int {
	var status *statusError
	if errors.As(err, &status) {
		return status.code
	}
	return http.StatusServiceUnavailable
}

// refusal is what the client gets when a webhook refuses its request.
func refusal(name string, result *metav1.Status) *apierrors.StatusError {
	status := metav1.Status{}
	if result != nil {
		status = *result
	}
	denied := fmt.Sprintf("admission webhook %q denied the request", name)
	switch {
	case status.Message != "":
		status.Message = denied + ": " + status.Message
	case status.Reason != "":
		status.Message = denied + ": " + string(status.Reason)
	default:
		status.Message = denied + " without explanation"
	}
	if status.Code < http.StatusBadRequest || status.Code > 599 {
		status.Code = http.StatusBadRequest
	}
	status.Status = metav1.StatusFailure
	return &apierrors.StatusError{ErrStatus: status}
}

// finish counts a call, and decides what its error means: nil to go on.
func (c *caller) finish(ctx context.Context, h *hook, r *intercept.Request, started time.Time, failure error, annotate func()) error {
	var call *callError
	var refused *rejection
	end := ending{code: http.StatusOK}
	switch {
	case failure == nil:
	case errors.As(failure, &call):
		end = ending{rejected: !h.ignores(), why: callingError, code: call.code, canceled: errors.Is(call, context.Canceled)}
	case errors.As(failure, &refused):
		end = ending{rejected: true, why: noError, code: int(refused.ErrStatus.Code)}
		failure = refused.StatusError
	default:
		end = ending{rejected: true, why: internalError}
	}
	c.metrics.called(h.Name, c.kind, string(r.Operation), time.Since(started), end)
	if call == nil {
		return failure
	}
	if ctx.Err() != nil {
		return apierrors.NewTimeoutError("request did not complete within requested timeout", 0)
	}
	if !h.ignores() {
		return apierrors.NewInternalError(failure)
	}
	if !end.canceled {
		c.metrics.failOpen.WithLabelValues(h.Name, c.kind).Inc()
		annotate()
	}
	return nil
}

// reserve is what is left of a request's time when webhooks must have answered.
const reserve = time.Second

// unbounded is the time of all webhooks for a write that has no deadline.
const unbounded = 30 * time.Second

// budget bounds the time of all webhooks of one request together: when it is
// spent, those that are left fail as if they had timed out, and their policies
// still decide within the request's own time.
func budget(ctx context.Context) (context.Context, context.CancelFunc) {
	if deadline, ok := ctx.Deadline(); ok {
		return context.WithDeadline(ctx, deadline.Add(-reserve))
	}
	return context.WithTimeout(ctx, unbounded)
}
