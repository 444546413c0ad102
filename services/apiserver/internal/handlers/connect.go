package handlers

import (
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
)

// connect serves a stream or proxy below an object.
func (e *endpoint) connect(w http.ResponseWriter, r *http.Request, info *request.Info, sub *registry.Subresource) error {
	if !slices.Contains(sub.Connect.Methods, r.Method) {
		return methodNotAllowed(e.group, strings.ToLower(r.Method))
	}
	if len(info.Parts) > 3 && sub.Name != "proxy" {
		NotFound(w, r)
		return nil
	}
	options := sub.Connect.NewOptions()
	if err := decodeConnectOptions(r.URL.Query(), options); err != nil {
		return err
	}
	kind := options.GetObjectKind().GroupVersionKind()
	a := &admission.Attributes{
		Operation: admission.Connect, Kind: kind, Resource: e.resource.GroupVersionResource, Subresource: sub.Name,
		Namespace: info.Namespace, Name: info.Name, Object: options, User: request.UserFrom(r.Context()),
	}
	if r.Method != http.MethodGet || sub.Name != "log" { // reading a log is no connection
		if err := e.api.config.Admission.Admit(r.Context(), a); err != nil {
			return err
		}
		if err := e.api.config.Admission.Validate(r.Context(), a); err != nil {
			return err
		}
	}
	handler, err := sub.Connect.Handler(r.Context(), info.Namespace, info.Name, proxyPath(r, info), options)
	if err != nil {
		return err
	}
	if handler == nil {
		return apierrors.NewServiceUnavailable("nothing serves this connection")
	}
	handler.ServeHTTP(w, r)
	return nil
}

// proxyPath is the path behind a proxy subresource, with the final slash that
// the client wrote.
func proxyPath(r *http.Request, info *request.Info) string {
	if len(info.Parts) <= 3 {
		if strings.HasSuffix(r.URL.Path, "/") {
			return "/"
		}
		return ""
	}
	path := "/" + strings.Join(info.Parts[3:], "/")
	if strings.HasSuffix(r.URL.Path, "/") {
		path += "/"
	}
	return path
}
