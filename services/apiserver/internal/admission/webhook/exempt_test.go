package webhook_test

import (
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

// Reviews are how webhooks themselves ask who may do what: none is asked about
// them.
func TestReviewsAreExempt(t *testing.T) {
	s := testserver.Start(t)
	h := newHook(t, func(*request) *response { return &response{Allowed: false} })
	validating(t, s.Client, "v", h.Server, rule("*", "*", "*/*", all), nil)
	mutating(t, s.Client, "m", h.Server, rule("*", "*", "*/*", all), nil)
	ctx := t.Context()
	attributes := &authorizationv1.ResourceAttributes{Verb: "get", Resource: "pods", Namespace: "default"}
	for name, ask := range map[string]func() error{
		"SelfSubjectReview": func() error {
			_, err := s.Client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
			return err
		},
		"TokenReview": func() error {
			_, err := s.Client.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: "x"}}, metav1.CreateOptions{})
			return err
		},
		"SelfSubjectAccessReview": func() error {
			_, err := s.Client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
				Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: attributes},
			}, metav1.CreateOptions{})
			return err
		},
		"SelfSubjectRulesReview": func() error {
			_, err := s.Client.AuthorizationV1().SelfSubjectRulesReviews().Create(ctx, &authorizationv1.SelfSubjectRulesReview{
				Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "default"},
			}, metav1.CreateOptions{})
			return err
		},
		"SubjectAccessReview": func() error {
			_, err := s.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
				Spec: authorizationv1.SubjectAccessReviewSpec{ResourceAttributes: attributes, User: "jane"},
			}, metav1.CreateOptions{})
			return err
		},
		"LocalSubjectAccessReview": func() error {
			_, err := s.Client.AuthorizationV1().LocalSubjectAccessReviews("default").Create(ctx, &authorizationv1.LocalSubjectAccessReview{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default"},
				Spec:       authorizationv1.SubjectAccessReviewSpec{ResourceAttributes: attributes, User: "jane"},
			}, metav1.CreateOptions{})
			return err
		},
	} {
		if err := ask(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := len(h.requests()); n != 0 {
		t.Errorf("webhooks were asked %d times", n)
	}
}

func TestMatchConditionsAreMeasured(t *testing.T) {
	s := testserver.Start(t)
	h := newHook(t, nil)
	conditions := []admissionregistrationv1.MatchCondition{{Name: "missing", Expression: "object.data.missing == 'x'"}, {Name: "name", Expression: "object.metadata.name == 'a'"}}
	ignoring := admissionregistrationv1.Ignore
	validating(t, s.Client, "v", h.Server, configMaps(creating), func(w *admissionregistrationv1.ValidatingWebhook) {
		w.MatchConditions, w.FailurePolicy = conditions, &ignoring
	})
	mutating(t, s.Client, "m", h.Server, configMaps(creating), func(w *admissionregistrationv1.MutatingWebhook) {
		w.MatchConditions, w.FailurePolicy = conditions, &ignoring
	})
	for _, name := range []string{"a", "b"} {
		if _, err := create(t, s.Client, configMap(name)); err != nil {
			t.Fatal(err)
		}
	}
	out := metrics(t, s)
	for _, want := range []string{
		`apiserver_admission_match_condition_evaluation_errors_total{kind="webhook",name="v.example.com",operation="CREATE",type="validating"} 2`,
		`apiserver_admission_match_condition_evaluation_errors_total{kind="webhook",name="m.example.com",operation="CREATE",type="admit"} 2`,
		`apiserver_admission_match_condition_exclusions_total{kind="webhook",name="v.example.com",operation="CREATE",type="validate"} 2`,
		`apiserver_admission_match_condition_exclusions_total{kind="webhook",name="m.example.com",operation="CREATE",type="admit"} 2`,
		`apiserver_admission_match_condition_evaluation_seconds_count{kind="webhook",name="v.example.com",operation="CREATE",type="validating"} 2`,
	} {
		if !strings.Contains(out, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	if n := len(h.requests()); n != 0 {
		t.Errorf("webhooks were asked %d times", n)
	}
}
