package flowcontrol

import (
	"cmp"
	"context"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// defaultPrecedence is a schema's place among the others when it names none.
const defaultPrecedence = 1000

// FlowSchemas say which requests belong to which flow.
func FlowSchemas() *registry.Resource {
	doc := flowcontrolv1.FlowSchemaSpec{}.SwaggerDoc()
	main := schemaBehaviour()
	return registry.Define(registry.Definition[*flowSchema]{
		GroupVersion: v1, Resource: "flowschemas", Kind: "FlowSchema", Singular: "flowschema",
		New:       func() *flowSchema { return &flowSchema{} },
		NewList:   func() runtime.Object { return &flowcontrolv1.FlowSchemaList{} },
		KeyPrefix: "/registry/flowschemas",
		Strategy:  main,
		Columns: []metav1.TableColumnDefinition{
			table.Name(),
			table.String("PriorityLevel", flowcontrolv1.PriorityLevelConfigurationReference{}.SwaggerDoc()["name"]),
			table.String("MatchingPrecedence", doc["matchingPrecedence"]),
			table.String("DistinguisherMethod", doc["distinguisherMethod"]),
			table.Age(),
			table.String("MissingPL", "references a broken or non-existent PriorityLevelConfiguration"),
		},
		Row:      schemaRow,
		RowOrder: inTrialOrder,
		Subresources: []registry.Subresource{
			statusOf(main, func(obj, old *flowSchema) {
				obj.Spec = old.Spec
				metav1.ResetObjectMetaForStatus(obj, old)
			}, validateSchemaStatus),
		},
	})
}

// inTrialOrder compares schemas by when a request is tried against them.
func inTrialOrder(a, b *flowSchema) int {
	return cmp.Or(cmp.Compare(a.Spec.MatchingPrecedence, b.Spec.MatchingPrecedence), cmp.Compare(a.Name, b.Name))
}

func schemaBehaviour() registry.Behaviour[*flowSchema] {
	return registry.Behaviour[*flowSchema]{
		Default: func(obj *flowSchema) {
			if obj.Spec.MatchingPrecedence == 0 {
				obj.Spec.MatchingPrecedence = defaultPrecedence
			}
		},
		PrepareForCreate: func(_ context.Context, obj *flowSchema) { obj.Status = flowcontrolv1.FlowSchemaStatus{} },
		PrepareForUpdate: func(_ context.Context, obj, old *flowSchema) { obj.Status = old.Status },
		Validate:         func(_ context.Context, obj *flowSchema) field.ErrorList { return validateSchema(obj) },
		ValidateUpdate:   func(_ context.Context, obj, _ *flowSchema) field.ErrorList { return validateSchema(obj) },
		SpecOf:           func(obj *flowSchema) any { return &obj.Spec },
		ResetFields:      []string{"status"},
	}
}

func validateSchemaStatus(obj *flowSchema) field.ErrorList {
	return validateConditions(obj.Status.Conditions, func(c *flowcontrolv1.FlowSchemaCondition) string { return string(c.Type) })
}

func schemaRow(obj *flowSchema) []any {
	method := table.None
	if m := obj.Spec.DistinguisherMethod; m != nil {
		method = string(m.Type)
	}
	missing := "?"
	for _, c := range obj.Status.Conditions {
		if c.Type == flowcontrolv1.FlowSchemaConditionDangling {
			missing = string(c.Status)
			break
		}
	}
	return []any{
		obj.Name, obj.Spec.PriorityLevelConfiguration.Name, int64(obj.Spec.MatchingPrecedence), method, table.Since(obj.CreationTimestamp), missing,
	}
}
