package admissionregistration

import (
	"context"
	"net/url"
	"reflect"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

type (
	validatingWebhooks = admissionregistrationv1.ValidatingWebhookConfiguration
	mutatingWebhooks   = admissionregistrationv1.MutatingWebhookConfiguration
)

func validatingWebhookConfigurations(v validator) *registry.Resource {
	return registry.Define(registry.Definition[*validatingWebhooks]{
		GroupVersion: v1, Resource: "validatingwebhookconfigurations", Kind: "ValidatingWebhookConfiguration", Singular: "validatingwebhookconfiguration",
		Categories: categories(),
		New:        func() *validatingWebhooks { return &validatingWebhooks{} },
		NewList:    func() runtime.Object { return &admissionregistrationv1.ValidatingWebhookConfigurationList{} },
		KeyPrefix:  "/registry/validatingwebhookconfigurations",
		Strategy: registry.Behaviour[*validatingWebhooks]{
			Default: func(obj *validatingWebhooks) {
				for i := range obj.Webhooks {
					defaultValidatingWebhook(&obj.Webhooks[i])
				}
			},
			Validate: func(_ context.Context, obj *validatingWebhooks) field.ErrorList {
				return v.webhooks(ofValidating(obj), nil)
			},
			ValidateUpdate: func(_ context.Context, obj, old *validatingWebhooks) field.ErrorList {
				return v.webhooks(ofValidating(obj), ofValidating(old))
			},
			SpecOf: func(obj *validatingWebhooks) any { return obj.Webhooks },
		},
		Columns: webhookColumns(),
		Row: func(obj *validatingWebhooks) []any {
			return []any{obj.Name, int64(len(obj.Webhooks)), table.Since(obj.CreationTimestamp)}
		},
	})
}

func mutatingWebhookConfigurations(v validator) *registry.Resource {
	return registry.Define(registry.Definition[*mutatingWebhooks]{
		GroupVersion: v1, Resource: "mutatingwebhookconfigurations", Kind: "MutatingWebhookConfiguration", Singular: "mutatingwebhookconfiguration",
		Categories: categories(),
		New:        func() *mutatingWebhooks { return &mutatingWebhooks{} },
		NewList:    func() runtime.Object { return &admissionregistrationv1.MutatingWebhookConfigurationList{} },
		KeyPrefix:  "/registry/mutatingwebhookconfigurations",
		Strategy: registry.Behaviour[*mutatingWebhooks]{
			Default: func(obj *mutatingWebhooks) {
				for i := range obj.Webhooks {
					defaultMutatingWebhook(&obj.Webhooks[i])
				}
			},
			Validate: func(_ context.Context, obj *mutatingWebhooks) field.ErrorList {
				return v.webhooks(ofMutating(obj), nil)
			},
			ValidateUpdate: func(_ context.Context, obj, old *mutatingWebhooks) field.ErrorList {
				return v.webhooks(ofMutating(obj), ofMutating(old))
			},
			SpecOf: func(obj *mutatingWebhooks) any { return obj.Webhooks },
		},
		Columns: webhookColumns(),
		Row: func(obj *mutatingWebhooks) []any {
			return []any{obj.Name, int64(len(obj.Webhooks)), table.Since(obj.CreationTimestamp)}
		},
	})
}

// hook is a webhook of either kind: a validating one is a mutating one that is
// never called again.
type hook = admissionregistrationv1.MutatingWebhook

func ofValidating(obj *validatingWebhooks) []hook {
	hooks := make([]hook, len(obj.Webhooks))
	for i, w := range obj.Webhooks {
		hooks[i] = hook{
			Name: w.Name, ClientConfig: w.ClientConfig, Rules: w.Rules, FailurePolicy: w.FailurePolicy, MatchPolicy: w.MatchPolicy,
			NamespaceSelector: w.NamespaceSelector, ObjectSelector: w.ObjectSelector, SideEffects: w.SideEffects,
			TimeoutSeconds: w.TimeoutSeconds, AdmissionReviewVersions: w.AdmissionReviewVersions, MatchConditions: w.MatchConditions,
		}
	}
	return hooks
}

func ofMutating(obj *mutatingWebhooks) []hook { return obj.Webhooks }

// lenience is what an update may keep because what is stored has it already.
type lenience struct {
	sideEffects, reviewVersions, sameNames, labelValues, conditions bool
	stored                                                          known
}

func lenienceOf(hooks, old []hook) lenience {
	l := lenience{stored: known{}, conditions: len(hooks) == len(old) && len(old) > 0}
	names := map[string]bool{}
	for i, h := range old {
		l.sideEffects = l.sideEffects || h.SideEffects == nil || !slices.Contains(quietEffects(), *h.SideEffects)
		l.reviewVersions = l.reviewVersions || len(h.AdmissionReviewVersions) > 0 && !slices.ContainsFunc(h.AdmissionReviewVersions, isReviewVersion)
		l.sameNames = l.sameNames || names[h.Name]
		names[h.Name] = true
		for _, selector := range []*metav1.LabelSelector{h.NamespaceSelector, h.ObjectSelector} {
			l.labelValues = l.labelValues || selector != nil && len(validateSelector(selector, false, nil)) > 0
		}
		for _, condition := range h.MatchConditions {
			l.stored[condition.Expression] = true
		}
		l.conditions = l.conditions && reflect.DeepEqual(hooks[i].MatchConditions, h.MatchConditions)
	}
	return l
}

func (v validator) webhooks(hooks, old []hook) field.ErrorList {
	var errs field.ErrorList
	l := lenienceOf(hooks, old)
	names := map[string]bool{}
	for i := range hooks {
		h, path := &hooks[i], field.NewPath("webhooks").Index(i)
		errs = append(errs, v.webhook(h, l, path)...)
		if h.Name == "" || l.sameNames {
			continue
		}
		if names[h.Name] {
			errs = append(errs, field.Duplicate(path.Child("name"), h.Name))
		}
		names[h.Name] = true
	}
	return errs
}

func (v validator) webhook(h *hook, l lenience, path *field.Path) field.ErrorList {
	errs := utilvalidation.IsFullyQualifiedName(path.Child("name"), h.Name)
	for i := range h.Rules {
		errs = append(errs, validateRuleWithOperations(&h.Rules[i], path.Child("rules").Index(i))...)
	}
	errs = append(errs, optionalOneOf(h.FailurePolicy, path.Child("failurePolicy"), failurePolicies()...)...)
	errs = append(errs, optionalOneOf(h.MatchPolicy, path.Child("matchPolicy"), matchPolicies()...)...)
	errs = append(errs, validateSideEffects(h.SideEffects, l.sideEffects, path.Child("sideEffects"))...)
	if t := h.TimeoutSeconds; t != nil && (*t > 30 || *t < 1) {
		errs = append(errs, field.Invalid(path.Child("timeoutSeconds"), *t, "the timeout value must be between 1 and 30 seconds"))
	}
	if h.NamespaceSelector != nil {
		errs = append(errs, validateSelector(h.NamespaceSelector, l.labelValues, path.Child("namespaceSelector"))...)
	}
	if h.ObjectSelector != nil {
		errs = append(errs, validateSelector(h.ObjectSelector, l.labelValues, path.Child("objectSelector"))...)
	}
	errs = append(errs, optionalOneOf(h.ReinvocationPolicy, path.Child("reinvocationPolicy"), reinvocationPolicies()...)...)
	errs = append(errs, validateClient(&h.ClientConfig, path.Child("clientConfig"))...)
	if !l.conditions {
		errs = append(errs, v.matchConditions(h.MatchConditions, false, l.stored, path.Child("matchConditions"))...)
	}
	return append(errs, validateReviewVersions(h.AdmissionReviewVersions, l.reviewVersions, path.Child("admissionReviewVersions"))...)
}

// quietEffects are the side effects that a new webhook may have.
func quietEffects() []admissionregistrationv1.SideEffectClass {
	return []admissionregistrationv1.SideEffectClass{admissionregistrationv1.SideEffectClassNone, admissionregistrationv1.SideEffectClassNoneOnDryRun}
}

func validateSideEffects(effects *admissionregistrationv1.SideEffectClass, lenient bool, path *field.Path) field.ErrorList {
	allowed := quietEffects()
	if lenient {
		allowed = append(allowed, admissionregistrationv1.SideEffectClassSome, admissionregistrationv1.SideEffectClassUnknown)
	}
	if effects != nil {
		return oneOf(*effects, path, allowed...)
	}
	names := make([]string, len(allowed))
	for i, effect := range allowed {
		names[i] = string(effect)
	}
	return field.ErrorList{field.Required(path, "must specify one of "+strings.Join(names, ", "))}
}

// reviewVersions are the versions of AdmissionReview that a configuration can
// name. Reviews are sent as v1, which is why one version alone is not enough: see
// validateReviewVersions.
func reviewVersions() []string { return []string{"v1", "v1beta1"} }

func isReviewVersion(version string) bool { return slices.Contains(reviewVersions(), version) }

func validateReviewVersions(versions []string, lenient bool, path *field.Path) field.ErrorList {
	names := strings.Join(reviewVersions(), ", ")
	if len(versions) == 0 {
		return field.ErrorList{field.Required(path, "must specify one of "+names)}
	}
	var errs field.ErrorList
	seen := map[string]bool{}
	for i, version := range versions {
		if seen[version] {
			errs = append(errs, field.Invalid(path.Index(i), version, "duplicate version"))
			continue
		}
		seen[version] = true
		for _, message := range utilvalidation.IsDNS1035Label(version) {
			errs = append(errs, field.Invalid(path.Index(i), version, message))
		}
	}
	switch {
	case lenient:
	case !slices.ContainsFunc(versions, isReviewVersion):
		errs = append(errs, field.Invalid(path, versions, "must include at least one of "+names))
	case !seen["v1"]:
		errs = append(errs, field.Invalid(path, versions, "must include v1: this server sends no other version"))
	}
	return errs
}

func validateClient(c *admissionregistrationv1.WebhookClientConfig, path *field.Path) field.ErrorList {
	switch {
	case (c.URL == nil) == (c.Service == nil):
		return field.ErrorList{field.Required(path, "exactly one of url or service is required")}
	case c.URL != nil:
		return validateURL(*c.URL, path.Child("url"))
	}
	return validateService(c.Service, path.Child("service"))
}

func validateURL(text string, path *field.Path) field.ErrorList {
	const form = "; desired format: https://host[/path]"
	u, err := url.Parse(text)
	if err != nil {
		return field.ErrorList{field.Required(path, "url must be a valid URL: "+err.Error()+form)}
	}
	var errs field.ErrorList
	if u.Scheme != "https" {
		errs = append(errs, field.Invalid(path, u.Scheme, "'https' is the only allowed URL scheme"+form))
	}
	if u.Host == "" {
		errs = append(errs, field.Invalid(path, u.Host, "host must be specified"+form))
	}
	if u.User != nil {
		errs = append(errs, field.Invalid(path, u.User.String(), "user information is not permitted in the URL"))
	}
	if u.Fragment != "" {
		errs = append(errs, field.Invalid(path, u.Fragment, "fragments are not permitted in the URL"))
	}
	if u.RawQuery != "" {
		errs = append(errs, field.Invalid(path, u.RawQuery, "query parameters are not permitted in the URL"))
	}
	return errs
}

func validateService(s *admissionregistrationv1.ServiceReference, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), ""))
	}
	if s.Namespace == "" {
		errs = append(errs, field.Required(path.Child("namespace"), ""))
	}
	port := table.Value(s.Port)
	if messages := utilvalidation.IsValidPortNum(int(port)); messages != nil {
		errs = append(errs, field.Invalid(path.Child("port"), port, "port is not valid: "+strings.Join(messages, ", ")))
	}
	return append(errs, validateServicePath(table.Value(s.Path), path.Child("path"))...)
}

func validateServicePath(text string, path *field.Path) field.ErrorList {
	switch text {
	case "", "/":
		return nil
	case "//":
		return field.ErrorList{field.Invalid(path, text, "segment[0] may not be empty")}
	}
	var errs field.ErrorList
	if !strings.HasPrefix(text, "/") {
		errs = append(errs, field.Invalid(path, text, "must start with a '/'"))
	}
	for i, segment := range strings.Split(strings.TrimSuffix(text[1:], "/"), "/") {
		if segment == "" {
			errs = append(errs, field.Invalid(path, text, "segment["+itoa(i)+"] may not be empty"))
			continue
		}
		for _, message := range utilvalidation.IsDNS1123Subdomain(segment) {
			errs = append(errs, field.Invalid(path, text, "segment["+itoa(i)+"]: "+message))
		}
	}
	return errs
}
