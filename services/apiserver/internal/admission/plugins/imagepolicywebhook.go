package plugins

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	imagepolicyv1alpha1 "k8s.io/api/imagepolicy/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
)

const (
	imageAnnotation  = ".image-policy.k8s.io/"
	imageVerdicts    = 1024
	imageTries       = 5
	imageTimeout     = 30 * time.Second
	imageAnswerBytes = 1 << 20
)

// ImagePolicy is where images are judged, and for how long a verdict holds.
type ImagePolicy struct {
	Client             *rest.Config
	AllowTTL, DenyTTL  time.Duration
	RetryBackoff       time.Duration
	AllowOnUnreachable bool
}

// imagePolicyWebhook asks a service whether a pod's images may run.
type imagePolicyWebhook struct {
	plugin
	policy   *ImagePolicy // nil refuses every pod
	verdicts *cache.LRUExpireCache
}

func newImagePolicyWebhook(config Config) admission.Plugin {
	return &imagePolicyWebhook{
		plugin{"ImagePolicyWebhook", []admission.Operation{admission.Create, admission.Update}},
		config.Configurations.ImagePolicyWebhook, cache.NewLRUExpireCache(imageVerdicts),
	}
}

// Validate implements admission.Validator.
func (p *imagePolicyWebhook) Validate(ctx context.Context, a *admission.Attributes) error {
	pod, ok := a.Object.(*corev1.Pod)
	if !ok || a.Resource.GroupResource() != corev1.Resource("pods") || a.Subresource != "" && a.Subresource != "ephemeralcontainers" {
		return nil
	}
	if p.policy == nil {
		return errors.New("ImagePolicyWebhook has no section in the file of --admission-control-config-file")
	}
	review := &imagepolicyv1alpha1.ImageReview{
		TypeMeta: metav1.TypeMeta{APIVersion: imagepolicyv1alpha1.SchemeGroupVersion.String(), Kind: "ImageReview"},
		Spec:     imagepolicyv1alpha1.ImageReviewSpec{Namespace: a.Namespace, Annotations: map[string]string{}},
	}
	for _, container := range containersOf(pod) {
		review.Spec.Containers = append(review.Spec.Containers, imagepolicyv1alpha1.ImageReviewContainerSpec{Image: container.Image})
	}
	for key, value := range pod.Annotations {
		if strings.Contains(key, imageAnnotation) {
			review.Spec.Annotations[key] = value
		}
	}
	return p.judge(ctx, review)
}

func (p *imagePolicyWebhook) judge(ctx context.Context, review *imagepolicyv1alpha1.ImageReview) error {
	body, err := json.Marshal(review)
	if err != nil {
		return err
	}
	verdict, ok := p.verdicts.Get(string(body))
	if !ok {
		status, err := p.ask(ctx, body)
		if err != nil {
			if p.policy.AllowOnUnreachable {
				return nil
			}
			return fmt.Errorf("asking for the image policy: %w", err)
		}
		lifetime := p.policy.DenyTTL
		if status.Allowed {
			lifetime = p.policy.AllowTTL
		}
		p.verdicts.Add(string(body), status, lifetime)
		verdict = status
	}
	switch status := verdict.(imagepolicyv1alpha1.ImageReviewStatus); {
	case status.Allowed:
		return nil
	case status.Reason != "":
		return fmt.Errorf("image policy webhook backend denied one or more images: %s", status.Reason)
	default:
		return errors.New("one or more images rejected by webhook backend")
	}
}

// ask posts a review, again while the service is unreachable or says that it is
// overloaded.
func (p *imagePolicyWebhook) ask(ctx context.Context, body []byte) (imagepolicyv1alpha1.ImageReviewStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, imageTimeout)
	defer cancel()
	client, err := rest.HTTPClientFor(p.policy.Client)
	if err != nil {
		return imagepolicyv1alpha1.ImageReviewStatus{}, err
	}
	for try := 1; ; try++ {
		status, again, err := post(ctx, client, p.policy.Client.Host, body)
		if err == nil || !again || try == imageTries {
			return status, err
		}
		select {
		case <-ctx.Done():
			return status, err
		case <-time.After(p.policy.RetryBackoff << (try - 1)):
		}
	}
}

// post sends one review; again says that another try may help.
func post(ctx context.Context, client *http.Client, address string, body []byte) (status imagepolicyv1alpha1.ImageReviewStatus, again bool, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return status, false, err
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := client.Do(request)
	if err != nil {
		return status, true, err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode < 200 || answer.StatusCode > 299 {
		return status, answer.StatusCode >= 500 || answer.StatusCode == http.StatusTooManyRequests, fmt.Errorf("error contacting webhook: %d", answer.StatusCode)
	}
	data, err := io.ReadAll(io.LimitReader(answer.Body, imageAnswerBytes))
	if err != nil {
		return status, true, err
	}
	var review imagepolicyv1alpha1.ImageReview
	if err := json.Unmarshal(data, &review); err != nil {
		return status, false, fmt.Errorf("reading the answer: %w", err)
	}
	return review.Status, false, nil
}

func readImagePolicy(c *Configurations, data []byte, dir string) error {
	var file struct {
		Policy struct {
			KubeConfigFile string `json:"kubeConfigFile"`
			AllowTTL       int64  `json:"allowTTL"`     // seconds
			DenyTTL        int64  `json:"denyTTL"`      // seconds
			RetryBackoff   int64  `json:"retryBackoff"` // milliseconds
			DefaultAllow   bool   `json:"defaultAllow"`
		} `json:"imagePolicy"`
	}
	if err := decodeStrictly(data, &file); err != nil {
		return err
	}
	policy := &ImagePolicy{AllowOnUnreachable: file.Policy.DefaultAllow}
	var err error
	if policy.Client, err = clientcmd.BuildConfigFromFlags("", relativeTo(file.Policy.KubeConfigFile, dir)); err != nil {
		return fmt.Errorf("imagePolicy.kubeConfigFile: %w", err)
	}
	if policy.AllowTTL, err = bounded("allowTTL", file.Policy.AllowTTL, time.Second, 30*time.Minute, 5*time.Minute); err != nil {
		return err
	}
	if policy.DenyTTL, err = bounded("denyTTL", file.Policy.DenyTTL, time.Second, 30*time.Minute, 30*time.Second); err != nil {
		return err
	}
	if policy.RetryBackoff, err = bounded("retryBackoff", file.Policy.RetryBackoff, time.Millisecond, 5*time.Minute, 500*time.Millisecond); err != nil {
		return err
	}
	c.ImagePolicyWebhook = policy
	return nil
}

// bounded is a duration in units: 0 is the default, -1 is none.
func bounded(name string, value int64, unit, most, otherwise time.Duration) (time.Duration, error) {
	switch {
	case value == 0:
		return otherwise, nil
	case value == -1:
		return 0, nil
	case value < 0 || value > int64(most/unit):
		return 0, fmt.Errorf("imagePolicy.%s: valid value is between %v and %v, got %d", name, unit, most, value)
	}
	return time.Duration(value) * unit, nil
}
