package events

import (
	eventsv1 "k8s.io/api/events/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The most bytes of each text.
const (
	maxInstance = 128
	maxAction   = 128
	maxReason   = 128
	maxNote     = 1024
)

// validate is stricter than core's validation: the new form has what the old
// one left out, and none of the deprecated fields.
func validate(e *eventsv1.Event) field.ErrorList {
	var errs field.ErrorList
	about := e.Regarding.Namespace
	if about == "" {
		if e.Namespace != metav1.NamespaceNone && e.Namespace != metav1.NamespaceDefault && e.Namespace != metav1.NamespaceSystem {
			errs = append(errs, field.Invalid(field.NewPath("regarding", "namespace"), about, "does not match event.namespace"))
		}
	} else if e.Namespace != about {
		errs = append(errs, field.Invalid(field.NewPath("regarding", "namespace"), about, "does not match event.namespace"))
	}
	if e.EventTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("eventTime"), ""))
	}
	errs = append(errs, validateSeries(e)...)
	if e.ReportingController == "" {
		errs = append(errs, field.Required(field.NewPath("reportingController"), ""))
	}
	for _, msg := range utilvalidation.IsQualifiedName(e.ReportingController) {
		errs = append(errs, field.Invalid(field.NewPath("reportingController"), e.ReportingController, msg))
	}
	errs = append(errs, text(e.ReportingInstance, maxInstance, "reportingInstance")...)
	errs = append(errs, text(e.Action, maxAction, "action")...)
	errs = append(errs, text(e.Reason, maxReason, "reason")...)
	if len(e.Note) > maxNote {
		errs = append(errs, field.Invalid(field.NewPath("message"), "", "can have at most 1024 characters"))
	}
	if e.Type != "Normal" && e.Type != "Warning" {
		errs = append(errs, field.Invalid(field.NewPath("type"), "", "has invalid value: "+e.Type))
	}
	return append(errs, validateDeprecated(e)...)
}

func text(value string, most int, name string) field.ErrorList {
	path := field.NewPath(name)
	switch {
	case value == "":
		return field.ErrorList{field.Required(path, "")}
	case len(value) > most:
		return field.ErrorList{field.Invalid(path, "", "can have at most 128 characters")}
	}
	return nil
}

func validateSeries(e *eventsv1.Event) field.ErrorList {
	if e.Series == nil {
		return nil
	}
	var errs field.ErrorList
	if e.Series.Count < 2 {
		errs = append(errs, field.Invalid(field.NewPath("series.count"), "", "should be at least 2"))
	}
	if e.Series.LastObservedTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("series.lastObservedTime"), ""))
	}
	return errs
}

func validateDeprecated(e *eventsv1.Event) field.ErrorList {
	var errs field.ErrorList
	needs := func(name string, isZero bool) {
		if !isZero {
			errs = append(errs, field.Invalid(field.NewPath(name), "", "needs to be unset"))
		}
	}
	needs("firstTimestamp", e.DeprecatedFirstTimestamp.IsZero())
	needs("lastTimestamp", e.DeprecatedLastTimestamp.IsZero())
	needs("count", e.DeprecatedCount == 0)
	needs("source", e.DeprecatedSource.Component == "" && e.DeprecatedSource.Host == "")
	return errs
}

// validateUpdate lets the series go on and nothing else change. Events that
// core's recorder wrote stay as lax as they were.
func validateUpdate(e, old *eventsv1.Event) field.ErrorList {
	var errs field.ErrorList
	if !old.EventTime.IsZero() {
		errs = validate(e)
	}
	fixed := func(name string, same bool, value any) {
		if !same {
			errs = append(errs, field.Invalid(field.NewPath(name), value, "field is immutable"))
		}
	}
	fixed("regarding", apiequality.Semantic.DeepEqual(e.Regarding, old.Regarding), e.Regarding)
	fixed("reason", e.Reason == old.Reason, e.Reason)
	fixed("message", e.Note == old.Note, e.Note)
	fixed("source", e.DeprecatedSource == old.DeprecatedSource, e.DeprecatedSource)
	fixed("type", e.Type == old.Type, e.Type)
	fixed("eventTime", e.EventTime.Equal(&old.EventTime), e.EventTime)
	fixed("action", e.Action == old.Action, e.Action)
	fixed("related", apiequality.Semantic.DeepEqual(e.Related, old.Related), e.Related)
	fixed("reportingController", e.ReportingController == old.ReportingController, e.ReportingController)
	fixed("reportingInstance", e.ReportingInstance == old.ReportingInstance, e.ReportingInstance)
	return errs
}
