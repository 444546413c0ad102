package serving

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/apiextensions/crd"
	"github.com/sampan-io/sampan/services/apiserver/internal/apiextensions/structural"
)

type condition = apiextensionsv1.CustomResourceDefinitionCondition

// setStatus sets the accepted names and the conditions that follow from the
// definition.
func (s *Server) setStatus(definition *apiextensionsv1.CustomResourceDefinition) {
	names, accepted := s.takenBy(definition).accept(definition.Spec.Names, definition.Status.AcceptedNames)
	definition.Status.AcceptedNames = names
	set(definition, accepted)
	setStructural(definition)
	setApproval(definition)
	established := condition{
		Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionFalse, Reason: "NotAccepted", Message: "not all names are accepted",
	}
	if accepted.Status == apiextensionsv1.ConditionTrue {
		established = condition{
			Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue, Reason: "InitialNamesAccepted",
			Message: "the initial names have been accepted",
		}
	}
	// What was established once goes on with the names that it had.
	if !apihelpers.IsCRDConditionTrue(definition, apiextensionsv1.Established) {
		set(definition, established)
	}
}

func set(definition *apiextensionsv1.CustomResourceDefinition, c condition) {
	old := apihelpers.FindCRDCondition(definition, c.Type)
	if old != nil && old.Status == c.Status && old.Reason == c.Reason && old.Message == c.Message {
		return
	}
	c.LastTransitionTime = metav1.Now()
	apihelpers.SetCRDCondition(definition, c)
}

// setStructural tells of schemas that are not structural, which definitions from
// before v1 may have.
func setStructural(definition *apiextensionsv1.CustomResourceDefinition) {
	if !definition.Spec.PreserveUnknownFields { // then validation asks for structural schemas
		apihelpers.RemoveCRDCondition(definition, apiextensionsv1.NonStructuralSchema)
		return
	}
	var errs field.ErrorList
	for i, version := range definition.Spec.Versions {
		path := field.NewPath("spec", "versions").Index(i).Child("schema", "openAPIV3Schema")
		shape, err := structural.SchemaOf(definition, version.Name)
		switch {
		case err != nil:
			errs = append(errs, field.Invalid(path, "", err.Error()))
		case shape != nil:
			errs = append(errs, structuralschema.ValidateStructural(path, shape)...)
		}
	}
	errs = append(errs, field.Invalid(field.NewPath("spec", "preserveUnknownFields"), true, "must be false"))
	set(definition, condition{
		Type: apiextensionsv1.NonStructuralSchema, Status: apiextensionsv1.ConditionTrue, Reason: "Violations", Message: errs.ToAggregate().Error(),
	})
}

// setApproval says whether a definition in a group of the community follows its
// policy.
func setApproval(definition *apiextensionsv1.CustomResourceDefinition) {
	if !apihelpers.IsProtectedCommunityGroup(definition.Spec.Group) {
		apihelpers.RemoveCRDCondition(definition, apiextensionsv1.KubernetesAPIApprovalPolicyConformant)
		return
	}
	c := condition{Type: apiextensionsv1.KubernetesAPIApprovalPolicyConformant}
	state, reason := apihelpers.GetAPIApprovalState(definition.Annotations)
	c.Message = reason
	switch state {
	case apihelpers.APIApprovalInvalid:
		c.Status, c.Reason = apiextensionsv1.ConditionFalse, "InvalidAnnotation"
	case apihelpers.APIApprovalMissing:
		c.Status, c.Reason = apiextensionsv1.ConditionFalse, "MissingAnnotation"
	case apihelpers.APIApproved:
		c.Status, c.Reason = apiextensionsv1.ConditionTrue, "ApprovedAnnotation"
	case apihelpers.APIApprovalBypassed:
		c.Status, c.Reason = apiextensionsv1.ConditionFalse, "UnapprovedAnnotation"
	default:
		c.Status, c.Reason = apiextensionsv1.ConditionUnknown, "UnknownAnnotation"
	}
	set(definition, c)
}

// writeStatus stores the names and conditions of wanted, if they are not those
// of have.
func (s *Server) writeStatus(ctx context.Context, have, wanted *apiextensionsv1.CustomResourceDefinition) error {
	if equality.Semantic.DeepEqual(have.Status, wanted.Status) {
		return nil
	}
	_, err := s.config.State.Update(ctx, crd.Resource, "status", "", wanted.Name, false, func(obj runtime.Object) error {
		fresh, ok := obj.(*apiextensionsv1.CustomResourceDefinition)
		if !ok || fresh.UID != wanted.UID {
			return apierrors.NewNotFound(crd.Resource, wanted.Name)
		}
		fresh.Status.AcceptedNames = *wanted.Status.AcceptedNames.DeepCopy()
		fresh.Status.Conditions = mergeConditions(fresh.Status.Conditions, have.Status.Conditions, wanted.Status.Conditions)
		return nil
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("writing its status: %w", err)
	}
	return nil
}

// mergeConditions makes the changes from have to wanted to what others may have
// written meanwhile.
func mergeConditions(fresh, have, wanted []condition) []condition {
	out := slices.DeleteFunc(slices.Clone(fresh), func(c condition) bool {
		return find(have, c.Type) != nil && find(wanted, c.Type) == nil
	})
	for _, c := range wanted {
		if old := find(have, c.Type); old != nil && *old == c {
			continue
		}
		if at := find(out, c.Type); at != nil {
			*at = c
		} else {
			out = append(out, c)
		}
	}
	return out
}

func find(list []condition, kind apiextensionsv1.CustomResourceDefinitionConditionType) *condition {
	for i := range list {
		if list[i].Type == kind {
			return &list[i]
		}
	}
	return nil
}
