package intercept

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/admission/expression"
	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/apiserver/internal/authz"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
)

// Target is a resource and its kind.
type Target struct {
	Resource schema.GroupVersionResource
	Kind     schema.GroupVersionKind
}

// Kinds knows what is served, in all versions.
type Kinds interface {
	// Equivalents are the other resources that show the same objects and have the
	// subresource.
	Equivalents(resource schema.GroupVersionResource, subresource string) []Target
	// Convert is an object of one resource as one of an equivalent resource. The
	// object is not changed.
	Convert(ctx context.Context, obj runtime.Object, from, to schema.GroupVersionResource) (runtime.Object, error)
}

// Request is one write as webhooks and policies see it. It is used by one
// goroutine.
type Request struct {
	*admission.Attributes
	reader     registry.Reader
	kinds      Kinds
	authorizer authz.Authorizer

	others    []Target // equivalents, once known
	known     bool
	versions  map[Target]*Version
	last      *Version          // that was asked for, of them
	namespace *corev1.Namespace // once read
	nsValue   ref.Val
	all, own  ref.Val // authorizers
	frame     expression.Frame
}

// Close ends the evaluation of expressions about the request.
func (r *Request) Close() { r.frame.Close() }

// Source is where requests are seen from.
type Source struct {
	Reader     registry.Reader
	Kinds      Kinds
	Authorizer authz.Authorizer // nil leaves expressions without one
}

// Request wraps a write. It must be closed.
func (s Source) Request(a *admission.Attributes) *Request {
	return &Request{Attributes: a, reader: s.Reader, kinds: s.Kinds, authorizer: s.Authorizer}
}

// Match says whether the criteria match, and as which resource the request is
// then shown. An error means that a selector could not be checked.
func (r *Request) Match(ctx context.Context, c *Criteria) (Target, bool, error) {
	if _, excluded := r.byRules(c.excluded, c.equivalent); excluded {
		return Target{}, false, nil
	}
	target, ok := r.byRules(c.rules, c.equivalent)
	if !ok && !c.always {
		return Target{}, false, nil
	}
	if !ok {
		target = r.asSent()
	}
	if !c.objects.Empty() && !labelled(r.Object, c.objects) && !labelled(r.OldObject, c.objects) {
		return Target{}, false, nil
	}
	if c.namespaces.Empty() {
		return target, true, nil
	}
	found, err := r.inNamespaces(ctx, c.namespaces)
	return target, found, err
}

func (r *Request) asSent() Target { return Target{Resource: r.Resource, Kind: r.Kind} }

func (r *Request) byRules(rules []rule, equivalent bool) (Target, bool) {
	for i := range rules {
		if rules[i].matches(r.Attributes, r.Resource) {
			return r.asSent(), true
		}
	}
	if !equivalent || len(rules) == 0 {
		return Target{}, false
	}
	if !r.known {
		r.others, r.known = r.kinds.Equivalents(r.Resource, r.Subresource), true
	}
	for i := range rules {
		for _, other := range r.others {
			if rules[i].matches(r.Attributes, other.Resource) {
				if r.Kind.Kind != other.Kind.Kind { // a subresource with a kind of its own
					other.Kind = r.Kind
				}
				return other, true
			}
		}
	}
	return Target{}, false
}

func labelled(obj runtime.Object, selector labels.Selector) bool {
	meta, ok := obj.(metav1.Object)
	return ok && selector.Matches(labels.Set(meta.GetLabels()))
}

// inNamespaces checks the labels of the request's namespace. What is in none is
// never left out.
func (r *Request) inNamespaces(ctx context.Context, selector labels.Selector) (bool, error) {
	if isNamespace(r.Attributes) && r.Subresource == "" && (r.Operation == admission.Create || r.Operation == admission.Update) {
		return labelled(r.Object, selector), nil
	}
	if r.Namespace == "" {
		return true, nil
	}
	namespace, err := r.readNamespace(ctx)
	if err != nil {
		return false, err
	}
	return selector.Matches(labels.Set(namespace.Labels)), nil
}

func (r *Request) readNamespace(ctx context.Context) (*corev1.Namespace, error) {
	if r.namespace != nil {
		return r.namespace, nil
	}
	obj, err := r.reader.Get(ctx, corev1.Resource("namespaces"), "", r.Namespace)
	if err != nil {
		return nil, err
	}
	namespace, ok := obj.(*corev1.Namespace)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("namespace %s is a %T", r.Namespace, obj))
	}
	r.namespace = namespace
	return namespace, nil
}

// Version is the request in one version.
type Version struct {
	Target
	Object, OldObject runtime.Object

	request             *admissionv1.AdmissionRequest
	conditionVars, vars *expression.Variables
	json                [2][]byte
}

