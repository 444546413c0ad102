// Package apiregistration has the kinds of apiregistration.k8s.io.
package apiregistration

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/client/applyconfiguration"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
	"github.com/sampan-io/sampan/services/apiserver/internal/scheme"
)

// Resource is the name of the resource.
var Resource = apiregistrationv1.Resource("apiservices")

// APIServices say who serves the versions of API groups: this server, or one that
// it passes requests on to.
func APIServices() *registry.Resource {
	r := registry.Define(registry.Definition[*apiregistrationv1.APIService]{
		GroupVersion: apiregistrationv1.SchemeGroupVersion, Resource: Resource.Resource, Kind: "APIService", Singular: "apiservice",
		Categories: []string{"api-extensions"},
		New:        func() *apiregistrationv1.APIService { return &apiregistrationv1.APIService{} },
		NewList:    func() runtime.Object { return &apiregistrationv1.APIServiceList{} },
		KeyPrefix:  "/registry/apiregistration.k8s.io/apiservices",
		Strategy: registry.Behaviour[*apiregistrationv1.APIService]{
			Default: setDefaults,
			PrepareForCreate: func(_ context.Context, obj *apiregistrationv1.APIService) {
				obj.Status = apiregistrationv1.APIServiceStatus{}
			},
			PrepareForUpdate: func(_ context.Context, obj, old *apiregistrationv1.APIService) { obj.Status = old.Status },
			Validate:         func(_ context.Context, obj *apiregistrationv1.APIService) field.ErrorList { return validate(obj) },
			ValidateUpdate:   func(_ context.Context, obj, _ *apiregistrationv1.APIService) field.ErrorList { return validate(obj) },
			ValidateName:     func(name string, _ bool) []string { return content.IsPathSegmentName(name) },
			ResetFields:      []string{"status"},
		},
		Columns: []metav1.TableColumnDefinition{
			table.Name(),
			table.String("Service", "The reference to the service that hosts this API endpoint."),
			table.String("Available", "Whether this service is available."),
			table.Age(),
		},
		Row: func(obj *apiregistrationv1.APIService) []any {
			return []any{obj.Name, serviceCell(obj), availableCell(obj), table.Since(obj.CreationTimestamp)}
		},
		Subresources: []registry.Subresource{{
			Name: "status", Verbs: []string{"get", "patch", "update"},
			Update: registry.Erase(registry.Behaviour[*apiregistrationv1.APIService]{
				PrepareForUpdate: func(_ context.Context, obj, old *apiregistrationv1.APIService) {
					obj.Spec, obj.Labels, obj.Annotations, obj.Finalizers, obj.OwnerReferences = old.Spec, old.Labels, old.Annotations, old.Finalizers, old.OwnerReferences
				},
				ValidateUpdate: func(_ context.Context, obj, _ *apiregistrationv1.APIService) field.ErrorList {
					return validateStatus(&obj.Status)
				},
				ResetFields: []string{"spec", "metadata"},
			}),
		}},
	})
	r.StoredAsJSON = true
	r.Types = func() (managedfields.TypeConverter, error) {
		return applyconfiguration.NewTypeConverter(scheme.Scheme), nil
	}
	return r
}

func setDefaults(obj *apiregistrationv1.APIService) {
	if obj.Spec.Service != nil && obj.Spec.Service.Port == nil {
		obj.Spec.Service.Port = new(int32(443))
	}
}

func serviceCell(obj *apiregistrationv1.APIService) string {
	if obj.Spec.Service == nil {
		return "Local"
	}
	return obj.Spec.Service.Namespace + "/" + obj.Spec.Service.Name
}

func availableCell(obj *apiregistrationv1.APIService) string {
	for _, condition := range obj.Status.Conditions {
		if condition.Type != apiregistrationv1.Available {
			continue
		}
		if condition.Status != apiregistrationv1.ConditionTrue && condition.Reason != "" {
			return fmt.Sprintf("%s (%s)", condition.Status, condition.Reason)
		}
		return string(condition.Status)
	}
	return string(apiregistrationv1.ConditionUnknown)
}

