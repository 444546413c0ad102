// Package admission holds the chain that sees each write before it is stored.
package admission

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
)

// Operation is the kind of a write.
type Operation string

// The operations, spelled as admission reviews spell them.
const (
	Create  Operation = "CREATE"
	Update  Operation = "UPDATE"
	Delete  Operation = "DELETE"
	Connect Operation = "CONNECT"
)

// Attributes is one write on its way to the store.
type Attributes struct {
	Operation   Operation
	Kind        schema.GroupVersionKind
	Resource    schema.GroupVersionResource
	Subresource string
	Namespace   string
	Name        string // "" for a create with generateName
	// Object is the object to be stored (for Connect the options); nil for Delete.
	// Mutators change it in place.
	Object runtime.Object
	// OldObject is what is stored now; nil for Create.
	OldObject runtime.Object
	// Options are the *metav1.CreateOptions, UpdateOptions or DeleteOptions.
	Options runtime.Object
	DryRun  bool
	User    *authn.User
	// Settle makes an object that a mutator has changed what the kind wants again:
	// absent fields set, unknown ones dropped. Nil does nothing.
	Settle func(obj runtime.Object) error

	rounds rounds
}

// Plugin is one admission plugin; it is a Mutator, a Validator or both.
type Plugin interface {
	Name() string // upstream's name, such as "NamespaceLifecycle"
	Handles(operation Operation) bool
}

// Mutator may change the object. An error that is not an API status error is
// answered as 403 Forbidden.
type Mutator interface {
	Plugin
	Admit(ctx context.Context, a *Attributes) error
}

// Validator may refuse the write, and must not change the object.
type Validator interface {
	Plugin
	Validate(ctx context.Context, a *Attributes) error
}

// Chain is an ordered list of plugins.
type Chain []Plugin

// Admit runs the mutators in order and stops at the first refusal. It runs them
// once more when one asks for it.
func (c Chain) Admit(ctx context.Context, a *Attributes) error {
	err := c.admit(ctx, a)
	if err == nil && a.rounds.wanted {
		a.rounds.second = true
		err = c.admit(ctx, a)
	}
	return err
}

func (c Chain) admit(ctx context.Context, a *Attributes) error {
	for _, plugin := range c {
		if mutator, ok := plugin.(Mutator); ok && plugin.Handles(a.Operation) {
			if err := mutator.Admit(ctx, a); err != nil {
				return refusal(a, err)
			}
		}
	}
	return nil
}

// Validate runs the validators in order and stops at the first refusal.
func (c Chain) Validate(ctx context.Context, a *Attributes) error {
	for _, plugin := range c {
		if validator, ok := plugin.(Validator); ok && plugin.Handles(a.Operation) {
			if err := validator.Validate(ctx, a); err != nil {
				return refusal(a, err)
			}
		}
	}
	return nil
}
