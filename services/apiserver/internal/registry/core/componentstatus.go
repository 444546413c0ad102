package core

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// Component is a part of the control plane whose health is shown.
type Component struct {
	Name string // "scheduler"
	// Check returns what the component says of itself, or why it cannot.
	Check func(ctx context.Context) (message string, err error)
}

// ComponentStatuses shows the health of components, asked anew at each read.
func ComponentStatuses(components []Component) *registry.Resource {
	doc := corev1.ComponentCondition{}.SwaggerDoc()
	return &registry.Resource{
		GroupVersionResource: v1.WithResource("componentstatuses"), Kind: "ComponentStatus", Singular: "componentstatus",
		ShortNames: []string{"cs"}, Verbs: []string{"get", "list"},
		Warnings: []string{"v1 ComponentStatus is deprecated in v1.19+"},
		New:      func() runtime.Object { return &corev1.ComponentStatus{} },
		NewList:  func() runtime.Object { return &corev1.ComponentStatusList{} },
		Virtual:  componentReader(components),
		Table: &registry.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name(),
				table.String("Status", "Status of the component conditions"),
				table.String("Message", doc["message"]),
				table.String("Error", doc["error"]),
			},
			Row: componentRow,
		},
	}
}

func componentRow(obj runtime.Object) []any {
	cs := obj.(*corev1.ComponentStatus)
	status, message, failure := "Unknown", "", ""
	for _, c := range cs.Conditions {
		if c.Type != corev1.ComponentHealthy {
			continue
		}
		status = "Unhealthy"
		if c.Status == corev1.ConditionTrue {
			status = "Healthy"
		}
		message, failure = c.Message, c.Error
	}
	return []any{cs.Name, status, message, failure}
}

type componentReader []Component

func (r componentReader) Get(ctx context.Context, _, name string) (runtime.Object, error) {
	for _, c := range r {
		if c.Name == name {
			return c.status(ctx), nil
		}
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "componentstatuses"}, name)
}

func (r componentReader) List(ctx context.Context, _ string) (runtime.Object, error) {
	list := &corev1.ComponentStatusList{}
	for _, c := range r {
		list.Items = append(list.Items, *c.status(ctx))
	}
	return list, nil
}

func (c Component) status(ctx context.Context) *corev1.ComponentStatus {
	message, err := c.Check(ctx)
	condition := corev1.ComponentCondition{Type: corev1.ComponentHealthy, Status: corev1.ConditionTrue, Message: message}
	if err != nil {
		condition.Status, condition.Error = corev1.ConditionFalse, err.Error()
	}
	return &corev1.ComponentStatus{
		ObjectMeta: metav1.ObjectMeta{Name: c.Name},
		Conditions: []corev1.ComponentCondition{condition},
	}
}
