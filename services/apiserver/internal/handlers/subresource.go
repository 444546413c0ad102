package handlers

import (
	"net/http"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"context"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/negotiation"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
	"github.com/sampan-io/sampan/services/apiserver/internal/rest"
)

func (e *endpoint) subresource(name string) *registry.Subresource {
	for i := range e.resource.Subresources {
		if sub := &e.resource.Subresources[i]; sub.Name == name {
			return sub
		}
	}
	return nil
}

func (e *endpoint) serveSubresource(w http.ResponseWriter, r *http.Request, info *request.Info) error {
	sub := e.subresource(info.Subresource)
	if sub == nil || len(info.Parts) > 3 && sub.Connect == nil {
		NotFound(w, r)
		return nil
	}
	if sub.Connect != nil {
		return e.connect(w, r, info, sub)
	}
	if !hasVerb(sub.Verbs, info.Verb) {
		return methodNotAllowed(e.group, info.Verb)
	}
	switch {
	case sub.Create != nil:
		return e.createSubresource(w, r, info, sub)
	case sub.Scale != nil:
		return e.serveScale(w, r, info)
	}
	switch info.Verb {
	case "get":
		return e.get(w, r, info)
	case "update":
		return e.update(w, r, info, sub.Name)
	case "patch":
		return e.patch(w, r, info, sub.Name)
	}
	return methodNotAllowed(e.group, info.Verb)
}

var scaleKind = autoscalingv1.SchemeGroupVersion.WithKind("Scale")

func (e *endpoint) serveScale(w http.ResponseWriter, r *http.Request, info *request.Info) error {
	out, err := negotiation.Accept(r, negotiation.Endpoint{})
	if err != nil {
		return err
	}
	scaler := e.store.Scaler()
	var scale *autoscalingv1.Scale
	switch info.Verb {
	case "get":
		scale, err = scaler.Get(r.Context(), e.namespace(info), info.Name)
	case "update":
		scale, err = e.updateScale(r, info, scaler)
	case "patch":
		scale, err = e.patchScale(r, info, scaler)
	default:
		err = methodNotAllowed(e.group, info.Verb)
	}
	if err != nil {
		return err
	}
	return e.writeObject(w, r, http.StatusOK, out, scale)
}

func newScale() runtime.Object { return &autoscalingv1.Scale{} }

func (e *endpoint) updateScale(r *http.Request, info *request.Info, scaler *rest.Scaler) (*autoscalingv1.Scale, error) {
	options, err := updateOptions(r)
	if err != nil {
		return nil, err
	}
	obj, err := decodeBody(r, options.FieldValidation, scaleKind, newScale())
	if err != nil {
		return nil, err
	}
	return scaler.Update(r.Context(), e.namespace(info), info.Name, write(r, options.FieldManager, options.DryRun, options),
		func(context.Context, runtime.Object) (runtime.Object, error) { return obj.DeepCopyObject(), nil })
}

func (e *endpoint) patchScale(r *http.Request, info *request.Info, scaler *rest.Scaler) (*autoscalingv1.Scale, error) {
	p, err := e.patchRequest(r, info)
	if err != nil {
		return nil, err
	}
	if p.kind == types.ApplyYAMLPatchType {
		applied, err := p.configuration(r, scaleKind, rest.Target{Namespace: e.namespace(info), Name: info.Name})
		if err != nil {
			return nil, err
		}
		return scaler.Apply(r.Context(), e.namespace(info), info.Name, p.write, applied, p.force())
	}
	return scaler.Update(r.Context(), e.namespace(info), info.Name, p.write, p.change(scaleKind, newScale, decodeAs(scaleKind, newScale), func(runtime.Object) {}))
}

// createSubresource answers a POST below an object.
func (e *endpoint) createSubresource(w http.ResponseWriter, r *http.Request, info *request.Info, sub *registry.Subresource) error {
	out, err := negotiation.Accept(r, negotiation.Endpoint{})
	if err != nil {
		return err
	}
	options, err := createOptions(r)
	if err != nil {
		return err
	}
	kind := sub.Kind
	if kind.Empty() {
		kind = e.kind
	}
	obj, err := decodeBody(r, options.FieldValidation, kind, sub.Create.New())
	if err != nil {
		return err
	}
	if o, ok := obj.(metav1.Object); ok {
		if err := rest.MatchNamespace(o, info.Namespace); err != nil {
			return err
		}
	}
	if sub.Create.Default != nil {
		sub.Create.Default(obj)
	}
	a := e.attributes(r, info, kind, obj, options, options.DryRun)
	a.Settle = settling(sub.Create.Default)
	if err := e.api.config.Admission.Admit(r.Context(), a); err != nil {
		return err
	}
	if sub.Create.Validate != nil {
		if errs := sub.Create.Validate(r.Context(), obj); len(errs) > 0 {
			return apierrors.NewInvalid(kind.GroupKind(), info.Name, errs)
		}
	}
	if err := e.api.config.Admission.Validate(r.Context(), a); err != nil {
		return err
	}
	answer, err := sub.Create.Handle(admission.Internal(r.Context()), e.namespace(info), info.Name, obj, dryRun(options.DryRun))
	if err != nil {
		return rest.StatusError(err, e.group, info.Name)
	}
	return e.writeCreated(w, r, out, answer, kind)
}

