// Package admissionregistration has the kinds of admissionregistration.k8s.io/v1:
// configurations of webhooks, and admission policies with their bindings.
package admissionregistration

import (
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission/expression"
	"github.com/sampan-io/sampan/services/apiserver/internal/authz"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

var v1 = admissionregistrationv1.SchemeGroupVersion

// Deps is what the kinds need of the rest of the server.
type Deps struct {
	// Environments compile expressions, for their validation.
	Environments *expression.Environments
	// Authorizer is asked whether the author of a policy or binding may read its
	// parameters; nil allows it.
	Authorizer authz.Authorizer
	// State reads the policies that bindings refer to.
	State registry.Reader
	// ResourceOf finds the resource of a kind; ok is false when it is not served.
	ResourceOf func(kind schema.GroupVersionKind) (resource schema.GroupVersionResource, ok bool)
}

// Resources are the kinds, one a line.
func Resources(deps Deps) []*registry.Resource {
	v := validator{deps.Environments}
	reads := paramRights{deps}
	return []*registry.Resource{
		mutatingAdmissionPolicies(v, reads),
		mutatingAdmissionPolicyBindings(reads),
		mutatingWebhookConfigurations(v),
		validatingAdmissionPolicies(v, reads),
		validatingAdmissionPolicyBindings(reads),
		validatingWebhookConfigurations(v),
	}
}

func categories() []string { return []string{"api-extensions"} }

// unset is what a cell without a value shows.
const unset = "<unset>"

func policyColumns(count metav1.TableColumnDefinition) []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		table.Name(), count,
		table.String("ParamKind", "ParamKind specifies the kind of resources used to parameterize this policy"),
		table.Age(),
	}
}

func bindingColumns() []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		table.Name(),
		table.String("PolicyName", "PolicyName indicates the policy definition which the policy binding binded to"),
		table.String("ParamRef", "ParamRef indicates the param resource which sets the configuration param"),
		table.Age(),
	}
}

func webhookColumns() []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		table.Name(),
		table.Integer("Webhooks", "Webhooks indicates the number of webhooks registered in this configuration"),
		table.Age(),
	}
}

func paramKindCell(kind *admissionregistrationv1.ParamKind) string {
	if kind == nil {
		return unset
	}
	return kind.APIVersion + "/" + kind.Kind
}

func paramRefCell(ref *admissionregistrationv1.ParamRef) string {
	switch {
	case ref == nil:
		return unset
	case ref.Name != "" && ref.Namespace != "":
		return ref.Namespace + "/" + ref.Name
	case ref.Name != "":
		return "*/" + ref.Name // whether the parameter is in a namespace is not known here
	case ref.Selector != nil:
		return ref.Selector.String()
	}
	return unset
}
