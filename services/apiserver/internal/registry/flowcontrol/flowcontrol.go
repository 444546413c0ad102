// Package flowcontrol has the kinds of flowcontrol.apiserver.k8s.io, by which
// requests are sorted into flows and flows into priority levels.
package flowcontrol

import (
	"context"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

var v1 = flowcontrolv1.SchemeGroupVersion

type (
	flowSchema = flowcontrolv1.FlowSchema
	level      = flowcontrolv1.PriorityLevelConfiguration
)

// condition is what the conditions of both kinds have in common.
type condition interface {
	flowcontrolv1.FlowSchemaCondition | flowcontrolv1.PriorityLevelConfigurationCondition
}

// validateConditions wants each condition to have a type of its own.
func validateConditions[C condition](list []C, typeOf func(*C) string) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]bool{}
	for i := range list {
		path := field.NewPath("status", "conditions").Index(i).Child("type")
		name := typeOf(&list[i])
		if seen[name] {
			errs = append(errs, field.Duplicate(path, name))
		}
		seen[name] = true
		if name == "" {
			errs = append(errs, field.Required(path, "must not be empty"))
		}
	}
	return errs
}

// statusOf is the status strategy beside a kind's own.
func statusOf[T registry.Object](main registry.Behaviour[T], keepSpec func(obj, old T), validate func(obj T) field.ErrorList) registry.Subresource {
	status := main
	status.PrepareForUpdate = func(_ context.Context, obj, old T) { keepSpec(obj, old) }
	status.ValidateUpdate = func(_ context.Context, obj, _ T) field.ErrorList { return validate(obj) }
	status.ResetFields = []string{"spec", "metadata"}
	status.SpecOf = nil
	return registry.Subresource{Name: "status", Verbs: []string{"get", "patch", "update"}, Update: registry.Erase(status)}
}
