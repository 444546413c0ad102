package conformance

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	jose "github.com/go-jose/go-jose/v4"
	"github.com/golang-jwt/jwt/v5"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var podAccounts = map[string]func(*testing.T){
	"should mount an API token into pods":                                                   mountedToken,
	"should mount projected service account token":                                          projectedToken,
	"ServiceAccountIssuerDiscovery should support OIDC discovery of service account issuer": issuerDiscovery,
}

const accountFolder = "/var/run/secrets/kubernetes.io/serviceaccount"

func mountedToken(t *testing.T) {
	namespace := newNamespace(t)
	printed := output(t, namespace, pod("mounted", fmt.Sprintf("cd %s; cat namespace; echo; cat ca.crt; echo; cat token", accountFolder)))
	lines := strings.Split(strings.TrimSpace(printed), "\n")
	if lines[0] != namespace {
		t.Errorf("the namespace reads %q", lines[0])
	}
	contains(t, printed, strings.TrimSpace(string(cluster.Config.CAData)))
	review := got(client.AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: lines[len(lines)-1]}}, metav1.CreateOptions{}))(t)
	if want := "system:serviceaccount:" + namespace + ":default"; review.Status.User.Username != want && review.Status.Error == "" {
		t.Errorf("the token is of %q, not %q: %+v", review.Status.User.Username, want, review.Status)
	}
}

// tokenVolume is a token for an audience, in the file "token".
func tokenVolume(audience string) corev1.VolumeSource {
	return projected(nil, corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", Audience: audience, ExpirationSeconds: new(int64(3600))}})
}

func projectedToken(t *testing.T) {
	printed := output(t, newNamespace(t), withVolume(pod("projected", "stat -L -c %a /etc/vol/token; cat /etc/vol/token"), tokenVolume("")))
	mode, token, _ := strings.Cut(printed, "\n")
	if mode != "644" || strings.Count(token, ".") != 2 {
		t.Errorf("the pod prints %q", printed)
	}
}

// issuerDiscovery verifies a pod's token by the keys that the issuer publishes.
func issuerDiscovery(t *testing.T) {
	namespace := newNamespace(t)
	const audience = "oidc-discovery-test"
	token := output(t, namespace, withVolume(pod("holder", "cat /etc/vol/token"), tokenVolume(audience)))
	rest := client.Discovery().RESTClient()
	var configuration struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	must(t, json.Unmarshal(got(rest.Get().AbsPath("/.well-known/openid-configuration").DoRaw(t.Context()))(t), &configuration))
	if !strings.HasSuffix(configuration.Keys, "/openid/v1/jwks") {
		t.Errorf("the keys are at %q", configuration.Keys)
	}
	var keys jose.JSONWebKeySet
	must(t, json.Unmarshal(got(rest.Get().AbsPath("/openid/v1/jwks").DoRaw(t.Context()))(t), &keys))
	claims := jwt.RegisteredClaims{}
	_, err := jwt.ParseWithClaims(token, &claims, func(token *jwt.Token) (any, error) {
		id, _ := token.Header["kid"].(string)
		found := keys.Key(id)
		if len(found) != 1 {
			return nil, fmt.Errorf("%d keys have the id %q", len(found), id)
		}
		return found[0].Key, nil
	}, jwt.WithIssuer(configuration.Issuer), jwt.WithAudience(audience), jwt.WithExpirationRequired())
	must(t, err)
	if want := "system:serviceaccount:" + namespace + ":default"; claims.Subject != want {
		t.Errorf("the subject is %q, not %q", claims.Subject, want)
	}
}
