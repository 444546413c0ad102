package core

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// eventNamespaceAllowed says whether events of cluster-scoped objects may live
// in a namespace.
func eventNamespaceAllowed(namespace string) bool {
	return namespace == metav1.NamespaceNone || namespace == metav1.NamespaceDefault || namespace == metav1.NamespaceSystem
}

// validateEvent is what core/v1 asks of an event: that it lies in the namespace
// of the object it is about.
func validateEvent(obj *corev1.Event) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("involvedObject", "namespace")
	about := obj.InvolvedObject.Namespace
	if about == "" {
		if !eventNamespaceAllowed(obj.Namespace) {
			errs = append(errs, field.Invalid(path, about, "does not match event.namespace"))
		}
	} else if obj.Namespace != about {
		errs = append(errs, field.Invalid(path, about, "does not match event.namespace"))
	}
	return append(errs, validateEventTimes(obj)...)
}

func validateEventTimes(obj *corev1.Event) field.ErrorList {
	if obj.EventTime == (metav1.MicroTime{Time: time.Time{}}) {
		return nil
	}
	var errs field.ErrorList
	if obj.ReportingController == "" {
		errs = append(errs, field.Required(field.NewPath("reportingController"), ""))
	}
	if obj.ReportingInstance == "" {
		errs = append(errs, field.Required(field.NewPath("reportingInstance"), ""))
	}
	return errs
}
