package handlers

import (
	"context"
	"fmt"
	"mime"
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sampan-io/sampan/services/apiserver/internal/negotiation"
	"github.com/sampan-io/sampan/services/apiserver/internal/patch"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
	"github.com/sampan-io/sampan/services/apiserver/internal/rest"
)

// patchRequest is what a PATCH says.
type patchRequest struct {
	kind    types.PatchType
	cbor    bool // the applied configuration is in CBOR, not in YAML
	body    []byte
	options *metav1.PatchOptions
	write   rest.Write
}

func (e *endpoint) patchRequest(r *http.Request, info *request.Info) (*patchRequest, error) {
	kind, err := patchType(r, e.patchTypes())
	if err != nil {
		return nil, err
	}
	cbor := kind == types.ApplyCBORPatchType
	if cbor {
		kind = types.ApplyYAMLPatchType // the same, in another form
	}
	body, err := readBody(r)
	if err != nil {
		return nil, err
	}
	options, err := patchOptions(r, kind)
	if err != nil {
		return nil, err
	}
	p := &patchRequest{kind: kind, cbor: cbor, body: body, options: options}
	// Admission sees a patch as an update.
	p.write = write(r, options.FieldManager, options.DryRun, &metav1.UpdateOptions{
		TypeMeta: optionsKind("UpdateOptions"), DryRun: options.DryRun,
		FieldManager: options.FieldManager, FieldValidation: options.FieldValidation,
	})
	p.write.MayCreate = e.mayCreate(info)
	return p, nil
}

func patchType(r *http.Request, taken []types.PatchType) (types.PatchType, error) {
	mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if kind := types.PatchType(mediaType); err == nil && slices.Contains(taken, kind) {
		return kind, nil
	}
	var names []string
	for _, kind := range taken {
		names = append(names, string(kind))
	}
	return "", negotiation.UnsupportedBody(names)
}

// patch changes an object by a patch of any kind.
func (e *endpoint) patch(w http.ResponseWriter, r *http.Request, info *request.Info, subresource string) error {
	out, err := negotiation.Accept(r, e.answers())
	if err != nil {
		return err
	}
	p, err := e.patchRequest(r, info)
	if err != nil {
		return err
	}
	target := rest.Target{Namespace: e.namespace(info), Name: info.Name, Subresource: subresource}
	var result rest.Result
	if p.kind == types.ApplyYAMLPatchType {
		result, err = e.apply(r, target, p)
	} else {
		change := p.change(e.kind, e.resource.New, e.decodePatched, func(obj runtime.Object) { applyDefaults(e.resource.Strategy, obj) })
		result, err = e.store.Update(r.Context(), target, p.write, func(ctx context.Context, current runtime.Object) (runtime.Object, error) {
			if current == nil {
				return nil, apierrors.NewNotFound(e.group, info.Name)
			}
			return change(ctx, current)
		})
	}
	if err != nil {
		return err
	}
	return e.writeResult(w, r, out, result)
}

// decodePatched reads a patched document at a level of field validation.
type decodePatched func(data []byte, level string) (runtime.Object, error)

// decodeAs reads a patched document of a kind that has a Go type.
func decodeAs(kind schema.GroupVersionKind, create func() runtime.Object) decodePatched {
	return func(data []byte, level string) (runtime.Object, error) {
		d, err := decoder(negotiation.JSON, level != metav1.FieldValidationIgnore)
		if err != nil {
			return nil, err
		}
		obj, gvk, err := d.Decode(data, &kind, create())
		if obj != nil && *gvk != kind {
			return nil, fmt.Errorf("the patch changes the object's kind to %s", gvk)
		}
		return obj, err
	}
}

// change applies the patch to whatever is current.
func (p *patchRequest) change(kind schema.GroupVersionKind, create func() runtime.Object, decode decodePatched, defaults func(runtime.Object)) rest.Change {
	level := strictness(p.options.FieldValidation)
	apply := patch.Patch{
		Type: p.kind, Data: p.body, Strictness: level, New: create,
		Decode: func(data []byte) (runtime.Object, error) { return decode(data, level) },
	}
	return func(ctx context.Context, current runtime.Object) (runtime.Object, error) {
		obj, strict, err := apply.Apply(current)
		if err != nil {
			return nil, err
		}
		for _, err := range strict {
			request.AddWarning(ctx, err.Error())
		}
		obj.GetObjectKind().SetGroupVersionKind(kind)
		defaults(obj)
		return obj, nil
	}
}

// apply is server-side apply.
func (e *endpoint) apply(r *http.Request, target rest.Target, p *patchRequest) (rest.Result, error) {
	applied, err := p.configuration(r, e.kind, target)
	if err != nil {
		return rest.Result{}, err
	}
	return e.store.Apply(r.Context(), target, p.write, applied, p.force())
}

func (p *patchRequest) force() bool { return p.options.Force != nil && *p.options.Force }

// configuration is the applied configuration in the body.
func (p *patchRequest) configuration(r *http.Request, kind schema.GroupVersionKind, target rest.Target) (*unstructured.Unstructured, error) {
	content, strict, err := p.applied()
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding %s: %v", p.format(), err))
	}
	u := &unstructured.Unstructured{Object: content}
	if level := strictness(p.options.FieldValidation); strict != nil && level != metav1.FieldValidationIgnore {
		if level == metav1.FieldValidationStrict {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("error strict decoding %s: %v", p.format(), strict))
		}
		request.AddWarning(r.Context(), strict.Error())
	}
	if got := u.GroupVersionKind(); got != kind {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid object type: %v", got))
	}
	if err := checkMeta(u.Object); err != nil {
		return nil, err
	}
	if name := u.GetName(); name != "" && name != target.Name {
		return nil, nameMismatch(name, target.Name)
	}
	return u, nil
}

// checkMeta refuses metadata of the wrong type before it is read through
// accessors, which would take it for absent.
func checkMeta(object map[string]any) error {
	meta, ok := object["metadata"]
	if !ok || meta == nil {
		return nil
	}
	if _, ok := meta.(map[string]any); !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: metadata: expected a map, got %T", meta))
	}
	return nil
}
