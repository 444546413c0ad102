// Package tokens makes the service account tokens of pods, bound to the pod so
// that they end with it, and keeps each until it is due to be renewed.
package tokens

import (
	"context"
	"fmt"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Source makes tokens through the TokenRequest API.
type Source struct {
	client kubernetes.Interface

	mu     sync.Mutex
	tokens map[key]token
}

type key struct {
	pod      types.UID
	audience string
	lifetime time.Duration
}

type token struct {
	text  string
	renew time.Time
}

// New makes a source.
func New(client kubernetes.Interface) *Source {
	return &Source{client: client, tokens: map[key]token{}}
}

// Token is one for the pod's service account, and when to ask again. An empty
// audience is the API server's.
func (s *Source) Token(ctx context.Context, pod *corev1.Pod, audience string, lifetime time.Duration) (string, time.Time, error) {
	k := key{pod.UID, audience, lifetime}
	s.mu.Lock()
	kept, known := s.tokens[k]
	s.mu.Unlock()
	if known && time.Now().Before(kept.renew) {
		return kept.text, kept.renew, nil
	}
	seconds := int64(lifetime / time.Second)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &seconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	if audience != "" {
		request.Spec.Audiences = []string{audience}
	}
	asked := time.Now()
	made, err := s.request(ctx, pod, request)
	if err != nil {
		if known && time.Now().Before(kept.renew.Add(lifetime/10)) {
			return kept.text, time.Now().Add(time.Minute), nil // the old one is good for a while yet
		}
		return "", time.Time{}, fmt.Errorf("requesting a token for service account %s/%s: %w", pod.Namespace, pod.Spec.ServiceAccountName, err)
	}
	fresh := token{text: made.Status.Token, renew: renewal(asked, made.Status.ExpirationTimestamp.Time)}
	s.mu.Lock()
	s.tokens[k] = fresh
	s.mu.Unlock()
	return fresh.text, fresh.renew, nil
}

// request asks again for a short while when it is refused: the API server's
// authorizer may learn of the pod's binding later than this node.
func (s *Source) request(ctx context.Context, pod *corev1.Pod, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	const tries = 6
	delay := 10 * time.Millisecond
	for try := 1; ; try++ {
		made, err := s.client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, pod.Spec.ServiceAccountName, request, metav1.CreateOptions{})
		if !apierrors.IsForbidden(err) || try == tries {
			return made, err
		}
		select {
		case <-time.After(delay):
			delay *= 2
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// renewal is at four fifths of the token's life, and at least once a day.
func renewal(made, expires time.Time) time.Time {
	const day = 24 * time.Hour
	return made.Add(min(expires.Sub(made)*4/5, day))
}

// Forget drops the tokens of a pod that has ended.
func (s *Source) Forget(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.tokens {
		if k.pod == uid {
			delete(s.tokens, k)
		}
	}
}
