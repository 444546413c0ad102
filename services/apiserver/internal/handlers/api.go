// Package handlers serves the resources of the API: it reads requests, asks the
// engine or the caches, and writes answers.
package handlers

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/authz"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
	"github.com/sampan-io/sampan/services/apiserver/internal/response"
	"github.com/sampan-io/sampan/services/apiserver/internal/rest"
)

// MaxBodyBytes bounds the body of a request.
const MaxBodyBytes = 3 << 20

// Config is what an API is made of.
type Config struct {
	Resources []*registry.Resource
	Engine    *rest.Engine
	Admission registry.Admission
	// Authorizer is asked for rights beyond the request's own, such as to create by
	// an update.
	Authorizer authz.Authorizer
	// MinRequestTimeout is the shortest time after which a watch that names none is
	// ended; it ends at random between that and twice that.
	MinRequestTimeout time.Duration
}

// API serves resource requests. The request's info and user must be in its
// context.
type API struct {
	config    Config
	endpoints atomic.Pointer[endpoints]
	installs  sync.Mutex // one change of endpoints at a time

	open context.Context // ends when watches must
	stop context.CancelFunc
}

// New makes the API.
func New(config Config) *API {
	a := &API{config: config}
	a.open, a.stop = context.WithCancel(context.Background())
	all := endpoints{}
	for _, resource := range config.Resources {
		all[resource.GroupVersionResource] = newEndpoint(a, resource, a.open)
	}
	a.endpoints.Store(&all)
	return a
}

// CloseWatches ends all watches, for a server that stops: their clients go on
// elsewhere, and other requests are answered.
func (a *API) CloseWatches() { a.stop() }

// ServeHTTP implements http.Handler.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	info := request.InfoFrom(r.Context())
	if info == nil || !info.IsResourceRequest {
		NotFound(w, r)
		return
	}
	e := a.endpoint(info.GroupVersionResource())
	if e == nil {
		NotFound(w, r)
		return
	}
	for _, warning := range e.resource.Warnings {
		request.AddWarning(r.Context(), warning)
	}
	if err := e.serve(w, r, info); err != nil {
		response.Error(w, r, err)
	}
}

// Long says that a request has no deadline: watches and streams.
func (a *API) Long(r *http.Request, info *request.Info) bool {
	if info.Verb == "watch" {
		return true
	}
	e := a.endpoint(info.GroupVersionResource())
	if e == nil || info.Subresource == "" {
		return false
	}
	sub := e.subresource(info.Subresource)
	if sub == nil || sub.Connect == nil || sub.Connect.Long == nil {
		return false
	}
	options := sub.Connect.NewOptions()
	return decodeConnectOptions(r.URL.Query(), options) == nil && sub.Connect.Long(options)
}

// NotFound answers as for a path that nothing serves.
func NotFound(w http.ResponseWriter, r *http.Request) {
	response.Error(w, r, &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound,
		Message: "the server could not find the requested resource", Details: &metav1.StatusDetails{},
	}})
}

func methodNotAllowed(resource schema.GroupResource, verb string) error {
	return apierrors.NewMethodNotSupported(resource, verb)
}

// serve answers a request for a resource, or returns what is wrong with it
// before anything was written.
func (e *endpoint) serve(w http.ResponseWriter, r *http.Request, info *request.Info) error {
	if err := e.checkPath(info); err != nil {
		return err
	}
	if info.Subresource != "" {
		return e.serveSubresource(w, r, info)
	}
	if !e.allows(info.Verb) {
		return methodNotAllowed(e.group, info.Verb)
	}
	switch {
	case e.resource.CreateOnly != nil:
		return e.serveCreateOnly(w, r, info)
	case e.resource.Virtual != nil:
		return e.serveVirtual(w, r, info)
	}
	switch info.Verb {
	case "get":
		return e.get(w, r, info)
	case "list":
		return e.list(w, r, info)
	case "watch":
		return e.watch(w, r, info)
	case "create":
		return e.create(w, r, info)
	case "update":
		return e.update(w, r, info, "")
	case "patch":
		return e.patch(w, r, info, "")
	case "delete":
		return e.delete(w, r, info)
	case "deletecollection":
		return e.deleteCollection(w, r, info)
	}
	return methodNotAllowed(e.group, info.Verb)
}

func (e *endpoint) allows(verb string) bool {
	if e.resource.Verbs == nil {
		return true
	}
	return slices.Contains(e.resource.Verbs, verb)
}

// checkPath refuses names that are paths, and paths that do not fit the
// resource's scope.
func (e *endpoint) checkPath(info *request.Info) error {
	notFound := apierrors.NewGenericServerResponse(http.StatusNotFound, info.Verb, e.group, info.Name, "", 0, true)
	notFound.ErrStatus.Message = "the server could not find the requested resource"
	if !e.inScope(info) {
		return notFound
	}
	switch info.Verb {
	case "create":
		if info.Subresource == "" && len(info.Parts) > 1 {
			return methodNotAllowed(e.group, info.Verb)
		}
	case "update", "patch":
		if info.Name == "" {
			return methodNotAllowed(e.group, info.Verb)
		}
	}
	if err := checkSegment("Name", info.Name); err != nil {
		return err
	}
	return checkSegment("Namespace", info.Namespace)
}

// inScope says whether the path names a namespace where the resource needs one,
// and none where it has none.
func (e *endpoint) inScope(info *request.Info) bool {
	if !e.resource.Namespaced {
		return info.Namespace == "" || e.isNamespaces()
	}
	return info.Namespace != "" || len(info.Parts) == 1 && info.Verb != "create" && info.Verb != "deletecollection"
}

func checkSegment(what, name string) error {
	if name == "" {
		return nil
	}
	if msgs := content.IsPathSegmentName(name); len(msgs) > 0 {
		return apierrors.NewBadRequest(what + " parameter invalid: " + quote(name) + ": " + strings.Join(msgs, ";"))
	}
	return nil
}

// namespace is where the request's objects are: a path to a namespace names it
// twice, but namespaces are in none.
func (e *endpoint) namespace(info *request.Info) string {
	if !e.resource.Namespaced {
		return ""
	}
	return info.Namespace
}

func (e *endpoint) isNamespaces() bool {
	return e.group == schema.GroupResource{Resource: "namespaces"}
}

// readBody reads a bounded body.
func readBody(r *http.Request) ([]byte, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	if r.ContentLength > MaxBodyBytes {
		return nil, tooLarge()
	}
	limited := &io.LimitedReader{R: r.Body, N: MaxBodyBytes + 1}
	var data []byte
	var err error
	if r.ContentLength > 0 {
		data = make([]byte, r.ContentLength)
		_, err = io.ReadFull(limited, data)
	} else {
		data, err = io.ReadAll(limited)
	}
	switch {
	case err != nil && errors.Is(err, context.DeadlineExceeded):
		return nil, apierrors.NewTimeoutError("reading the request's body took too long", 0)
	case err != nil:
		return nil, apierrors.NewBadRequest("reading the request's body: " + err.Error())
	case limited.N <= 0:
		return nil, tooLarge()
	}
	return data, nil
}

func tooLarge() error {
	return apierrors.NewRequestEntityTooLargeError("limit is 3145728")
}
