// Package scheduling has the kinds of scheduling.k8s.io.
package scheduling

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

const (
	// systemPrefix is reserved for the classes below.
	systemPrefix = "system-"
	// highestUserPriority is the highest value of a class that is not the system's.
	highestUserPriority = int32(1000000000)
	systemNodeCritical  = "system-node-critical"
	systemCluster       = "system-cluster-critical"
)

// PriorityClasses name priorities of pods.
func PriorityClasses() *registry.Resource {
	doc := schedulingv1.PriorityClass{}.SwaggerDoc()
	return registry.Define(registry.Definition[*schedulingv1.PriorityClass]{
		GroupVersion: schedulingv1.SchemeGroupVersion, Resource: "priorityclasses", Kind: "PriorityClass", Singular: "priorityclass",
		ShortNames: []string{"pc"},
		New:        func() *schedulingv1.PriorityClass { return &schedulingv1.PriorityClass{} },
		NewList:    func() runtime.Object { return &schedulingv1.PriorityClassList{} },
		KeyPrefix:  "/registry/priorityclasses",
		Strategy: registry.Behaviour[*schedulingv1.PriorityClass]{
			Default: func(obj *schedulingv1.PriorityClass) {
				if obj.PreemptionPolicy == nil {
					obj.PreemptionPolicy = ptr.To(corev1.PreemptLowerPriority)
				}
			},
			PrepareForCreate: func(_ context.Context, obj *schedulingv1.PriorityClass) { obj.Generation = 1 },
			Validate:         func(_ context.Context, obj *schedulingv1.PriorityClass) field.ErrorList { return validate(obj) },
			ValidateUpdate:   validateUpdate,
		},
		Columns: []metav1.TableColumnDefinition{
			table.Name(),
			table.Integer("Value", doc["value"]),
			table.Boolean("Global-Default", doc["globalDefault"]),
			table.Age(),
			table.String("PreemptionPolicy", doc["preemptionPolicy"]),
		},
		Row: func(obj *schedulingv1.PriorityClass) []any {
			return []any{
				obj.Name, int64(obj.Value), obj.GlobalDefault, table.Since(obj.CreationTimestamp), string(table.Value(obj.PreemptionPolicy)),
			}
		},
	})
}

func validate(obj *schedulingv1.PriorityClass) field.ErrorList {
	var errs field.ErrorList
	if strings.HasPrefix(obj.Name, systemPrefix) {
		if err := validateSystemClass(obj); err != nil {
			errs = append(errs, field.Forbidden(field.NewPath("metadata", "name"), "priority class names with '"+systemPrefix+"' prefix are reserved for system use only. error: "+err.Error()))
		}
	} else if obj.Value > highestUserPriority {
		errs = append(errs, field.Forbidden(field.NewPath("value"), fmt.Sprintf("maximum allowed value of a user defined priority is %v", highestUserPriority)))
	}
	return append(errs, validatePolicy(obj)...)
}

func validatePolicy(obj *schedulingv1.PriorityClass) field.ErrorList {
	if p := obj.PreemptionPolicy; p != nil && *p != corev1.PreemptLowerPriority && *p != corev1.PreemptNever {
		return field.ErrorList{field.NotSupported(field.NewPath("preemptionPolicy"), *p, []corev1.PreemptionPolicy{corev1.PreemptLowerPriority, corev1.PreemptNever})}
	}
	return nil
}

// validateSystemClass holds the two system classes to their definitions.
func validateSystemClass(obj *schedulingv1.PriorityClass) error {
	values := map[string]int32{systemNodeCritical: 2*highestUserPriority + 1000, systemCluster: 2 * highestUserPriority}
	value, known := values[obj.Name]
	switch {
	case !known:
		return fmt.Errorf("%v is not a known system priority class", obj.Name)
	case obj.Value != value:
		return fmt.Errorf("value of %v PriorityClass must be %v", obj.Name, value)
	case obj.GlobalDefault:
		return fmt.Errorf("globalDefault of %v PriorityClass must be %v", obj.Name, false)
	}
	return nil
}

func validateUpdate(_ context.Context, obj, old *schedulingv1.PriorityClass) field.ErrorList {
	var errs field.ErrorList
	if obj.Value != old.Value {
		errs = append(errs, field.Forbidden(field.NewPath("value"), "may not be changed in an update."))
	}
	if p, was := table.Value(obj.PreemptionPolicy), table.Value(old.PreemptionPolicy); p != was {
		errs = append(errs, field.Invalid(field.NewPath("preemptionPolicy"), p, "field is immutable"))
	}
	return errs
}
