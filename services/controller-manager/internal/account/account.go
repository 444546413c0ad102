// Package account makes clients that act as service accounts of kube-system, so
// that each controller has only the rights that its work needs.
package account

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const (
	namespace = "kube-system"
	lifetime  = time.Hour
	// renewWithin of its end a token is replaced; requests go on with the old one
	// when that fails.
	renewWithin = 15 * time.Minute
	retryPause  = time.Second
)

// Clients makes client configurations that act as accounts. Root must be allowed
// to make service accounts and their tokens in kube-system.
type Clients struct {
	root   kubernetes.Interface
	config *rest.Config // without credentials
}

// New makes accounts through root, whose configuration is config.
func New(root kubernetes.Interface, config *rest.Config) *Clients {
	return &Clients{root: root, config: rest.AnonymousClientConfig(config)}
}

// Config acts as the account of that name. Its token is asked for at the first
// request, and the account is made when it is missing.
func (c *Clients) Config(name string) *rest.Config {
	config := rest.CopyConfig(c.config)
	config.UserAgent = config.UserAgent + "/" + name
	source := &tokenSource{root: c.root, name: name}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &transport{source: source, next: next} })
	return config
}

type transport struct {
	source *tokenSource
	next   http.RoundTripper
}

// RoundTrip adds the token. A 401 drops it, so that the next request gets a new
// one: the signing key or the account may have been replaced.
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	token, err := t.source.get(request.Context())
	if err != nil {
		return nil, err
	}
	authorized := request.Clone(request.Context())
	authorized.Header.Set("Authorization", "Bearer "+token)
	response, err := t.next.RoundTrip(authorized)
	if err == nil && response.StatusCode == http.StatusUnauthorized {
		t.source.drop(token)
	}
	return response, err
}

type tokenSource struct {
	root kubernetes.Interface
	name string

	mu      sync.Mutex
	token   string
	expires time.Time
	tried   time.Time
}

func (s *tokenSource) drop(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.token == token {
		s.token = ""
	}
}

// get is a token that is valid for a while yet.
func (s *tokenSource) get(ctx context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.token != "" && now.Add(renewWithin).Before(s.expires) {
		return s.token, nil
	}
	usable := s.token != "" && now.Before(s.expires)
	if usable && now.Sub(s.tried) < retryPause {
		return s.token, nil
	}
	s.tried = now
	token, expires, err := s.request(ctx)
	switch {
	case err == nil:
		s.token, s.expires = token, expires
	case !usable:
		return "", err
	}
	return s.token, nil
}

func (s *tokenSource) request(ctx context.Context) (string, time.Time, error) {
	made, err := s.createToken(ctx)
	if apierrors.IsNotFound(err) {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: s.name}}
		_, err = s.root.CoreV1().ServiceAccounts(namespace).Create(ctx, account, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return "", time.Time{}, fmt.Errorf("creating service account %s/%s: %w", namespace, s.name, err)
		}
		made, err = s.createToken(ctx)
	}
	if err != nil {
		return "", time.Time{}, fmt.Errorf("requesting token of service account %s/%s: %w", namespace, s.name, err)
	}
	return made.Status.Token, made.Status.ExpirationTimestamp.Time, nil
}

func (s *tokenSource) createToken(ctx context.Context) (*authenticationv1.TokenRequest, error) {
	seconds := int64(lifetime / time.Second)
	return s.root.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, s.name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds},
	}, metav1.CreateOptions{})
}
