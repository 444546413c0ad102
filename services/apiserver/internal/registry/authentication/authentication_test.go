package authentication_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/authentication"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
)

// oneToken is good for the audiences api and vault.
type oneToken struct{}

func (oneToken) AuthenticateToken(_ context.Context, token string, audiences []string) (*authn.User, []string, error) {
	if token != "good" {
		return nil, nil, errors.New("no such token")
	}
	var granted []string
	for _, audience := range audiences {
		if audience == "api" || audience == "vault" {
			granted = append(granted, audience)
		}
	}
	if granted == nil {
		return nil, nil, errors.New("wrong audience")
	}
	return &authn.User{Name: "u", UID: "1", Groups: []string{"g"}, Extra: map[string][]string{"k": {"v"}}}, granted, nil
}

func TestTokenReview(t *testing.T) {
	var review func(spec authenticationv1.TokenReviewSpec) (*authenticationv1.TokenReview, error)
	for _, r := range authentication.Resources(oneToken{}, []string{"api"}) {
		if r.Resource == "tokenreviews" {
			review = func(spec authenticationv1.TokenReviewSpec) (*authenticationv1.TokenReview, error) {
				// What a client writes into the status must not come back.
				forged := authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "forged"}}
				answer, err := r.CreateOnly(t.Context(), &authenticationv1.TokenReview{Spec: spec, Status: forged}, false)
				if err != nil {
					return nil, err
				}
				return answer.(*authenticationv1.TokenReview), nil
			}
		}
	}
	good, err := review(authenticationv1.TokenReviewSpec{Token: "good"})
	if err != nil {
		t.Fatal(err)
	}
	if !good.Status.Authenticated || good.Status.User.Username != "u" || good.Status.User.Extra["k"][0] != "v" || !slices.Equal(good.Status.Audiences, []string{"api"}) {
		t.Errorf("status %+v", good.Status)
	}
	other, err := review(authenticationv1.TokenReviewSpec{Token: "good", Audiences: []string{"x", "vault"}})
	if err != nil || !slices.Equal(other.Status.Audiences, []string{"vault"}) {
		t.Errorf("%+v, %v", other, err)
	}
	for _, spec := range []authenticationv1.TokenReviewSpec{{Token: "bad"}, {Token: "good", Audiences: []string{"bank"}}} {
		answer, err := review(spec)
		if err != nil || answer.Status.Authenticated || answer.Status.User.Username != "" || answer.Status.Error == "" {
			t.Errorf("%+v: %+v, %v", spec, answer, err)
		}
	}
	if _, err := review(authenticationv1.TokenReviewSpec{}); !apierrors.IsBadRequest(err) {
		t.Errorf("no token: %v", err)
	}
}

func TestSelfSubjectReview(t *testing.T) {
	for _, r := range authentication.Resources(oneToken{}, nil) {
		if r.Resource != "selfsubjectreviews" {
			continue
		}
		ctx := request.WithUser(t.Context(), &authn.User{Name: "alice", Groups: []string{"g"}})
		answer, err := r.CreateOnly(ctx, &authenticationv1.SelfSubjectReview{}, false)
		if err != nil {
			t.Fatal(err)
		}
		if info := answer.(*authenticationv1.SelfSubjectReview).Status.UserInfo; info.Username != "alice" || info.Groups[0] != "g" {
			t.Errorf("info %+v", info)
		}
	}
}
