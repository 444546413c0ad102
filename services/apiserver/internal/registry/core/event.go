package core

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// Events are kept for ttl. The same store serves events.k8s.io.
func Events(ttl time.Duration) *registry.Resource {
	return registry.Define(registry.Definition[*corev1.Event]{
		GroupVersion: v1, Resource: "events", Kind: "Event", Singular: "event", ShortNames: []string{"ev"},
		Namespaced: true,
		New:        func() *corev1.Event { return &corev1.Event{} },
		NewList:    func() runtime.Object { return &corev1.EventList{} },
		KeyPrefix:  "/registry/events",
		Fields:     EventFields,
		TTL:        func(*corev1.Event) time.Duration { return ttl },
		Strategy: registry.Behaviour[*corev1.Event]{
			Validate:            func(_ context.Context, obj *corev1.Event) field.ErrorList { return validateEvent(obj) },
			ValidateUpdate:      func(_ context.Context, obj, _ *corev1.Event) field.ErrorList { return validateEvent(obj) },
			ValidateName:        func(string, bool) []string { return nil }, // as upstream: any name that a path can hold
			AllowCreateOnUpdate: true,
		},
		Columns: EventColumns(),
		Row:     EventRow,
	})
}

// EventFields are the selectable fields of an event in core's spelling.
func EventFields(obj *corev1.Event) fields.Set {
	source := obj.Source.Component
	if source == "" {
		source = obj.ReportingController
	}
	return fields.Set{
		"involvedObject.kind":            obj.InvolvedObject.Kind,
		"involvedObject.namespace":       obj.InvolvedObject.Namespace,
		"involvedObject.name":            obj.InvolvedObject.Name,
		"involvedObject.uid":             string(obj.InvolvedObject.UID),
		"involvedObject.apiVersion":      obj.InvolvedObject.APIVersion,
		"involvedObject.resourceVersion": obj.InvolvedObject.ResourceVersion,
		"involvedObject.fieldPath":       obj.InvolvedObject.FieldPath,
		"reason":                         obj.Reason,
		"reportingComponent":             obj.ReportingController,
		"source":                         source,
		"type":                           obj.Type,
	}
}

// EventColumns are how events of both groups are printed.
func EventColumns() []metav1.TableColumnDefinition {
	doc, object := corev1.Event{}.SwaggerDoc(), corev1.ObjectReference{}.SwaggerDoc()
	return []metav1.TableColumnDefinition{
		table.String("Last Seen", doc["lastTimestamp"]),
		table.String("Type", doc["type"]),
		table.String("Reason", doc["reason"]),
		table.String("Object", doc["involvedObject"]),
		table.Wide(table.String("Subobject", object["fieldPath"])),
		table.Wide(table.String("Source", doc["source"])),
		table.String("Message", doc["message"]),
		table.Wide(table.String("First Seen", doc["firstTimestamp"])),
		table.Wide(table.String("Count", doc["count"])),
		table.Wide(table.Name()),
	}
}

// EventRow are the cells of EventColumns.
func EventRow(obj *corev1.Event) []any {
	first := table.Since(obj.FirstTimestamp)
	if obj.FirstTimestamp.IsZero() {
		first = table.SinceMicro(obj.EventTime)
	}
	last := table.Since(obj.LastTimestamp)
	if obj.LastTimestamp.IsZero() {
		last = first
	}
	count := obj.Count
	if obj.Series != nil {
		last, count = table.SinceMicro(obj.Series.LastObservedTime), obj.Series.Count
	} else if count == 0 {
		count = 1
	}
	target := strings.ToLower(obj.InvolvedObject.Kind)
	if obj.InvolvedObject.Name != "" {
		target = fmt.Sprintf("%s/%s", target, obj.InvolvedObject.Name)
	}
	return []any{
		last, obj.Type, obj.Reason, target, obj.InvolvedObject.FieldPath, eventSource(obj),
		strings.TrimSpace(obj.Message), first, int64(count), obj.Name,
	}
}

func eventSource(obj *corev1.Event) string {
	component, instance := obj.Source.Component, obj.Source.Host
	if component == "" {
		component = obj.ReportingController
	}
	if instance == "" {
		instance = obj.ReportingInstance
	}
	if instance == "" {
		return component
	}
	return component + ", " + instance
}
