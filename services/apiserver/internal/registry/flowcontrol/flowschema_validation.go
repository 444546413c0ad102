package flowcontrol

import (
	"fmt"
	"slices"
	"strings"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
)

const wildcard = "*"

func validateSchema(obj *flowSchema) field.ErrorList {
	path := field.NewPath("spec")
	errs := validateSchemaSpec(obj.Name, &obj.Spec, path)
	for _, fixed := range bootstrap.MandatoryFlowSchemas {
		if fixed.Name == obj.Name && !apiequality.Semantic.DeepEqual(obj.Spec, fixed.Spec) {
			errs = append(errs, field.Invalid(path, obj.Spec, fmt.Sprintf("spec of '%s' must equal the fixed value", obj.Name)))
		}
	}
	return append(errs, validateSchemaStatus(obj)...)
}

func validateSchemaSpec(name string, spec *flowcontrolv1.FlowSchemaSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	precedence, at := spec.MatchingPrecedence, path.Child("matchingPrecedence")
	if precedence <= 0 {
		errs = append(errs, field.Invalid(at, precedence, "must be a positive value"))
	}
	if precedence > flowcontrolv1.FlowSchemaMaxMatchingPrecedence {
		errs = append(errs, field.Invalid(at, precedence, fmt.Sprintf("must not be greater than %v", flowcontrolv1.FlowSchemaMaxMatchingPrecedence)))
	}
	if precedence == 1 && name != flowcontrolv1.FlowSchemaNameExempt {
		errs = append(errs, field.Invalid(at, precedence, "only the schema named 'exempt' may have matchingPrecedence 1"))
	}
	if m := spec.DistinguisherMethod; m != nil {
		known := []flowcontrolv1.FlowDistinguisherMethodType{flowcontrolv1.FlowDistinguisherMethodByNamespaceType, flowcontrolv1.FlowDistinguisherMethodByUserType}
		if !slices.Contains(known, m.Type) {
			errs = append(errs, field.NotSupported(path.Child("distinguisherMethod", "type"), m, known))
		}
	}
	at = path.Child("priorityLevelConfiguration", "name")
	if level := spec.PriorityLevelConfiguration.Name; level == "" {
		errs = append(errs, field.Required(at, "must reference a priority level"))
	} else {
		errs = append(errs, invalid(at, level, apivalidation.NameIsDNSSubdomain(level, false))...)
	}
	for i := range spec.Rules {
		errs = append(errs, validateRules(&spec.Rules[i], path.Child("rules").Index(i))...)
	}
	return errs
}

func invalid(path *field.Path, value any, msgs []string) field.ErrorList {
	var errs field.ErrorList
	for _, msg := range msgs {
		errs = append(errs, field.Invalid(path, value, msg))
	}
	return errs
}

func validateRules(rule *flowcontrolv1.PolicyRulesWithSubjects, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(rule.Subjects) == 0 {
		errs = append(errs, field.Required(path.Child("subjects"), "subjects must contain at least one value"))
	}
	for i := range rule.Subjects {
		errs = append(errs, validateSubject(&rule.Subjects[i], path.Child("subjects").Index(i))...)
	}
	if len(rule.ResourceRules) == 0 && len(rule.NonResourceRules) == 0 {
		errs = append(errs, field.Required(path, "at least one of resourceRules and nonResourceRules has to be non-empty"))
	}
	for i := range rule.ResourceRules {
		errs = append(errs, validateResourceRule(&rule.ResourceRules[i], path.Child("resourceRules").Index(i))...)
	}
	for i := range rule.NonResourceRules {
		errs = append(errs, validateNonResourceRule(&rule.NonResourceRules[i], path.Child("nonResourceRules").Index(i))...)
	}
	return errs
}

func validateSubject(s *flowcontrolv1.Subject, path *field.Path) field.ErrorList {
	known := []flowcontrolv1.SubjectKind{flowcontrolv1.SubjectKindGroup, flowcontrolv1.SubjectKindServiceAccount, flowcontrolv1.SubjectKindUser}
	if !slices.Contains(known, s.Kind) {
		return field.ErrorList{field.NotSupported(path.Child("kind"), s.Kind, known)}
	}
	members := []struct {
		kind  flowcontrolv1.SubjectKind
		name  string
		given bool
		check func(*field.Path) field.ErrorList
	}{
		{flowcontrolv1.SubjectKindServiceAccount, "serviceAccount", s.ServiceAccount != nil, func(p *field.Path) field.ErrorList { return validateAccount(s.ServiceAccount, p) }},
		{flowcontrolv1.SubjectKindUser, "user", s.User != nil, func(p *field.Path) field.ErrorList { return requireName(s.User.Name, p) }},
		{flowcontrolv1.SubjectKindGroup, "group", s.Group != nil, func(p *field.Path) field.ErrorList { return requireName(s.Group.Name, p) }},
	}
	var errs field.ErrorList
	for _, m := range members {
		at := path.Child(m.name)
		switch {
		case m.kind != s.Kind && m.given:
			errs = append(errs, field.Forbidden(at, fmt.Sprintf("%s is forbidden when subject kind is not '%s'", m.name, m.kind)))
		case m.kind == s.Kind && !m.given:
			errs = append(errs, field.Required(at, fmt.Sprintf("%s is required when subject kind is '%s'", m.name, m.kind)))
		case m.kind == s.Kind:
			errs = append(errs, m.check(at)...)
		}
	}
	return errs
}

