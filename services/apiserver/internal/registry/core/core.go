// Package core has the kinds of the core group, v1.
package core

import (
	"context"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

var v1 = corev1.SchemeGroupVersion

func runtimeKind(group, version, kind string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: group, Version: version, Kind: kind}
}

// readWrite are the verbs of a subresource that is a view of its parent.
func readWrite() []string { return []string{"get", "patch", "update"} }

// Streaming makes the handlers that reach into pods; the methods are those of
// registry.Connect.
type Streaming interface {
	Exec(ctx context.Context, namespace, name, path string, options runtime.Object) (http.Handler, error)
	Attach(ctx context.Context, namespace, name, path string, options runtime.Object) (http.Handler, error)
	Log(ctx context.Context, namespace, name, path string, options runtime.Object) (http.Handler, error)
	PortForward(ctx context.Context, namespace, name, path string, options runtime.Object) (http.Handler, error)
}

// Proxying makes the handlers that pass HTTP on to pods, nodes and services.
type Proxying interface {
	PodProxy(ctx context.Context, namespace, name, path string, options runtime.Object) (http.Handler, error)
	NodeProxy(ctx context.Context, namespace, name, path string, options runtime.Object) (http.Handler, error)
	ServiceProxy(ctx context.Context, namespace, name, path string, options runtime.Object) (http.Handler, error)
}

// proxyMethods are the HTTP methods that the proxy subresources take.
func proxyMethods() []string {
	return []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodHead, http.MethodOptions}
}

func proxyVerbs() []string { return []string{"create", "delete", "get", "patch", "update"} }

func proxySubresource(kind string, options func() runtime.Object, handler func(ctx context.Context, namespace, name, path string, options runtime.Object) (http.Handler, error)) registry.Subresource {
	return registry.Subresource{
		Name: "proxy", Kind: v1.WithKind(kind), Verbs: proxyVerbs(),
		Connect: &registry.Connect{
			NewOptions: options, Methods: proxyMethods(), Handler: handler,
			Long: func(runtime.Object) bool { return true },
		},
	}
}
