// Package authorization has the kinds of authorization.k8s.io/v1: questions about
// what someone may do.
package authorization

import (
	"context"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/apiserver/internal/authz"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
)

// Resources are the kinds, one a line.
func Resources(authorizer authz.Authorizer, rules authz.RuleLister) []*registry.Resource {
	return []*registry.Resource{
		localSubjectAccessReviews(authorizer),
		selfSubjectAccessReviews(authorizer),
		selfSubjectRulesReviews(rules),
		subjectAccessReviews(authorizer),
	}
}

// review is a resource that only answers POSTs.
func review(resource, kind, singular string, namespaced bool, fresh func() runtime.Object,
	validate func(runtime.Object) field.ErrorList, answer func(context.Context, runtime.Object) (runtime.Object, error)) *registry.Resource {
	return &registry.Resource{
		GroupVersionResource: authorizationv1.SchemeGroupVersion.WithResource(resource),
		Kind:                 kind, Singular: singular, Namespaced: namespaced, Verbs: []string{"create"},
		New: fresh,
		Strategy: &registry.Strategy{
			Validate: func(_ context.Context, obj runtime.Object) field.ErrorList { return validate(obj) },
		},
		CreateOnly: func(ctx context.Context, obj runtime.Object, _ bool) (runtime.Object, error) {
			return answer(ctx, obj.DeepCopyObject())
		},
	}
}

func subjectAccessReviews(authorizer authz.Authorizer) *registry.Resource {
	return review("subjectaccessreviews", "SubjectAccessReview", "subjectaccessreview", false,
		func() runtime.Object { return &authorizationv1.SubjectAccessReview{} },
		func(obj runtime.Object) field.ErrorList {
			return validateSubject(&obj.(*authorizationv1.SubjectAccessReview).Spec)
		},
		func(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
			r := obj.(*authorizationv1.SubjectAccessReview)
			r.Status = decide(ctx, authorizer, subject(&r.Spec), r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes)
			return r, nil
		})
}

func localSubjectAccessReviews(authorizer authz.Authorizer) *registry.Resource {
	return review("localsubjectaccessreviews", "LocalSubjectAccessReview", "localsubjectaccessreview", true,
		func() runtime.Object { return &authorizationv1.LocalSubjectAccessReview{} },
		func(obj runtime.Object) field.ErrorList {
			return validateLocal(obj.(*authorizationv1.LocalSubjectAccessReview))
		},
		func(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
			r := obj.(*authorizationv1.LocalSubjectAccessReview)
			if info := request.InfoFrom(ctx); info != nil && r.Spec.ResourceAttributes.Namespace != info.Namespace {
				return nil, apierrors.NewBadRequest(fmt.Sprintf("spec.resourceAttributes.namespace must match namespace: %v", info.Namespace))
			}
			r.Status = decide(ctx, authorizer, subject(&r.Spec), r.Spec.ResourceAttributes, nil)
			return r, nil
		})
}

func selfSubjectAccessReviews(authorizer authz.Authorizer) *registry.Resource {
	return review("selfsubjectaccessreviews", "SelfSubjectAccessReview", "selfsubjectaccessreview", false,
		func() runtime.Object { return &authorizationv1.SelfSubjectAccessReview{} },
		func(obj runtime.Object) field.ErrorList {
			spec := &obj.(*authorizationv1.SelfSubjectAccessReview).Spec
			return validateAction(spec.ResourceAttributes, spec.NonResourceAttributes)
		},
		func(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
			user := request.UserFrom(ctx)
			if user == nil {
				return nil, apierrors.NewBadRequest("no user present on request")
			}
			r := obj.(*authorizationv1.SelfSubjectAccessReview)
			r.Status = decide(ctx, authorizer, user, r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes)
			return r, nil
		})
}

func selfSubjectRulesReviews(rules authz.RuleLister) *registry.Resource {
	return review("selfsubjectrulesreviews", "SelfSubjectRulesReview", "selfsubjectrulesreview", false,
		func() runtime.Object { return &authorizationv1.SelfSubjectRulesReview{} },
		func(runtime.Object) field.ErrorList { return nil },
		func(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
			user := request.UserFrom(ctx)
			if user == nil {
				return nil, apierrors.NewBadRequest("no user present on request")
			}
			r := obj.(*authorizationv1.SelfSubjectRulesReview)
			if r.Spec.Namespace == "" {
				return nil, apierrors.NewBadRequest("no namespace on request")
			}
			r.Status = enumerate(rules, user, r.Spec.Namespace)
			return r, nil
		})
}

func subject(spec *authorizationv1.SubjectAccessReviewSpec) *authn.User {
	user := &authn.User{Name: spec.User, UID: spec.UID, Groups: spec.Groups}
	for key, values := range spec.Extra {
		if user.Extra == nil {
			user.Extra = map[string][]string{}
		}
		user.Extra[key] = values
	}
	return user
}

func decide(ctx context.Context, authorizer authz.Authorizer, user *authn.User,
	resource *authorizationv1.ResourceAttributes, path *authorizationv1.NonResourceAttributes) authorizationv1.SubjectAccessReviewStatus {
	attributes := authz.Attributes{User: user}
	if resource != nil {
		attributes.ResourceRequest = true
		attributes.Verb, attributes.Namespace, attributes.Name = resource.Verb, resource.Namespace, resource.Name
		attributes.APIGroup, attributes.APIVersion = resource.Group, resource.Version
		attributes.Resource, attributes.Subresource = resource.Resource, resource.Subresource
		attributes.FieldSelector, attributes.LabelSelector = fieldSelector(resource.FieldSelector), labelSelector(resource.LabelSelector)
	} else if path != nil {
		attributes.Verb, attributes.Path = path.Verb, path.Path
	}
	decision, reason, err := authorizer.Authorize(ctx, attributes)
	status := authorizationv1.SubjectAccessReviewStatus{Allowed: decision == authz.Allow, Denied: decision == authz.Deny, Reason: reason}
	if err != nil {
		status.EvaluationError = err.Error()
	}
	return status
}

func enumerate(lister authz.RuleLister, user *authn.User, namespace string) authorizationv1.SubjectRulesReviewStatus {
	status := authorizationv1.SubjectRulesReviewStatus{
		ResourceRules: []authorizationv1.ResourceRule{}, NonResourceRules: []authorizationv1.NonResourceRule{},
	}
	rules, err := lister.Rules(user, namespace)
	if err != nil {
		status.Incomplete, status.EvaluationError = true, err.Error()
	}
	for _, rule := range rules {
		if len(rule.Resources) > 0 {
			status.ResourceRules = append(status.ResourceRules, authorizationv1.ResourceRule{
				Verbs: rule.Verbs, APIGroups: rule.APIGroups, Resources: rule.Resources, ResourceNames: rule.ResourceNames,
			})
		}
		if len(rule.NonResourceURLs) > 0 {
			status.NonResourceRules = append(status.NonResourceRules, authorizationv1.NonResourceRule{
				Verbs: rule.Verbs, NonResourceURLs: rule.NonResourceURLs,
			})
		}
	}
	return status
}
