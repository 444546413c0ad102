package tokens_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/statetest"
	"github.com/sampan-io/sampan/services/apiserver/internal/tokens"
)

const issuerName = "https://kubernetes.default.svc.cluster.local"

// cluster is an account, a pod of it on a node, and who signs and checks its
// tokens.
type cluster struct {
	state  *statetest.State
	config tokens.Config
	key    *ecdsa.PrivateKey
	issuer *tokens.Issuer
	check  *tokens.Authenticator
}

func newCluster(t testing.TB) *cluster {
	t.Helper()
	c := &cluster{state: statetest.New(), key: mustKey(t)}
	meta := func(name string, uid types.UID) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "default", Name: name, UID: uid}
	}
	c.state.Put(corev1.Resource("serviceaccounts"), &corev1.ServiceAccount{ObjectMeta: meta("web", "uid-sa")})
	c.state.Put(corev1.Resource("pods"), &corev1.Pod{ObjectMeta: meta("web-1", "uid-pod"), Spec: corev1.PodSpec{ServiceAccountName: "web", NodeName: "node-1"}})
	c.state.Put(corev1.Resource("pods"), &corev1.Pod{ObjectMeta: meta("other", "uid-other"), Spec: corev1.PodSpec{ServiceAccountName: "other"}})
	c.state.Put(corev1.Resource("secrets"), &corev1.Secret{ObjectMeta: meta("s", "uid-secret")})
	c.state.Put(corev1.Resource("nodes"), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "uid-node"}})
	c.config = tokens.Config{Issuers: []string{issuerName}, SigningKey: c.key, Extend: true}
	var err error
	if c.issuer, err = tokens.NewIssuer(c.config); err != nil {
		t.Fatal(err)
	}
	if c.check, err = tokens.NewAuthenticator(c.config, c.state); err != nil {
		t.Fatal(err)
	}
	return c
}

func mustKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// request sends a TokenRequest for default/web.
func (c *cluster) request(t testing.TB, spec authenticationv1.TokenRequestSpec) (*authenticationv1.TokenRequest, error) {
	t.Helper()
	create := tokens.NewCreate(c.issuer, c.state)
	request := &authenticationv1.TokenRequest{Spec: spec}
	create.Default(request)
	if errs := create.Validate(t.Context(), request); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	answer, err := create.Handle(t.Context(), "default", "web", request, false)
	if err != nil {
		return nil, err
	}
	return answer.(*authenticationv1.TokenRequest), nil
}

func (c *cluster) mustToken(t testing.TB, spec authenticationv1.TokenRequestSpec) string {
	t.Helper()
	answer, err := c.request(t, spec)
	if err != nil {
		t.Fatal(err)
	}
	return answer.Status.Token
}

func podBound() *authenticationv1.BoundObjectReference {
	return &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: "web-1"}
}

func TestTokenSaysWhoseItIs(t *testing.T) {
	c := newCluster(t)
	token := c.mustToken(t, authenticationv1.TokenRequestSpec{BoundObjectRef: podBound()})
	user, audiences, err := c.check.AuthenticateToken(t.Context(), token, nil)
	if err != nil {
		t.Fatal(err)
	}
	if user.Name != "system:serviceaccount:default:web" || user.UID != "uid-sa" {
		t.Errorf("user %+v", user)
	}
	if want := []string{"system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"}; !slices.Equal(user.Groups, want) {
		t.Errorf("groups %v", user.Groups)
	}
	if user.Extra[tokens.PodNameKey][0] != "web-1" || user.Extra[tokens.NodeNameKey][0] != "node-1" || user.Extra[tokens.NodeUIDKey][0] != "uid-node" {
		t.Errorf("extra %v", user.Extra)
	}
	if !strings.HasPrefix(user.Extra[authn.CredentialIDKey][0], "JTI=") {
		t.Errorf("extra %v", user.Extra)
	}
	if !slices.Equal(audiences, []string{issuerName}) {
		t.Errorf("audiences %v", audiences)
	}
}

