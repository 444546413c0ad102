package plugins

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/authz"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// ownerReferences lets only those set an object's owners who may delete it, and
// only those block an owner's deletion who may set its finalizers.
type ownerReferences struct {
	plugin
	authorizer  authz.Authorizer
	resourcesOf func(schema.GroupVersionKind) []*registry.Resource
}

func newOwnerReferencesPermissionEnforcement(config Config) admission.Plugin {
	return &ownerReferences{
		plugin{"OwnerReferencesPermissionEnforcement", []admission.Operation{admission.Create, admission.Update}},
		config.Authorizer, config.ResourcesOf,
	}
}

// Validate implements admission.Validator.
func (p *ownerReferences) Validate(ctx context.Context, a *admission.Attributes) error {
	if a.User == nil || a.Resource.GroupResource() == corev1.Resource("pods") && a.Subresource == "status" {
		return nil // the server itself; a strategy keeps a pod's owners
	}
	owners, before := ownersOf(a.Object), ownersOf(a.OldObject)
	if equality.Semantic.DeepEqual(owners, before) {
		return nil
	}
	if a.Operation == admission.Update || len(owners) > 0 {
		reason, ok := p.may(ctx, authz.Attributes{
			User: a.User, ResourceRequest: true, Verb: "delete", Namespace: a.Namespace, Name: a.Name,
			APIGroup: a.Resource.Group, APIVersion: a.Resource.Version, Resource: a.Resource.Resource,
		})
		if !ok {
			return fmt.Errorf("cannot set an ownerRef on a resource you can't delete: %v", reason)
		}
	}
	blocking := map[types.UID]bool{}
	for _, owner := range before {
		blocking[owner.UID] = blocks(owner)
	}
	for _, owner := range owners {
		if blocks(owner) && !blocking[owner.UID] {
			if err := p.mayBlock(ctx, a, owner); err != nil {
				return err
			}
		}
	}
	return nil
}

func ownersOf(obj any) []metav1.OwnerReference {
	if meta, ok := obj.(metav1.Object); ok {
		return meta.GetOwnerReferences()
	}
	return nil
}

func blocks(owner metav1.OwnerReference) bool {
	return owner.BlockOwnerDeletion != nil && *owner.BlockOwnerDeletion
}

func (p *ownerReferences) mayBlock(ctx context.Context, a *admission.Attributes, owner metav1.OwnerReference) error {
	var resources []*registry.Resource
	if p.resourcesOf != nil {
		resources = p.resourcesOf(schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind))
	}
	if len(resources) == 0 {
		return fmt.Errorf("cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion %s Kind %s", owner.APIVersion, owner.Kind)
	}
	for _, resource := range resources {
		namespace := "" // an owner is in the object's namespace, or in none
		if resource.Namespaced {
			namespace = a.Namespace
		}
		reason, ok := p.may(ctx, authz.Attributes{
			User: a.User, ResourceRequest: true, Verb: "update", Namespace: namespace, Name: owner.Name,
			APIGroup: resource.Group, APIVersion: resource.Version, Resource: resource.Resource, Subresource: "finalizers",
		})
		if !ok {
			return fmt.Errorf("cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: %v", reason)
		}
	}
	return nil
}

func (p *ownerReferences) may(ctx context.Context, attributes authz.Attributes) (reason string, ok bool) {
	decision, reason, err := p.authorizer.Authorize(ctx, attributes)
	return reason, err == nil && decision == authz.Allow
}
