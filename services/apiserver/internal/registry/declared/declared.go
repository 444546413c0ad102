// Package declared checks objects by the rules that the API's types declare in
// their comments (KEP-5073). The packages below are generated; what is written by
// hand of a kind's validation is beside its strategy.
package declared

import (
	"context"

	"k8s.io/apimachinery/pkg/api/validate"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry/declared/admissionregistrationv1"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/declared/appsv1"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/declared/authorizationv1"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/declared/autoscalingv1"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/declared/autoscalingv2"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/declared/batchv1"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/declared/certificatesv1"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/declared/coordinationv1"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/declared/corev1"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/declared/discoveryv1"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/declared/eventsv1"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/declared/flowcontrolv1"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/declared/networkingv1"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/declared/nodev1"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/declared/policyv1"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/declared/rbacv1"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/declared/resourcev1"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/declared/schedulingv1"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/declared/storagemigrationv1"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/declared/storagev1"
)

// Rules are the declared rules of all kinds.
type Rules struct{ functions *runtime.Scheme }

// New has the rules of every kind of k8s.io/api that is served.
func New() *Rules {
	s := runtime.NewScheme() // which only keeps functions by type here
	for _, register := range []func(*runtime.Scheme) error{
		admissionregistrationv1.RegisterValidations, appsv1.RegisterValidations, authorizationv1.RegisterValidations,
		autoscalingv1.RegisterValidations, autoscalingv2.RegisterValidations, batchv1.RegisterValidations, certificatesv1.RegisterValidations,
		coordinationv1.RegisterValidations, corev1.RegisterValidations, discoveryv1.RegisterValidations, eventsv1.RegisterValidations,
		flowcontrolv1.RegisterValidations, networkingv1.RegisterValidations, nodev1.RegisterValidations, policyv1.RegisterValidations,
		rbacv1.RegisterValidations, resourcev1.RegisterValidations, schedulingv1.RegisterValidations, storagemigrationv1.RegisterValidations,
		storagev1.RegisterValidations,
	} {
		utilruntime.Must(register(s))
	}
	return &Rules{functions: s}
}

// options are what rules depend on: features that are alpha, and off.
func options() map[string]bool {
	return map[string]bool{
		"DRAPartitionableDevicesType": false, "HPAScaleToZero": false,
		"InPlacePodVerticalScalingSchedulerPreemption": false, "WorkloadWithJob": false,
	}
}

// Validate adds to errs, what was found by hand, what an object breaks of its
// type's rules. A declared rule's error takes the place of one found by hand for
// the same field. Old is nil on create; values that an update does not change are
// not checked again.
func (r *Rules) Validate(ctx context.Context, obj, old runtime.Object, subresource string, errs field.ErrorList) field.ErrorList {
	var path []string
	if subresource != "" {
		path = []string{subresource}
	}
	var found field.ErrorList
	if old == nil {
		found = r.functions.Validate(ctx, options(), obj, path...)
	} else {
		found = r.functions.ValidateUpdate(ctx, options(), obj, old, path...)
	}
	if len(found) == 0 || unknownPath(found, subresource) {
		return errs
	}
	found = validate.FilterEnforcedDeclarativeErrors(ctx, found, true)
	var kept field.ErrorList
	for _, err := range errs {
		if !superseded(err, found) {
			kept = append(kept, err)
		}
	}
	return append(kept, found...)
}

// unknownPath says that a type declares nothing for a subresource.
func unknownPath(errs field.ErrorList, subresource string) bool {
	return subresource != "" && len(errs) == 1 && errs[0].Type == field.ErrorTypeInternal && errs[0].Field == "<nil>"
}

// superseded says that a declared rule tells the same of a field as err, in
// its own words.
func superseded(err *field.Error, declared field.ErrorList) bool {
	for _, d := range declared {
		if d.Field == err.Field && (d.Type == err.Type || d.Type == field.ErrorTypeRequired) {
			return true
		}
	}
	return false
}