func TestTokenDiesWithWhatItIsBoundTo(t *testing.T) {
	for name, c := range map[string]struct {
		ref *authenticationv1.BoundObjectReference
		end func(*statetest.State, context.Context)
	}{
		"account deleted": {nil, func(s *statetest.State, ctx context.Context) {
			_ = s.Delete(ctx, corev1.Resource("serviceaccounts"), "default", "web", nil, false)
		}},
		"account made anew": {nil, func(s *statetest.State, _ context.Context) {
			s.Put(corev1.Resource("serviceaccounts"), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "uid-new"}})
		}},
		"pod deleted": {podBound(), func(s *statetest.State, ctx context.Context) {
			_ = s.Delete(ctx, corev1.Resource("pods"), "default", "web-1", nil, false)
		}},
		"pod long gone but for its finalizer": {podBound(), func(s *statetest.State, _ context.Context) {
			deleted := metav1.NewTime(time.Now().Add(-2 * time.Minute))
			s.Put(corev1.Resource("pods"), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1", UID: "uid-pod", DeletionTimestamp: &deleted}})
		}},
		"secret deleted": {&authenticationv1.BoundObjectReference{Kind: "Secret", APIVersion: "v1", Name: "s"}, func(s *statetest.State, ctx context.Context) {
			_ = s.Delete(ctx, corev1.Resource("secrets"), "default", "s", nil, false)
		}},
		"node deleted": {&authenticationv1.BoundObjectReference{Kind: "Node", APIVersion: "v1", Name: "node-1"}, func(s *statetest.State, ctx context.Context) {
			_ = s.Delete(ctx, corev1.Resource("nodes"), "", "node-1", nil, false)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := newCluster(t)
			token := cluster.mustToken(t, authenticationv1.TokenRequestSpec{BoundObjectRef: c.ref})
			if _, _, err := cluster.check.AuthenticateToken(t.Context(), token, nil); err != nil {
				t.Fatalf("before: %v", err)
			}
			c.end(cluster.state, t.Context())
			if user, _, err := cluster.check.AuthenticateToken(t.Context(), token, nil); err == nil || user != nil {
				t.Errorf("token still authenticates %v", user)
			}
		})
	}
}

func TestTerminatingPodKeepsItsToken(t *testing.T) {
	c := newCluster(t)
	token := c.mustToken(t, authenticationv1.TokenRequestSpec{BoundObjectRef: podBound()})
	deleted := metav1.NewTime(time.Now().Add(20 * time.Second))
	c.state.Put(corev1.Resource("pods"), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1", UID: "uid-pod", DeletionTimestamp: &deleted}})
	if _, _, err := c.check.AuthenticateToken(t.Context(), token, nil); err != nil {
		t.Error(err)
	}
}

func TestTokenExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		token := c.mustToken(t, authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(600))})
		time.Sleep(599 * time.Second)
		if _, _, err := c.check.AuthenticateToken(t.Context(), token, nil); err != nil {
			t.Errorf("just before: %v", err)
		}
		time.Sleep(2 * time.Second)
		if _, _, err := c.check.AuthenticateToken(t.Context(), token, nil); err == nil {
			t.Error("an expired token is accepted from memory")
		}
		fresh, err := tokens.NewAuthenticator(c.config, c.state)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := fresh.AuthenticateToken(t.Context(), token, nil); err == nil {
			t.Error("an expired token is accepted")
		}
	})
}

func TestMountedTokenIsExtended(t *testing.T) {
	c := newCluster(t)
	claims := func(spec authenticationv1.TokenRequestSpec) *tokens.Claims {
		parsed := &tokens.Claims{}
		if _, _, err := jwt.NewParser().ParseUnverified(c.mustToken(t, spec), parsed); err != nil {
			t.Fatal(err)
		}
		return parsed
	}
	mounted := claims(authenticationv1.TokenRequestSpec{BoundObjectRef: podBound(), ExpirationSeconds: new(int64(3607))})
	if life := mounted.ExpiresAt.Sub(mounted.IssuedAt.Time); life != 365*24*time.Hour {
		t.Errorf("lifetime %v", life)
	}
	if warn := mounted.Kubernetes.WarnAfter.Sub(mounted.IssuedAt.Time); warn != 3607*time.Second {
		t.Errorf("warning after %v", warn)
	}
	for name, spec := range map[string]authenticationv1.TokenRequestSpec{
		"other lifetime": {BoundObjectRef: podBound(), ExpirationSeconds: new(int64(3600))},
		"other audience": {BoundObjectRef: podBound(), ExpirationSeconds: new(int64(3607)), Audiences: []string{"vault"}},
		"no pod":         {ExpirationSeconds: new(int64(3607))},
	} {
		if other := claims(spec); other.ExpiresAt.Sub(other.IssuedAt.Time) > 2*time.Hour || other.Kubernetes.WarnAfter != nil {
			t.Errorf("%s: extended to %v", name, other.ExpiresAt)
		}
	}
}

func TestAudienceMustMatch(t *testing.T) {
	c := newCluster(t)
	token := c.mustToken(t, authenticationv1.TokenRequestSpec{Audiences: []string{"sampan-bus", "vault"}})
	if _, _, err := c.check.AuthenticateToken(t.Context(), token, nil); err == nil {
		t.Error("a token for the bus is accepted by the API server")
	}
	verified, err := c.check.Verify(t.Context(), token, []string{"x", "sampan-bus"})
	if err != nil || !slices.Equal(verified.Audiences, []string{"sampan-bus"}) {
		t.Errorf("verified %+v, %v", verified, err)
	}
	if left := time.Until(verified.Expires); left < 59*time.Minute || left > time.Hour {
		t.Errorf("expires in %v", left)
	}
}

