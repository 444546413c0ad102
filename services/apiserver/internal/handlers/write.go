package handlers

import (
	"context"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sampan-io/sampan/services/apiserver/internal/authz"
	"github.com/sampan-io/sampan/services/apiserver/internal/negotiation"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
	"github.com/sampan-io/sampan/services/apiserver/internal/response"
	"github.com/sampan-io/sampan/services/apiserver/internal/rest"
)

// create stores the object in the body.
func (e *endpoint) create(w http.ResponseWriter, r *http.Request, info *request.Info) error {
	out, err := negotiation.Accept(r, e.answers())
	if err != nil {
		return err
	}
	options, err := createOptions(r)
	if err != nil {
		return err
	}
	obj, err := e.body(r, options.FieldValidation)
	if err != nil {
		return err
	}
	applyDefaults(e.resource.Strategy, obj)
	result, err := e.store.Create(r.Context(), e.namespace(info), obj, write(r, options.FieldManager, options.DryRun, options))
	if err != nil {
		return err
	}
	return e.writeResult(w, r, out, result)
}

func applyDefaults(strategy *registry.Strategy, obj runtime.Object) {
	if strategy != nil && strategy.Default != nil {
		strategy.Default(obj)
	}
}

// writeResult answers with what a write left behind.
func (e *endpoint) writeResult(w http.ResponseWriter, r *http.Request, out negotiation.Output, result rest.Result) error {
	code := http.StatusOK
	if result.Created {
		code = http.StatusCreated
	}
	if result.Stored != nil {
		return e.writeCached(w, r, code, out, result.Stored)
	}
	return e.writeObject(w, r, code, out, result.Object)
}

// writeObject answers with an object that is not in the cache.
func (e *endpoint) writeObject(w http.ResponseWriter, r *http.Request, code int, out negotiation.Output, obj runtime.Object) error {
	if _, isStatus := obj.(*metav1.Status); !isStatus {
		switch out.View {
		case negotiation.Table:
			table, err := e.tableOfObject(r, out, []runtime.Object{obj}, metav1.ListMeta{})
			if err != nil {
				return err
			}
			return writeTable(w, r, code, out, table)
		case negotiation.Metadata:
			partial, err := partialOf(obj)
			if err != nil {
				return apierrors.NewInternalError(err)
			}
			obj = partial
		}
	}
	data, err := response.Encode(obj, out)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	response.Bytes(w, r, code, out, data)
	return nil
}

// update replaces an object, or the part of it that a subresource is.
func (e *endpoint) update(w http.ResponseWriter, r *http.Request, info *request.Info, subresource string) error {
	out, err := negotiation.Accept(r, e.answers())
	if err != nil {
		return err
	}
	options, err := updateOptions(r)
	if err != nil {
		return err
	}
	obj, err := e.body(r, options.FieldValidation)
	if err != nil {
		return err
	}
	applyDefaults(e.resource.Strategy, obj)
	wr := write(r, options.FieldManager, options.DryRun, options)
	wr.MayCreate = e.mayCreate(info)
	target := rest.Target{Namespace: e.namespace(info), Name: info.Name, Subresource: subresource}
	result, err := e.store.Update(r.Context(), target, wr, func(context.Context, runtime.Object) (runtime.Object, error) {
		return obj.DeepCopyObject(), nil
	})
	if err != nil {
		return err
	}
	return e.writeResult(w, r, out, result)
}

// mayCreate asks for the right to create, which an update or apply of an object
// that does not exist needs too.
func (e *endpoint) mayCreate(info *request.Info) func(context.Context) error {
	return func(ctx context.Context) error {
		user := request.UserFrom(ctx)
		a := authz.Attributes{
			User: user, ResourceRequest: true, Verb: "create", Namespace: info.Namespace, APIGroup: info.APIGroup,
			APIVersion: info.APIVersion, Resource: info.Resource, Name: info.Name, Path: info.Path,
		}
		return authorize(ctx, e.api.config.Authorizer, a)
	}
}

// authorize is a 403 unless the authorizer allows the action.
func authorize(ctx context.Context, authorizer authz.Authorizer, a authz.Attributes) error {
	if authorizer == nil {
		return nil
	}
	decision, reason, err := authorizer.Authorize(ctx, a)
	if decision == authz.Allow {
		return nil
	}
	if err != nil && reason == "" {
		reason = err.Error()
	}
	return response.Forbidden(a, reason)
}

// delete deletes one object.
func (e *endpoint) delete(w http.ResponseWriter, r *http.Request, info *request.Info) error {
	out, err := negotiation.Accept(r, e.answers())
	if err != nil {
		return err
	}
	options, err := validDeleteOptions(r)
	if err != nil {
		return err
	}
	deletion, err := e.store.Delete(r.Context(), e.namespace(info), info.Name, options, write(r, "", options.DryRun, options))
	if err != nil {
		return err
	}
	code := http.StatusOK
	//nolint:staticcheck // SA1019: older clients send orphanDependents.
	if orphan := options.OrphanDependents; !deletion.Gone && orphan != nil && !*orphan {
		code = http.StatusAccepted
	}
	if deletion.Gone && !e.returnsDeleted() {
		return e.writeDeleted(w, r, out, deletion)
	}
	if deletion.Stored != nil {
		return e.writeCached(w, r, code, out, deletion.Stored)
	}
	return e.writeObject(w, r, code, out, deletion.Object)
}

func (e *endpoint) returnsDeleted() bool {
	return e.resource.ReturnDeleted || e.resource.Strategy != nil && e.resource.Strategy.GracePeriod != nil
}

// writeDeleted answers with a Status that names what has gone.
func (e *endpoint) writeDeleted(w http.ResponseWriter, r *http.Request, out negotiation.Output, deletion rest.Deletion) error {
	obj, err := deletion.Decode()
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	meta, err := metaOf(obj)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	return e.writeObject(w, r, http.StatusOK, negotiation.Output{Format: out.Format, Pretty: out.Pretty}, &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusSuccess,
		Details:  &metav1.StatusDetails{Name: meta.Name, Group: e.group.Group, Kind: e.group.Resource, UID: meta.UID},
	})
}

func validDeleteOptions(r *http.Request) (*metav1.DeleteOptions, error) {
	options, err := deleteOptions(r)
	if err != nil {
		return nil, err
	}
	return options, invalidOptions("DeleteOptions", validation.ValidateDeleteOptions(options))
}

// deleteCollection deletes what the request selects.
func (e *endpoint) deleteCollection(w http.ResponseWriter, r *http.Request, info *request.Info) error {
	out, err := negotiation.Accept(r, e.answers())
	if err != nil {
		return err
	}
	l, err := e.listing(r, "")
	if err != nil {
		return err
	}
	selection, err := e.selection(l, e.namespace(info))
	if err != nil {
		return err
	}
	options, err := validDeleteOptions(r)
	if err != nil {
		return err
	}
	list, err := e.store.DeleteCollection(r.Context(), selection, options, write(r, "", options.DryRun, options))
	if err != nil {
		return e.listError(err, l, selection)
	}
	meta := listMeta(list)
	if out.View == negotiation.Table {
		table, err := e.tableOf(r, out, list.Objects, meta)
		if err != nil {
			return err
		}
		return writeTable(w, r, http.StatusOK, out, table)
	}
	return e.writeList(w, r, out, list, meta)
}

func nameMismatch(name, want string) error {
	return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", name, want))
}