// writeCreated answers 201 with what a create that is not stored gave.
func (e *endpoint) writeCreated(w http.ResponseWriter, r *http.Request, out negotiation.Output, answer runtime.Object, kind schema.GroupVersionKind) error {
	if status, ok := answer.(*metav1.Status); ok {
		status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		if status.Code == 0 {
			status.Code = http.StatusCreated
		}
		return e.writeObject(w, r, int(status.Code), out, status)
	}
	if answer.GetObjectKind().GroupVersionKind().Empty() {
		answer.GetObjectKind().SetGroupVersionKind(kind)
	}
	return e.writeObject(w, r, http.StatusCreated, out, answer)
}

func (e *endpoint) attributes(r *http.Request, info *request.Info, kind schema.GroupVersionKind, obj runtime.Object, options runtime.Object, dry []string) *admission.Attributes {
	return &admission.Attributes{
		Operation: admission.Create, Kind: kind, Resource: e.resource.GroupVersionResource, Subresource: info.Subresource,
		Namespace: info.Namespace, Name: info.Name, Object: obj, Options: options, DryRun: dryRun(dry), User: request.UserFrom(r.Context()),
	}
}

// settling sets absent fields of an object that admission has changed.
func settling(defaults func(runtime.Object)) func(runtime.Object) error {
	return func(obj runtime.Object) error {
		if defaults != nil {
			defaults(obj)
		}
		return nil
	}
}

// serveCreateOnly answers a POST to a resource that is not stored.
func (e *endpoint) serveCreateOnly(w http.ResponseWriter, r *http.Request, info *request.Info) error {
	if info.Verb != "create" {
		return methodNotAllowed(e.group, info.Verb)
	}
	out, err := negotiation.Accept(r, negotiation.Endpoint{})
	if err != nil {
		return err
	}
	options, err := createOptions(r)
	if err != nil {
		return err
	}
	obj, err := decodeBody(r, options.FieldValidation, e.kind, e.resource.New())
	if err != nil {
		return err
	}
	if o, ok := obj.(metav1.Object); ok && e.resource.Namespaced {
		if err := rest.MatchNamespace(o, info.Namespace); err != nil {
			return err
		}
	}
	strategy := e.resource.Strategy
	applyDefaults(strategy, obj)
	a := e.attributes(r, info, e.kind, obj, options, options.DryRun)
	a.Settle = settling(func(obj runtime.Object) { applyDefaults(strategy, obj) })
	if err := e.api.config.Admission.Admit(r.Context(), a); err != nil {
		return err
	}
	if strategy != nil && strategy.Validate != nil {
		if errs := strategy.Validate(r.Context(), obj); len(errs) > 0 {
			return apierrors.NewInvalid(e.kind.GroupKind(), "", errs)
		}
	}
	if err := e.api.config.Admission.Validate(r.Context(), a); err != nil {
		return err
	}
	answer, err := e.resource.CreateOnly(r.Context(), obj, dryRun(options.DryRun))
	if err != nil {
		return rest.StatusError(err, e.group, "")
	}
	return e.writeCreated(w, r, out, answer, e.kind)
}

// serveVirtual answers reads of computed objects.
func (e *endpoint) serveVirtual(w http.ResponseWriter, r *http.Request, info *request.Info) error {
	out, err := negotiation.Accept(r, e.answers())
	if err != nil {
		return err
	}
	var obj runtime.Object
	kind := e.kind
	switch info.Verb {
	case "get":
		obj, err = e.resource.Virtual.Get(r.Context(), e.namespace(info), info.Name)
	case "list":
		obj, err = e.resource.Virtual.List(r.Context(), info.Namespace)
		kind = e.kind.GroupVersion().WithKind(e.listKind)
		if err == nil {
			err = e.selectVirtual(r, obj)
		}
		if err == nil && out.View == negotiation.Table {
			return e.writeVirtualTable(w, r, out, obj)
		}
		out.View = negotiation.Whole
	default:
		err = methodNotAllowed(e.group, info.Verb)
	}
	if err != nil {
		return rest.StatusError(err, e.group, info.Name)
	}
	obj.GetObjectKind().SetGroupVersionKind(kind)
	return e.writeObject(w, r, http.StatusOK, out, obj)
}

// selectVirtual leaves those of a list that the request's selectors select.
func (e *endpoint) selectVirtual(r *http.Request, list runtime.Object) error {
	l, err := e.listing(r, "")
	if err != nil || l.labels.Empty() && l.fields.Empty() {
		return err
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	var selected []runtime.Object
	for _, item := range items {
		o, err := meta.Accessor(item)
		if err != nil {
			return apierrors.NewInternalError(err)
		}
		own := fields.Set{"metadata.name": o.GetName(), "metadata.namespace": o.GetNamespace()}
		if l.labels.Matches(labels.Set(o.GetLabels())) && l.fields.Matches(own) {
			selected = append(selected, item)
		}
	}
	if err := meta.SetList(list, selected); err != nil {
		return apierrors.NewInternalError(err)
	}
	return nil
}

// writeVirtualTable prints a list of computed objects.
func (e *endpoint) writeVirtualTable(w http.ResponseWriter, r *http.Request, out negotiation.Output, list runtime.Object) error {
	items, err := meta.ExtractList(list)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	for _, item := range items {
		item.GetObjectKind().SetGroupVersionKind(e.kind)
	}
	table, err := e.tableOfObject(r, out, items, metav1.ListMeta{})
	if err != nil {
		return err
	}
	return writeTable(w, r, http.StatusOK, out, table)
}
