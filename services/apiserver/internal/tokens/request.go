package tokens

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

const (
	defaultExpirationSeconds = 3600
	minExpirationSeconds     = 600
	maxExpirationSeconds     = 1 << 32
)

// NewCreate answers POSTs to serviceaccounts/token with tokens of issuer, for
// accounts and bound objects that getter finds.
func NewCreate(issuer *Issuer, getter authn.Getter) *registry.Create {
	requests := &requests{issuer: issuer, getter: getter}
	return &registry.Create{
		New:      func() runtime.Object { return &authenticationv1.TokenRequest{} },
		Default:  requests.setDefaults,
		Validate: requests.validate,
		Handle:   requests.handle,
	}
}

type requests struct {
	issuer *Issuer
	getter authn.Getter
}

func (r *requests) setDefaults(obj runtime.Object) {
	request := obj.(*authenticationv1.TokenRequest)
	if request.Spec.ExpirationSeconds == nil {
		seconds := int64(defaultExpirationSeconds)
		request.Spec.ExpirationSeconds = &seconds
	}
	if len(request.Spec.Audiences) == 0 {
		request.Spec.Audiences = r.issuer.config.Audiences
	}
}

func (r *requests) validate(_ context.Context, obj runtime.Object) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("spec", "expirationSeconds")
	seconds := obj.(*authenticationv1.TokenRequest).Spec.ExpirationSeconds
	switch {
	case seconds == nil:
		errs = append(errs, field.Required(path, ""))
	case *seconds < minExpirationSeconds:
		errs = append(errs, field.Invalid(path, *seconds, "may not specify a duration less than 10 minutes"))
	case *seconds > maxExpirationSeconds:
		errs = append(errs, field.Invalid(path, *seconds, "may not specify a duration larger than 2^32 seconds"))
	}
	return errs
}

func (r *requests) handle(ctx context.Context, namespace, name string, obj runtime.Object, _ bool) (runtime.Object, error) {
	request := obj.(*authenticationv1.TokenRequest)
	if err := sameIdentity(request, namespace, name); err != nil {
		return nil, err
	}
	account, err := get[*corev1.ServiceAccount](ctx, r.getter, corev1.Resource("serviceaccounts"), namespace, name)
	if err != nil {
		return nil, err
	}
	bound := Bound{Namespace: namespace, ServiceAccount: Ref{Name: name, UID: account.UID}}
	if ref := request.Spec.BoundObjectRef; ref != nil {
		if err := r.bind(ctx, &bound, ref); err != nil {
			return nil, err
		}
	}
	token, expires, err := r.issuer.Issue(Grant{Bound: bound, Audiences: request.Spec.Audiences, ExpirationSeconds: *request.Spec.ExpirationSeconds})
	if err != nil {
		return nil, err
	}
	answer := request.DeepCopy()
	answer.Name, answer.Namespace, answer.CreationTimestamp = name, namespace, metav1.NewTime(r.issuer.now())
	answer.Status = authenticationv1.TokenRequestStatus{Token: token, ExpirationTimestamp: metav1.NewTime(expires)}
	return answer, nil
}

func sameIdentity(request *authenticationv1.TokenRequest, namespace, name string) error {
	if request.Name != "" && request.Name != name {
		return apierrors.NewInvalid(authenticationv1.SchemeGroupVersion.WithKind("TokenRequest").GroupKind(), request.Name, field.ErrorList{
			field.Invalid(field.NewPath("metadata", "name"), request.Name, "must match the service account name if specified"),
		})
	}
	if request.Namespace != "" && request.Namespace != namespace {
		return apierrors.NewBadRequest(fmt.Sprintf("the namespace of the object (%s) does not match the namespace on the request (%s)", request.Namespace, namespace))
	}
	return nil
}

// bind checks the referenced object and writes it into bound, with the node of a
// pod that has one.
func (r *requests) bind(ctx context.Context, bound *Bound, ref *authenticationv1.BoundObjectReference) error {
	kind := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	var uid types.UID
	switch {
	case kind.Group == "" && kind.Kind == "Pod":
		pod, err := get[*corev1.Pod](ctx, r.getter, corev1.Resource("pods"), bound.Namespace, ref.Name)
		if err != nil {
			return err
		}
		if account := bound.ServiceAccount.Name; pod.Spec.ServiceAccountName != account {
			return apierrors.NewBadRequest(fmt.Sprintf("cannot bind token for serviceaccount %q to pod running with different serviceaccount name.", account))
		}
		uid = pod.UID
		bound.Pod = &Ref{Name: pod.Name, UID: uid}
		if bound.Node, err = r.nodeOf(ctx, pod); err != nil {
			return err
		}
	case kind.Group == "" && kind.Kind == "Node":
		node, err := get[*corev1.Node](ctx, r.getter, corev1.Resource("nodes"), "", ref.Name)
		if err != nil {
			return err
		}
		uid = node.UID
		bound.Node = &Ref{Name: node.Name, UID: uid}
	case kind.Group == "" && kind.Kind == "Secret":
		secret, err := get[*corev1.Secret](ctx, r.getter, corev1.Resource("secrets"), bound.Namespace, ref.Name)
		if err != nil {
			return err
		}
		uid = secret.UID
		bound.Secret = &Ref{Name: secret.Name, UID: uid}
	default:
		return apierrors.NewBadRequest(fmt.Sprintf("cannot bind token to object of type %s", kind))
	}
	if ref.UID != "" && ref.UID != uid {
		return apierrors.NewConflict(schema.GroupResource{Group: kind.Group, Resource: kind.Kind}, ref.Name, fmt.Errorf(
			"the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID))
	}
	return nil
}

// nodeOf is the node that pod runs on, with its uid if the node is registered.
func (r *requests) nodeOf(ctx context.Context, pod *corev1.Pod) (*Ref, error) {
	if pod.Spec.NodeName == "" {
		return nil, nil
	}
	node, err := get[*corev1.Node](ctx, r.getter, corev1.Resource("nodes"), "", pod.Spec.NodeName)
	if apierrors.IsNotFound(err) {
		return &Ref{Name: pod.Spec.NodeName}, nil
	}
	if err != nil {
		return nil, err
	}
	return &Ref{Name: node.Name, UID: node.UID}, nil
}

func get[T runtime.Object](ctx context.Context, getter authn.Getter, resource schema.GroupResource, namespace, name string) (T, error) {
	obj, err := getter.Get(ctx, resource, namespace, name)
	if err != nil {
		var none T
		return none, err
	}
	typed, ok := obj.(T)
	if !ok {
		return typed, apierrors.NewInternalError(fmt.Errorf("%s %s/%s is a %T", resource, namespace, name, obj))
	}
	return typed, nil
}
