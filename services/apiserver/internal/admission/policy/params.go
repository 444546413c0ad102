// Package policy is the admission plugins ValidatingAdmissionPolicy and
// MutatingAdmissionPolicy: it checks and changes writes by CEL expressions that
// are configured in the cluster.
package policy

import (
	"context"
	"errors"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
)

// Kind is a kind that is served.
type Kind interface {
	Namespaced() bool
	// Read and ReadAll give shared objects of the kind.
	Read(ctx context.Context, namespace, name string) (runtime.Object, error)
	ReadAll(ctx context.Context, namespace string, selector labels.Selector) ([]runtime.Object, error)
	// Types converts objects for structured merges.
	Types() managedfields.TypeConverter
}

// Kinds finds kinds.
type Kinds interface {
	Kind(kind schema.GroupVersionKind) (Kind, bool)
}

// parameters are where a binding's parameters come from.
type parameters struct {
	kind     *admissionregistrationv1.ParamKind
	ref      *admissionregistrationv1.ParamRef
	selector labels.Selector // of ref, nil for one by name
	invalid  error
	none     []runtime.Object // one that is nil
}

func newParameters(kind *admissionregistrationv1.ParamKind, ref *admissionregistrationv1.ParamRef) parameters {
	p := parameters{kind: kind, ref: ref, none: []runtime.Object{nil}}
	if ref != nil && ref.Selector != nil {
		p.selector, p.invalid = metav1.LabelSelectorAsSelector(ref.Selector)
	}
	return p
}

// collect are the parameters for a request in a namespace: one that is nil where
// the policy takes none, and none where the binding allows that there are none.
func (p *parameters) collect(ctx context.Context, kinds Kinds, namespace string) ([]runtime.Object, error) {
	if p.kind == nil || p.ref == nil {
		return p.none, nil
	}
	if p.invalid != nil {
		return nil, p.invalid
	}
	version, err := schema.ParseGroupVersion(p.kind.APIVersion)
	if err != nil {
		return nil, err
	}
	kind, ok := kinds.Kind(version.WithKind(p.kind.Kind))
	if !ok {
		return nil, fmt.Errorf("paramKind kind `%v` not known", version.WithKind(p.kind.Kind))
	}
	if namespace, err = p.namespace(kind, namespace); err != nil {
		return nil, err
	}
	var found []runtime.Object
	if p.selector != nil {
		found, err = kind.ReadAll(ctx, namespace, p.selector)
	} else {
		var one runtime.Object
		if one, err = kind.Read(ctx, namespace, p.ref.Name); err == nil {
			found = []runtime.Object{one}
		}
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	if action := p.ref.ParameterNotFoundAction; len(found) == 0 && (action == nil || *action == admissionregistrationv1.DenyAction) {
		return nil, errors.New("no params found for policy binding with `Deny` parameterNotFoundAction")
	}
	return found, nil
}

func (p *parameters) namespace(kind Kind, namespace string) (string, error) {
	switch {
	case !kind.Namespaced() && p.ref.Namespace != "":
		return "", errors.New("paramRef.namespace must not be provided for a cluster-scoped `paramKind`")
	case !kind.Namespaced():
		return "", nil
	case p.ref.Namespace != "":
		return p.ref.Namespace, nil
	case namespace == "":
		return "", errors.New("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources")
	}
	return namespace, nil
}
