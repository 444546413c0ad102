package bootstrap

import (
	"context"
	"fmt"
	"slices"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	flowcontrolbootstrap "k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

var (
	flowSchemas    = schema.GroupResource{Group: flowcontrolv1.GroupName, Resource: "flowschemas"}
	priorityLevels = schema.GroupResource{Group: flowcontrolv1.GroupName, Resource: "prioritylevelconfigurations"}
)

// autoUpdate is the annotation by which an administrator says whether an object
// follows the server's idea of it.
const autoUpdate = flowcontrolv1.AutoUpdateAnnotationKey

// flowControl are the objects of priority and fairness: the mandatory ones, which
// are always as they are here, and the suggested ones, which an administrator may
// take over.
func flowControl() []item {
	var items []item
	for _, want := range flowcontrolbootstrap.MandatoryPriorityLevelConfigurations {
		items = append(items, level(want, true))
	}
	for _, want := range flowcontrolbootstrap.SuggestedPriorityLevelConfigurations {
		items = append(items, level(want, false))
	}
	for _, want := range flowcontrolbootstrap.MandatoryFlowSchemas {
		items = append(items, flowSchema(want, true))
	}
	for _, want := range flowcontrolbootstrap.SuggestedFlowSchemas {
		items = append(items, flowSchema(want, false))
	}
	return items
}

func level(want *flowcontrolv1.PriorityLevelConfiguration, mandatory bool) item {
	return item{priorityLevels, want, func(obj runtime.Object) (bool, error) {
		have, ok := obj.(*flowcontrolv1.PriorityLevelConfiguration)
		if !ok {
			return false, fmt.Errorf("a priority level is a %T", obj)
		}
		spec := want.Spec.DeepCopy()
		if mandatory && have.Spec.Exempt != nil { // the shares of the exempt level are an administrator's to set
			spec.Exempt = have.Spec.Exempt
		}
		return follow(have, mandatory, func() bool {
			if equality.Semantic.DeepEqual(&have.Spec, spec) {
				return false
			}
			have.Spec = *spec
			return true
		}), nil
	}}
}

func flowSchema(want *flowcontrolv1.FlowSchema, mandatory bool) item {
	return item{flowSchemas, want, func(obj runtime.Object) (bool, error) {
		have, ok := obj.(*flowcontrolv1.FlowSchema)
		if !ok {
			return false, fmt.Errorf("a flow schema is a %T", obj)
		}
		return follow(have, mandatory, func() bool {
			if equality.Semantic.DeepEqual(have.Spec, want.Spec) {
				return false
			}
			have.Spec = *want.Spec.DeepCopy()
			return true
		}), nil
	}}
}

// follow sets the spec of an object that follows the server, and notes in its
// annotation that it does; one that nobody has changed since it was made does too.
func follow(obj metav1.Object, mandatory bool, setSpec func() bool) (changed bool) {
	value, told := obj.GetAnnotations()[autoUpdate]
	follows := mandatory || value == "true" || !told && obj.GetGeneration() == 1
	if note := fmt.Sprint(follows); value != note && (mandatory || !told || value != "false") {
		obj.SetAnnotations(withLabels(obj.GetAnnotations(), map[string]string{autoUpdate: note}))
		changed = true
	}
	if !follows {
		return changed
	}
	return setSpec() || changed
}

// removeObsolete deletes objects of priority and fairness that follow the server
// and that it no longer suggests.
func removeObsolete(ctx context.Context, state registry.State) error {
	wanted := flowControl()
	for _, resource := range []schema.GroupResource{flowSchemas, priorityLevels} {
		list, err := state.List(ctx, resource, "")
		if err != nil {
			return err
		}
		for _, one := range list {
			obj, ok := one.(registry.Object)
			known := slices.ContainsFunc(wanted, func(it item) bool { return it.resource == resource && ok && it.want.GetName() == obj.GetName() })
			if !ok || known || obj.GetAnnotations()[autoUpdate] != "true" {
				continue
			}
			uid, version := obj.GetUID(), obj.GetResourceVersion()
			options := &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: (*types.UID)(&uid), ResourceVersion: &version}}
			err := state.Delete(ctx, resource, "", obj.GetName(), options, false)
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				return fmt.Errorf("removing obsolete %s %s: %w", resource, obj.GetName(), err)
			}
		}
	}
	return nil
}