func TestTokenRequestRefusesBadInput(t *testing.T) {
	c := newCluster(t)
	for name, tc := range map[string]struct {
		spec  authenticationv1.TokenRequestSpec
		is    func(error) bool
		wants string
	}{
		"too short": {authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(599))}, nil, "less than 10 minutes"},
		"too long":  {authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(1<<32 + 1))}, nil, "2^32"},
		"other kind": {authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "ConfigMap", APIVersion: "v1", Name: "x"}},
			apierrors.IsBadRequest, "cannot bind token to object of type"},
		"no such pod": {authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: "x"}},
			apierrors.IsNotFound, ""},
		"another account's pod": {authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: "other"}},
			apierrors.IsBadRequest, "different serviceaccount"},
		"other uid": {authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: "web-1", UID: "old"}},
			apierrors.IsConflict, "does not match the UID"},
	} {
		answer, err := c.request(t, tc.spec)
		if err == nil || tc.is != nil && !tc.is(err) || !strings.Contains(err.Error(), tc.wants) {
			t.Errorf("%s: %v, %v", name, answer, err)
		}
	}
}

// forge signs claims as the issuer would, and lets change what it signs.
func (c *cluster) forge(t testing.TB, method jwt.SigningMethod, key any, change func(*jwt.Token, *tokens.Claims)) string {
	t.Helper()
	claims := &tokens.Claims{
		RegisteredClaims: jwt.RegisteredClaims{
			Issuer: issuerName, Subject: "system:serviceaccount:default:web", Audience: []string{issuerName},
			ExpiresAt: jwt.NewNumericDate(time.Now().Add(time.Hour)),
		},
		Kubernetes: tokens.Bound{Namespace: "default", ServiceAccount: tokens.Ref{Name: "web", UID: "uid-sa"}},
	}
	token := jwt.NewWithClaims(method, claims)
	if change != nil {
		change(token, claims)
	}
	signed, err := token.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

func TestForgedTokensAreRefused(t *testing.T) {
	c := newCluster(t)
	if _, _, err := c.check.AuthenticateToken(t.Context(), c.forge(t, jwt.SigningMethodES256, c.key, nil), nil); err != nil {
		t.Fatalf("the well-formed one: %v", err)
	}
	der, err := x509.MarshalPKIXPublicKey(c.key.Public())
	if err != nil {
		t.Fatal(err)
	}
	publicPEM := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	good := c.mustToken(t, authenticationv1.TokenRequestSpec{})
	parts := strings.Split(good, ".")
	encode := func(v any) string {
		out, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(out)
	}
	hmacToken := func() string {
		input := encode(map[string]string{"alg": "HS256", "typ": "JWT"}) + "." + parts[1]
		mac := hmac.New(sha256.New, publicPEM)
		mac.Write([]byte(input))
		return input + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
	}
	for name, token := range map[string]string{
		"none":                     c.forge(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, nil),
		"no signature":             parts[0] + "." + parts[1] + ".",
		"HMAC with the public key": hmacToken(),
		"another key":              c.forge(t, jwt.SigningMethodES256, mustKey(t), nil),
		"another algorithm":        c.forge(t, jwt.SigningMethodRS256, rsaKey, nil),
		"another key id": c.forge(t, jwt.SigningMethodES256, c.key, func(token *jwt.Token, _ *tokens.Claims) {
			token.Header["kid"] = "unknown"
		}),
		"changed payload": parts[0] + "." + encode(map[string]any{"iss": issuerName, "sub": "system:serviceaccount:kube-system:admin"}) + "." + parts[2],
		"no expiry":       c.forge(t, jwt.SigningMethodES256, c.key, func(_ *jwt.Token, claims *tokens.Claims) { claims.ExpiresAt = nil }),
		"not yet valid": c.forge(t, jwt.SigningMethodES256, c.key, func(_ *jwt.Token, claims *tokens.Claims) {
			claims.NotBefore = jwt.NewNumericDate(time.Now().Add(time.Hour))
		}),
		"subject of another account": c.forge(t, jwt.SigningMethodES256, c.key, func(_ *jwt.Token, claims *tokens.Claims) {
			claims.Subject = "system:serviceaccount:kube-system:admin"
		}),
		"no account": c.forge(t, jwt.SigningMethodES256, c.key, func(_ *jwt.Token, claims *tokens.Claims) { claims.Kubernetes = tokens.Bound{} }),
		"uid empty":  c.forge(t, jwt.SigningMethodES256, c.key, func(_ *jwt.Token, claims *tokens.Claims) { claims.Kubernetes.ServiceAccount.UID = "" }),
	} {
		if user, _, err := c.check.AuthenticateToken(t.Context(), token, nil); err == nil || user != nil {
			t.Errorf("%s: accepted as %v", name, user)
		}
	}
}

func TestTokensOfOthersAreNotOurBusiness(t *testing.T) {
	c := newCluster(t)
	foreign := c.forge(t, jwt.SigningMethodES256, c.key, func(_ *jwt.Token, claims *tokens.Claims) { claims.Issuer = "https://accounts.example.com" })
	for _, token := range []string{foreign, "", "a.b", "a.b.c", "....", "abcdef.0123456789abcdef"} {
		if user, _, err := c.check.AuthenticateToken(t.Context(), token, nil); user != nil || err != nil {
			t.Errorf("%q: %v, %v", token, user, err)
		}
	}
}

func TestKeysCanBeRotated(t *testing.T) {
	c := newCluster(t)
	old := c.mustToken(t, authenticationv1.TokenRequestSpec{})
	next := tokens.Config{Issuers: []string{issuerName}, SigningKey: mustKey(t), Keys: []crypto.PublicKey{c.key.Public()}}
	both, err := tokens.NewAuthenticator(next, c.state)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := both.AuthenticateToken(t.Context(), old, nil); err != nil {
		t.Errorf("the old key's token: %v", err)
	}
	next.Keys = nil
	only, err := tokens.NewAuthenticator(next, c.state)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := only.AuthenticateToken(t.Context(), old, nil); err == nil {
		t.Error("a token of a key that was taken away is accepted")
	}
}

func TestDiscoveryVerifiesTokensElsewhere(t *testing.T) {
	c := newCluster(t)
	discovery, err := tokens.NewDiscovery(c.config, "", "https://127.0.0.1:6443")
	if err != nil {
		t.Fatal(err)
	}
	recorder := httptest.NewRecorder()
	discovery.ServeConfiguration(recorder, nil)
	var configuration map[string]any
	if err := json.Unmarshal(recorder.Body.Bytes(), &configuration); err != nil {
		t.Fatal(err)
	}
	if configuration["issuer"] != issuerName || configuration["jwks_uri"] != "https://127.0.0.1:6443/openid/v1/jwks" {
		t.Errorf("configuration %v", configuration)
	}
	recorder = httptest.NewRecorder()
	discovery.ServeKeys(recorder, nil)
	var set struct {
		Keys []struct{ Kty, Crv, Alg, Kid, X, Y string }
	}
	if err := json.Unmarshal(recorder.Body.Bytes(), &set); err != nil {
		t.Fatal(err)
	}
	if got := recorder.Header().Get("Content-Type"); got != "application/jwk-set+json" {
		t.Errorf("media type %s", got)
	}
	k := set.Keys[0]
	decode := func(s string) []byte {
		out, err := base64.RawURLEncoding.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	public, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), append(append([]byte{4}, decode(k.X)...), decode(k.Y)...))
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := jwt.Parse(c.mustToken(t, authenticationv1.TokenRequestSpec{}), func(token *jwt.Token) (any, error) { return public, nil }, jwt.WithValidMethods([]string{k.Alg}))
	if err != nil || parsed.Header["kid"] != k.Kid {
		t.Errorf("token %v does not verify with the published key %v: %v", parsed, k, err)
	}
}

