package main

import (
	"context"
	"fmt"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// largest crew.
const largest = 10

// webhooks default and check crews.
type webhooks struct{}

// setUp serves the webhooks.
func (w webhooks) setUp(mgr ctrl.Manager) error {
	return ctrl.NewWebhookManagedBy(mgr, &Crew{}).WithDefaulter(w).WithValidator(w).Complete()
}

// Default implements admission.Defaulter.
func (webhooks) Default(_ context.Context, crew *Crew) error {
	if crew.Spec.Size == nil {
		crew.Spec.Size = new(int32(1))
	}
	return nil
}

// ValidateCreate implements admission.Validator.
func (webhooks) ValidateCreate(_ context.Context, crew *Crew) (admission.Warnings, error) {
	switch size := crew.size(); {
	case size > largest:
		return nil, fmt.Errorf("a ship takes %d hands, not %d", largest, size)
	case size == 0:
		return admission.Warnings{"a ship without hands drifts"}, nil
	}
	return nil, nil
}

// ValidateUpdate implements admission.Validator.
func (w webhooks) ValidateUpdate(ctx context.Context, old, crew *Crew) (admission.Warnings, error) {
	if old.Spec.Ship != crew.Spec.Ship {
		return nil, fmt.Errorf("the crew of %s stays on board", old.Spec.Ship)
	}
	return w.ValidateCreate(ctx, crew)
}

// ValidateDelete implements admission.Validator.
func (webhooks) ValidateDelete(_ context.Context, crew *Crew) (admission.Warnings, error) {
	if crew.Annotations["ships.example.com/at-sea"] != "" {
		return nil, fmt.Errorf("%s is at sea", crew.Spec.Ship)
	}
	return nil, nil
}
