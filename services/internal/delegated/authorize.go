package delegated

import (
	"context"
	"encoding/json"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Authorize tells whether the user may do one of what is wanted.
func (g *Gate) Authorize(ctx context.Context, user User, wanted []Attributes) (bool, error) {
	for _, attributes := range wanted {
		allowed, err := g.review(ctx, user, attributes)
		if err != nil || allowed {
			return allowed, err
		}
	}
	return false, nil
}

func (g *Gate) review(ctx context.Context, user User, attributes Attributes) (bool, error) {
	spec := authorizationv1.SubjectAccessReviewSpec{
		User: user.Name, UID: user.UID, Groups: user.Groups,
		ResourceAttributes: attributes.Resource, NonResourceAttributes: attributes.NonResource,
	}
	if len(user.Extra) > 0 {
		spec.Extra = make(map[string]authorizationv1.ExtraValue, len(user.Extra))
		for key, values := range user.Extra {
			spec.Extra[key] = values
		}
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return false, err
	}
	key := string(data)
	if allowed, found := g.access.get(key); found {
		return allowed, nil
	}
	review := &authorizationv1.SubjectAccessReview{Spec: spec}
	reviewed, err := g.cfg.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("reviewing access of %s: %w", user.Name, err)
	}
	ttl := g.cfg.DeniedTTL
	if reviewed.Status.Allowed {
		ttl = g.cfg.AllowedTTL
	}
	g.access.put(key, reviewed.Status.Allowed, ttl)
	return reviewed.Status.Allowed, nil
}
