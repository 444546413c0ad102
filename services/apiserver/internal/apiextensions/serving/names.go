package serving

import (
	"fmt"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
)

// claim are the names that a definition has in its group. Definitions themselves
// are not kept: their schemas are large.
type claim struct {
	group string
	names apiextensionsv1.CustomResourceDefinitionNames
}

func claimOf(definition *apiextensionsv1.CustomResourceDefinition) claim {
	return claim{group: definition.Spec.Group, names: *definition.Status.AcceptedNames.DeepCopy()}
}

// taken are the names within a group that others have.
type taken struct {
	resources, kinds map[string]bool
}

// takenBy are the names in the definition's group that others have.
func (s *Server) takenBy(definition *apiextensionsv1.CustomResourceDefinition) taken {
	t := taken{resources: map[string]bool{}, kinds: map[string]bool{}}
	for name, other := range s.claims {
		if name != definition.Name && other.group == definition.Spec.Group {
			t.add(other.names)
		}
	}
	for _, r := range s.config.BuiltIn {
		if r.Group == definition.Spec.Group {
			t.add(apiextensionsv1.CustomResourceDefinitionNames{
				Plural: r.GroupVersionResource.Resource, Singular: r.Singular, ShortNames: r.ShortNames, Kind: r.Kind, ListKind: r.ListKindName(),
			})
		}
	}
	return t
}

func (t taken) add(names apiextensionsv1.CustomResourceDefinitionNames) {
	for _, name := range append([]string{names.Plural, names.Singular}, names.ShortNames...) {
		if name != "" {
			t.resources[name] = true
		}
	}
	for _, name := range []string{names.Kind, names.ListKind} {
		if name != "" {
			t.kinds[name] = true
		}
	}
}

// accept takes the names that the definition asks for and nobody else has. What
// it had before it keeps where it cannot have the new. The condition says what
// was in the way.
func (t taken) accept(asked, had apiextensionsv1.CustomResourceDefinitionNames) (apiextensionsv1.CustomResourceDefinitionNames, apiextensionsv1.CustomResourceDefinitionCondition) {
	names := had
	condition := apiextensionsv1.CustomResourceDefinitionCondition{
		Type: apiextensionsv1.NamesAccepted, Status: apiextensionsv1.ConditionTrue, Reason: "NoConflicts", Message: "no conflicts found",
	}
	refuse := func(reason string, err error) {
		condition.Status, condition.Reason, condition.Message = apiextensionsv1.ConditionFalse, reason, err.Error()
	}
	take := func(reason, asked, had string, to *string, taken map[string]bool) {
		if err := free(asked, had, taken); err != nil {
			refuse(reason, err)
			return
		}
		*to = asked
	}
	// In upstream's order, for the last conflict is the one that is told.
	take("PluralConflict", asked.Plural, had.Plural, &names.Plural, t.resources)
	take("SingularConflict", asked.Singular, had.Singular, &names.Singular, t.resources)
	if err := freeShortNames(asked.ShortNames, had.ShortNames, t.resources); err != nil {
		refuse("ShortNamesConflict", err)
	} else {
		names.ShortNames = asked.ShortNames
	}
	take("KindConflict", asked.Kind, had.Kind, &names.Kind, t.kinds)
	take("ListKindConflict", asked.ListKind, had.ListKind, &names.ListKind, t.kinds)
	names.Categories = asked.Categories
	return names, condition
}

func free(asked, had string, taken map[string]bool) error {
	if asked != had && taken[asked] {
		return fmt.Errorf("%q is already in use", asked)
	}
	return nil
}

func freeShortNames(asked, had []string, taken map[string]bool) error {
	var errs []error
	for _, short := range asked {
		if !slices.Contains(had, short) {
			errs = append(errs, free(short, "", taken))
		}
	}
	return utilerrors.NewAggregate(errs)
}
