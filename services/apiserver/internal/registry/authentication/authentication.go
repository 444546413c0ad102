// Package authentication has the kinds of authentication.k8s.io/v1 that stand on
// their own.
package authentication

import (
	"context"
	"errors"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
)

// Resources are the kinds, one a line. Tokens checks the tokens that reviews
// carry, apiAudiences are meant by a review that names none.
func Resources(tokens authn.TokenAuthenticator, apiAudiences []string) []*registry.Resource {
	return []*registry.Resource{
		selfSubjectReviews(),
		tokenReviews(tokens, apiAudiences),
	}
}

// tokenReviews say whose a token is.
func tokenReviews(tokens authn.TokenAuthenticator, apiAudiences []string) *registry.Resource {
	return &registry.Resource{
		GroupVersionResource: authenticationv1.SchemeGroupVersion.WithResource("tokenreviews"),
		Kind:                 "TokenReview", Singular: "tokenreview", Verbs: []string{"create"},
		New: func() runtime.Object { return &authenticationv1.TokenReview{} },
		CreateOnly: func(ctx context.Context, obj runtime.Object, _ bool) (runtime.Object, error) {
			review := obj.(*authenticationv1.TokenReview).DeepCopy()
			if review.Spec.Token == "" {
				return nil, apierrors.NewBadRequest("token is required for TokenReview in authentication")
			}
			audiences := review.Spec.Audiences
			if len(audiences) == 0 {
				audiences = apiAudiences
			}
			review.Status = authenticationv1.TokenReviewStatus{}
			user, granted, err := tokens.AuthenticateToken(ctx, review.Spec.Token, audiences)
			if err != nil {
				review.Status.Error = err.Error()
			}
			if user != nil && err == nil {
				review.Status.Authenticated = true
				review.Status.User = userInfo(user)
				review.Status.Audiences = granted
			}
			return review, nil
		},
	}
}

// selfSubjectReviews tell a user who it is.
func selfSubjectReviews() *registry.Resource {
	return &registry.Resource{
		GroupVersionResource: authenticationv1.SchemeGroupVersion.WithResource("selfsubjectreviews"),
		Kind:                 "SelfSubjectReview", Singular: "selfsubjectreview", Verbs: []string{"create"},
		New: func() runtime.Object { return &authenticationv1.SelfSubjectReview{} },
		CreateOnly: func(ctx context.Context, obj runtime.Object, _ bool) (runtime.Object, error) {
			user := request.UserFrom(ctx)
			if user == nil {
				return nil, apierrors.NewInternalError(errors.New("no user present on request"))
			}
			review := obj.(*authenticationv1.SelfSubjectReview).DeepCopy()
			review.Status = authenticationv1.SelfSubjectReviewStatus{UserInfo: userInfo(user)}
			return review, nil
		},
	}
}

func userInfo(user *authn.User) authenticationv1.UserInfo {
	info := authenticationv1.UserInfo{Username: user.Name, UID: user.UID, Groups: user.Groups}
	for key, values := range user.Extra {
		if info.Extra == nil {
			info.Extra = map[string]authenticationv1.ExtraValue{}
		}
		info.Extra[key] = values
	}
	return info
}
