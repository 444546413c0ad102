package admissionregistration

import (
	"context"
	"fmt"
	"reflect"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/authz"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
)

// paramRights checks that whoever writes a policy or binding may read its
// parameters: the answers of the policy can tell what is in them.
type paramRights struct{ Deps }

const everything = "*"

// kind checks a policy's author for all parameters of the kind, when it is new.
func (p paramRights) kind(ctx context.Context, kind, old *admissionregistrationv1.ParamKind) field.ErrorList {
	if kind == nil || reflect.DeepEqual(kind, old) {
		return nil
	}
	a := p.attributes(kind)
	a.Name, a.Namespace = everything, everything
	return p.check(ctx, a, field.NewPath("spec", "paramKind"), func(user string) string {
		return fmt.Sprintf(`user %s must have "get" permission on all objects of the referenced paramKind (kind=%s, apiVersion=%s)`, user, kind.Kind, kind.APIVersion)
	})
}

// reference checks a binding's author for the parameters that it refers to, when
// they are new.
func (p paramRights) reference(ctx context.Context, policies, policy string, ref, old *admissionregistrationv1.ParamRef) field.ErrorList {
	if ref == nil || reflect.DeepEqual(ref, old) {
		return nil
	}
	a := p.attributes(p.kindOf(ctx, policies, policy))
	a.Name, a.Namespace = ref.Name, ref.Namespace
	if a.Namespace == "" {
		a.Namespace = everything
	}
	verb := "get"
	if ref.Selector != nil {
		verb, a.Name = "list", everything
	}
	a.Verb = verb
	return p.check(ctx, a, field.NewPath("spec", "paramRef"), func(user string) string {
		return fmt.Sprintf("user %s does not have %q permission on the object referenced by paramRef", user, verb)
	})
}

// kindOf is the kind of a policy's parameters, nil when it is not known.
func (p paramRights) kindOf(ctx context.Context, policies, policy string) *admissionregistrationv1.ParamKind {
	if p.State == nil {
		return nil
	}
	obj, err := p.State.Get(ctx, v1.WithResource(policies).GroupResource(), "", policy)
	if err != nil {
		return nil
	}
	switch policy := obj.(type) {
	case *validatingPolicy:
		return policy.Spec.ParamKind
	case *mutatingPolicy:
		return policy.Spec.ParamKind
	}
	return nil
}

// attributes ask for reading the kind's resource, and for everything when that is
// not known.
func (p paramRights) attributes(kind *admissionregistrationv1.ParamKind) authz.Attributes {
	a := authz.Attributes{ResourceRequest: true, Verb: "get", APIGroup: everything, APIVersion: everything, Resource: everything}
	if kind == nil {
		return a
	}
	version, err := schema.ParseGroupVersion(kind.APIVersion)
	if err != nil {
		return a
	}
	a.APIGroup, a.APIVersion = version.Group, version.Version
	if p.ResourceOf == nil {
		return a
	}
	if resource, ok := p.ResourceOf(version.WithKind(kind.Kind)); ok {
		a.Resource = resource.Resource
	}
	return a
}

func (p paramRights) check(ctx context.Context, a authz.Attributes, path *field.Path, message func(user string) string) field.ErrorList {
	a.User = request.UserFrom(ctx)
	if p.Authorizer == nil || a.User == nil { // the server's own writes
		return nil
	}
	decision, _, err := p.Authorizer.Authorize(ctx, a)
	switch {
	case decision == authz.Allow:
		return nil
	case err != nil:
		return field.ErrorList{field.Forbidden(path, err.Error())}
	}
	return field.ErrorList{field.Forbidden(path, message(a.User.Name))}
}
