package authn

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Getter reads stored objects; errors are API status errors.
type Getter interface {
	Get(ctx context.Context, resource schema.GroupResource, namespace, name string) (runtime.Object, error)
}

// BootstrapTokens authenticates the tokens with which nodes join, kept as Secrets
// bootstrap-token-ID in kube-system: ID.SECRET is user system:bootstrap:ID.
type BootstrapTokens struct {
	getter Getter
	form   *regexp.Regexp
	group  *regexp.Regexp
	now    func() time.Time
}

// BootstrappersGroup is the group of all bootstrap tokens.
const BootstrappersGroup = "system:bootstrappers"

// NewBootstrapTokens reads the Secrets through getter.
func NewBootstrapTokens(getter Getter) *BootstrapTokens {
	return &BootstrapTokens{
		getter: getter, now: time.Now,
		form:  regexp.MustCompile(`^([a-z0-9]{6})\.([a-z0-9]{16})$`),
		group: regexp.MustCompile(`^system:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]$`),
	}
}

// AuthenticateToken implements TokenAuthenticator. Such a token is good for every
// audience.
func (b *BootstrapTokens) AuthenticateToken(ctx context.Context, token string, audiences []string) (*User, []string, error) {
	match := b.form.FindStringSubmatch(token)
	if match == nil {
		return nil, nil, nil
	}
	id, secretPart := match[1], match[2]
	obj, err := b.getter.Get(ctx, corev1.Resource("secrets"), "kube-system", "bootstrap-token-"+id)
	if apierrors.IsNotFound(err) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("reading bootstrap token %s: %w", id, err)
	}
	secret, ok := obj.(*corev1.Secret)
	if !ok || secret.DeletionTimestamp != nil || secret.Type != "bootstrap.kubernetes.io/token" {
		return nil, nil, nil
	}
	same := subtle.ConstantTimeCompare(secret.Data["token-secret"], []byte(secretPart)) &
		subtle.ConstantTimeCompare(secret.Data["token-id"], []byte(id))
	if same != 1 {
		return nil, nil, errors.New("the bootstrap token's secret is wrong")
	}
	if err := b.usable(secret); err != nil {
		return nil, nil, err
	}
	groups, err := b.groups(secret)
	if err != nil {
		return nil, nil, err
	}
	return &User{Name: "system:bootstrap:" + id, Groups: groups}, audiences, nil
}

func (b *BootstrapTokens) usable(secret *corev1.Secret) error {
	if expiration, ok := secret.Data["expiration"]; ok {
		end, err := time.Parse(time.RFC3339, string(expiration))
		if err != nil {
			return fmt.Errorf("bootstrap token's expiration: %w", err)
		}
		if !b.now().Before(end) {
			return errors.New("the bootstrap token has expired")
		}
	}
	if string(secret.Data["usage-bootstrap-authentication"]) != "true" {
		return errors.New("the bootstrap token is not for authentication")
	}
	return nil
}

func (b *BootstrapTokens) groups(secret *corev1.Secret) ([]string, error) {
	groups := []string{BootstrappersGroup}
	for group := range strings.SplitSeq(string(secret.Data["auth-extra-groups"]), ",") {
		if group == "" {
			continue
		}
		if !b.group.MatchString(group) {
			return nil, fmt.Errorf("bootstrap token's group %q is not below %s", group, BootstrappersGroup)
		}
		groups = append(groups, group)
	}
	return groups, nil
}