func FuzzAuthenticateToken(f *testing.F) {
	c := newCluster(f)
	good := c.mustToken(f, authenticationv1.TokenRequestSpec{BoundObjectRef: podBound()})
	f.Add(good)
	f.Add(strings.ToUpper(good))
	f.Add("eyJhbGciOiJub25lIn0.eyJpc3MiOiJodHRwczovL2t1YmVybmV0ZXMuZGVmYXVsdC5zdmMuY2x1c3Rlci5sb2NhbCJ9.")
	f.Add("..")
	payload := base64.RawURLEncoding.EncodeToString([]byte(`{"iss":"` + issuerName + `","exp":1e300,"nbf":-1e300,"aud":[null]}`))
	f.Add(strings.Split(good, ".")[0] + "." + payload + "." + strings.Split(good, ".")[2])
	f.Fuzz(func(t *testing.T, token string) {
		user, _, _ := c.check.AuthenticateToken(t.Context(), token, nil)
		if user != nil && token != good {
			t.Errorf("%q authenticates %v", token, user)
		}
	})
}

func BenchmarkAuthenticateKnownToken(b *testing.B) {
	c := newCluster(b)
	token := c.mustToken(b, authenticationv1.TokenRequestSpec{BoundObjectRef: podBound()})
	for b.Loop() {
		if _, _, err := c.check.AuthenticateToken(b.Context(), token, nil); err != nil {
			b.Fatal(err)
		}
	}
}
