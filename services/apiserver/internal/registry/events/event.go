// Package events serves the events of core in the form of events.k8s.io.
package events

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/core"
)

// Events share key prefix, cache and stored form with core's events.
func Events(ttl time.Duration) *registry.Resource {
	r := registry.Define(registry.Definition[*eventsv1.Event]{
		GroupVersion: eventsv1.SchemeGroupVersion, Resource: "events", Kind: "Event", Singular: "event", ShortNames: []string{"ev"},
		Namespaced: true,
		New:        func() *eventsv1.Event { return &eventsv1.Event{} },
		NewList:    func() runtime.Object { return &eventsv1.EventList{} },
		KeyPrefix:  "/registry/events",
		TTL:        func(*eventsv1.Event) time.Duration { return ttl },
		Strategy: registry.Behaviour[*eventsv1.Event]{
			Validate:            func(_ context.Context, obj *eventsv1.Event) field.ErrorList { return validate(obj) },
			ValidateUpdate:      func(_ context.Context, obj, old *eventsv1.Event) field.ErrorList { return validateUpdate(obj, old) },
			ValidateName:        func(string, bool) []string { return nil },
			AllowCreateOnUpdate: true,
		},
		Columns: core.EventColumns(),
		Row:     func(obj *eventsv1.Event) []any { return core.EventRow(ToCore(obj)) },
	})
	r.StoredVersion = corev1.SchemeGroupVersion
	r.ToStored, r.FromStored = toStored, fromStored
	r.Fields = eventFields
	return r
}

func toStored(_ context.Context, obj runtime.Object) (runtime.Object, error) {
	event, ok := obj.(*eventsv1.Event)
	if !ok {
		return nil, fmt.Errorf("converting an event: %T is not of events.k8s.io/v1", obj)
	}
	return ToCore(event), nil
}

func fromStored(_ context.Context, obj runtime.Object) (runtime.Object, error) {
	event, ok := obj.(*corev1.Event)
	if !ok {
		return nil, fmt.Errorf("converting an event: %T is not of v1", obj)
	}
	return FromCore(event), nil
}

// eventFields takes an event of either group, since both share a cache, and
// names the fields as events.k8s.io does.
func eventFields(obj runtime.Object) fields.Set {
	event, ok := obj.(*corev1.Event)
	if !ok {
		event = ToCore(obj.(*eventsv1.Event))
	}
	set := core.EventFields(event)
	return fields.Set{
		"regarding.kind":            set["involvedObject.kind"],
		"regarding.namespace":       set["involvedObject.namespace"],
		"regarding.name":            set["involvedObject.name"],
		"regarding.uid":             set["involvedObject.uid"],
		"regarding.apiVersion":      set["involvedObject.apiVersion"],
		"regarding.resourceVersion": set["involvedObject.resourceVersion"],
		"regarding.fieldPath":       set["involvedObject.fieldPath"],
		"reason":                    set["reason"],
		"reportingController":       set["reportingComponent"],
		"type":                      set["type"],
	}
}

// ToCore is an event in core's form. It shares what it points to.
func ToCore(e *eventsv1.Event) *corev1.Event {
	out := &corev1.Event{
		ObjectMeta:     e.ObjectMeta,
		InvolvedObject: e.Regarding, Reason: e.Reason, Message: e.Note,
		Source:         e.DeprecatedSource,
		FirstTimestamp: e.DeprecatedFirstTimestamp, LastTimestamp: e.DeprecatedLastTimestamp, Count: e.DeprecatedCount,
		Type: e.Type, EventTime: e.EventTime, Action: e.Action, Related: e.Related,
		ReportingController: e.ReportingController, ReportingInstance: e.ReportingInstance,
	}
	if e.Kind != "" {
		out.TypeMeta.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Event"))
	}
	if e.Series != nil {
		out.Series = &corev1.EventSeries{Count: e.Series.Count, LastObservedTime: e.Series.LastObservedTime}
	}
	return out
}

// FromCore is a core event in the form of events.k8s.io. It shares what it
// points to.
func FromCore(e *corev1.Event) *eventsv1.Event {
	out := &eventsv1.Event{
		ObjectMeta: e.ObjectMeta,
		Regarding:  e.InvolvedObject, Reason: e.Reason, Note: e.Message,
		DeprecatedSource:         e.Source,
		DeprecatedFirstTimestamp: e.FirstTimestamp, DeprecatedLastTimestamp: e.LastTimestamp, DeprecatedCount: e.Count,
		Type: e.Type, EventTime: e.EventTime, Action: e.Action, Related: e.Related,
		ReportingController: e.ReportingController, ReportingInstance: e.ReportingInstance,
	}
	if e.Kind != "" {
		out.TypeMeta.SetGroupVersionKind(eventsv1.SchemeGroupVersion.WithKind("Event"))
	}
	if e.Series != nil {
		out.Series = &eventsv1.EventSeries{Count: e.Series.Count, LastObservedTime: e.Series.LastObservedTime}
	}
	return out
}