func requireName(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path.Child("name"), "")}
	}
	return nil
}

func validateAccount(s *flowcontrolv1.ServiceAccountSubject, path *field.Path) field.ErrorList {
	errs := requireName(s.Name, path)
	if s.Name != "" && s.Name != flowcontrolv1.NameAll {
		errs = append(errs, invalid(path.Child("name"), s.Name, apivalidation.ValidateServiceAccountName(s.Name, false))...)
	}
	if s.Namespace == "" {
		return append(errs, field.Required(path.Child("namespace"), "must specify namespace for service account"))
	}
	return append(errs, invalid(path.Child("namespace"), s.Namespace, apivalidation.ValidateNamespaceName(s.Namespace, false))...)
}

func verbs() []string {
	return []string{"create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"}
}

func validateVerbs(list []string, path *field.Path) field.ErrorList {
	switch {
	case len(list) == 0:
		return field.ErrorList{field.Required(path, "verbs must contain at least one value")}
	case slices.Contains(list, wildcard):
		return alone(list, path, "verbs")
	}
	for _, verb := range list {
		if !slices.Contains(verbs(), verb) {
			return field.ErrorList{field.NotSupported(path, list, verbs())}
		}
	}
	return nil
}

// alone refuses a wildcard with others beside it.
func alone(list []string, path *field.Path, what string) field.ErrorList {
	if len(list) > 1 && slices.Contains(list, wildcard) {
		return field.ErrorList{field.Invalid(path, list, "if '*' is present, must not specify other "+what)}
	}
	return nil
}

func validateResourceRule(rule *flowcontrolv1.ResourcePolicyRule, path *field.Path) field.ErrorList {
	errs := validateVerbs(rule.Verbs, path.Child("verbs"))
	if len(rule.APIGroups) == 0 {
		errs = append(errs, field.Required(path.Child("apiGroups"), "resource rules must supply at least one api group"))
	}
	errs = append(errs, alone(rule.APIGroups, path.Child("apiGroups"), "api groups")...)
	if len(rule.Resources) == 0 {
		errs = append(errs, field.Required(path.Child("resources"), "resource rules must supply at least one resource"))
	}
	errs = append(errs, alone(rule.Resources, path.Child("resources"), "resources")...)
	at := path.Child("namespaces")
	switch {
	case len(rule.Namespaces) == 0 && !rule.ClusterScope:
		errs = append(errs, field.Required(at, "resource rules that are not cluster scoped must supply at least one namespace"))
	case slices.Contains(rule.Namespaces, wildcard):
		errs = append(errs, alone(rule.Namespaces, at, "namespaces")...)
	default:
		for i, namespace := range rule.Namespaces {
			for _, msg := range apivalidation.ValidateNamespaceName(namespace, false) {
				errs = append(errs, field.Invalid(at.Index(i), namespace, "each member of this list must be '*' or a DNS-1123 label; "+msg))
			}
		}
	}
	return errs
}

func validateNonResourceRule(rule *flowcontrolv1.NonResourcePolicyRule, path *field.Path) field.ErrorList {
	errs := validateVerbs(rule.Verbs, path.Child("verbs"))
	at := path.Child("nonResourceURLs")
	switch {
	case len(rule.NonResourceURLs) == 0:
		errs = append(errs, field.Required(at, "nonResourceURLs must contain at least one value"))
	case slices.Contains(rule.NonResourceURLs, wildcard):
		errs = append(errs, alone(rule.NonResourceURLs, at, "non-resource URLs")...)
	default:
		for i, url := range rule.NonResourceURLs {
			if problem := badURL(url); problem != "" {
				errs = append(errs, field.Invalid(at.Index(i), url, problem))
			}
		}
	}
	return errs
}

// badURL says what is wrong with a path, "" for nothing. A wildcard may only
// stand for all that follows a slash.
func badURL(path string) string {
	stars := strings.Count(path, wildcard)
	switch {
	case path == "":
		return "must not be empty"
	case path == "/":
	case !strings.HasPrefix(path, "/"):
		return "must start with slash"
	case strings.Contains(path, " "):
		return "must not contain white-space"
	case strings.Contains(path, "//"):
		return "must not contain double slash"
	case stars > 1 || stars == 1 && !strings.HasSuffix(path, "/*"):
		return "wildcard can only do suffix matching"
	}
	return ""
}