// As is the request in the version that was matched.
func (r *Request) As(ctx context.Context, target Target) (*Version, error) {
	if r.last != nil && r.last.Target == target {
		return r.last, nil
	}
	if v := r.versions[target]; v != nil {
		r.last = v
		return v, nil
	}
	v := &Version{Target: target, Object: r.Object, OldObject: r.OldObject}
	if target.Resource != r.Resource && target.Kind != r.Kind {
		for _, obj := range []*runtime.Object{&v.Object, &v.OldObject} {
			if *obj == nil {
				continue
			}
			converted, err := r.kinds.Convert(ctx, *obj, r.Resource, target.Resource)
			if err != nil {
				return nil, fmt.Errorf("failed to convert object version: %w", err)
			}
			*obj = converted
		}
	}
	if r.versions == nil {
		r.versions = map[Target]*Version{}
	}
	r.versions[target], r.last = v, v
	return v, nil
}

// Change puts an object of the version, which is taken over, in the place of the
// request's, and says whether that changes it. Absent fields are set again.
func (r *Request) Change(ctx context.Context, v *Version, obj runtime.Object) (changed bool, err error) {
	if v.Resource != r.Resource && v.Kind != r.Kind {
		if obj, err = r.kinds.Convert(ctx, obj, v.Resource, r.Resource); err != nil {
			return false, err
		}
	}
	changed, warning, err := r.Replace(obj)
	request.AddWarning(ctx, warning)
	if changed {
		r.versions, r.last = nil, nil
	}
	return changed, err
}

// AdmissionRequest is the request without its objects, for a review or for
// expressions. It must not be changed.
func (r *Request) AdmissionRequest(v *Version) *admissionv1.AdmissionRequest {
	if v.request != nil {
		return v.request
	}
	kind, resource := metav1.GroupVersionKind(r.Kind), metav1.GroupVersionResource(r.Resource)
	dryRun := r.DryRun
	v.request = &admissionv1.AdmissionRequest{
		Kind: metav1.GroupVersionKind(v.Kind), Resource: metav1.GroupVersionResource(v.Resource), SubResource: r.Subresource,
		RequestKind: &kind, RequestResource: &resource, RequestSubResource: r.Subresource,
		Name: r.Name, Namespace: r.Namespace, Operation: admissionv1.Operation(r.Operation),
		UserInfo: r.userInfo(), DryRun: &dryRun, Options: runtime.RawExtension{Object: typedOptions(r.Options)},
	}
	return v.request
}

func (r *Request) userInfo() authenticationv1.UserInfo {
	if r.User == nil { // the server's own write
		return authenticationv1.UserInfo{Username: authn.APIServerUser, Groups: []string{authn.MastersGroup, authn.AuthenticatedGroup}}
	}
	info := authenticationv1.UserInfo{Username: r.User.Name, UID: r.User.UID, Groups: r.User.Groups}
	if len(r.User.Extra) > 0 {
		info.Extra = map[string]authenticationv1.ExtraValue{}
		for key, values := range r.User.Extra {
			info.Extra[key] = values
		}
	}
	return info
}

// typedOptions are options that say what they are.
func typedOptions(options runtime.Object) runtime.Object {
	if options == nil || reflect.ValueOf(options).IsNil() {
		return nil
	}
	if !options.GetObjectKind().GroupVersionKind().Empty() {
		return options
	}
	options = options.DeepCopyObject()
	name := reflect.TypeOf(options).Elem().Name()
	options.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{Group: metav1.GroupName, Version: "v1", Kind: name})
	return options
}

// JSON are the documents of the object and of the old object; nil is none.
func (v *Version) JSON() (object, old []byte, err error) {
	for i, obj := range []runtime.Object{v.Object, v.OldObject} {
		if obj == nil || v.json[i] != nil {
			continue
		}
		if v.json[i], err = json.Marshal(obj); err != nil {
			return nil, nil, err
		}
	}
	return v.json[0], v.json[1], nil
}

// ConditionVariables are what match conditions see of the request in one version.
// They are shared.
func (r *Request) ConditionVariables(v *Version) *expression.Variables {
	if v.conditionVars != nil {
		return v.conditionVars
	}
	if r.all == nil && r.authorizer != nil {
		r.all, r.own = expression.AuthorizerValues(r.authorizer, r.User, expression.Resource{
			GroupVersionResource: r.Resource, Subresource: r.Subresource, Namespace: r.Namespace, Name: r.Name,
		})
	}
	v.conditionVars = &expression.Variables{
		Object: expression.Value(v.Object), OldObject: expression.Value(v.OldObject), Namespace: types.NullValue,
		Request: expression.RequestValue(r.AdmissionRequest(v)), Authorizer: r.all, RequestResource: r.own, Frame: &r.frame,
	}
	return v.conditionVars
}

// Variables are what a policy's expressions see of the request in one version: its
// namespace too. They are shared.
func (r *Request) Variables(ctx context.Context, v *Version) (*expression.Variables, error) {
	if v.vars != nil {
		return v.vars, nil
	}
	if r.nsValue == nil {
		var namespace *corev1.Namespace
		if r.Namespace != "" && !isNamespace(r.Attributes) {
			var err error
			if namespace, err = r.readNamespace(ctx); err != nil {
				return nil, err
			}
		}
		r.nsValue = expression.NamespaceValue(namespace)
	}
	vars := *r.ConditionVariables(v)
	vars.Namespace = r.nsValue
	v.vars = &vars
	return v.vars, nil
}