func validate(obj *apiregistrationv1.APIService) field.ErrorList {
	var errs field.ErrorList
	spec, path := &obj.Spec, field.NewPath("spec")
	if want := spec.Version + "." + spec.Group; obj.Name != want {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), obj.Name, fmt.Sprintf("must be `spec.version+\".\"+spec.group`: %q", want)))
	}
	if spec.Group == "" && spec.Version != "v1" {
		errs = append(errs, field.Required(path.Child("group"), "only v1 may have an empty group and it better be legacy kube"))
	}
	if spec.Group != "" {
		for _, message := range utilvalidation.IsDNS1123Subdomain(spec.Group) {
			errs = append(errs, field.Invalid(path.Child("group"), spec.Group, message))
		}
	}
	for _, message := range utilvalidation.IsDNS1035Label(spec.Version) {
		errs = append(errs, field.Invalid(path.Child("version"), spec.Version, message))
	}
	if spec.GroupPriorityMinimum <= 0 || spec.GroupPriorityMinimum > 20000 {
		errs = append(errs, field.Invalid(path.Child("groupPriorityMinimum"), spec.GroupPriorityMinimum, "must be positive and less than 20000"))
	}
	if spec.VersionPriority <= 0 || spec.VersionPriority > 1000 {
		errs = append(errs, field.Invalid(path.Child("versionPriority"), spec.VersionPriority, "must be positive and less than 1000"))
	}
	if spec.Service == nil {
		return append(errs, validateLocal(spec, path)...)
	}
	return append(errs, validateRemote(spec, path)...)
}

func validateLocal(spec *apiregistrationv1.APIServiceSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(spec.CABundle) > 0 {
		errs = append(errs, field.Invalid(path.Child("caBundle"), fmt.Sprintf("%d bytes", len(spec.CABundle)), "local APIServices may not have a caBundle"))
	}
	if spec.InsecureSkipTLSVerify {
		errs = append(errs, field.Invalid(path.Child("insecureSkipTLSVerify"), spec.InsecureSkipTLSVerify, "local APIServices may not have insecureSkipTLSVerify"))
	}
	return errs
}

// validateRemote also keeps what a cluster is repaired with at home: the core
// group, and this one.
func validateRemote(spec *apiregistrationv1.APIServiceSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if spec.Group == "" || spec.Group == apiregistrationv1.GroupName {
		errs = append(errs, field.Forbidden(path.Child("service"), fmt.Sprintf("group %q is always served by the API server itself", spec.Group)))
	}
	if spec.Service.Namespace == "" {
		errs = append(errs, field.Required(path.Child("service", "namespace"), ""))
	}
	if spec.Service.Name == "" {
		errs = append(errs, field.Required(path.Child("service", "name"), ""))
	}
	if messages := utilvalidation.IsValidPortNum(int(table.Value(spec.Service.Port))); messages != nil {
		errs = append(errs, field.Invalid(path.Child("service", "port"), spec.Service.Port, "port is not valid: "+strings.Join(messages, ", ")))
	}
	if spec.InsecureSkipTLSVerify && len(spec.CABundle) > 0 {
		errs = append(errs, field.Invalid(path.Child("insecureSkipTLSVerify"), spec.InsecureSkipTLSVerify, "may not be true if caBundle is present"))
	}
	return errs
}

func validateStatus(status *apiregistrationv1.APIServiceStatus) field.ErrorList {
	var errs field.ErrorList
	for i, condition := range status.Conditions {
		switch condition.Status {
		case apiregistrationv1.ConditionTrue, apiregistrationv1.ConditionFalse, apiregistrationv1.ConditionUnknown:
		default:
			errs = append(errs, field.NotSupported(field.NewPath("status", "conditions").Index(i).Child("status"), condition.Status,
				[]apiregistrationv1.ConditionStatus{apiregistrationv1.ConditionTrue, apiregistrationv1.ConditionFalse, apiregistrationv1.ConditionUnknown}))
		}
	}
	return errs
}
