// Package request carries what is known of a request through the filter chain:
// its parsed path, its user, and the warnings its answer will bear.
package request

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
)

// Info is a request's path and verb in Kubernetes' terms, parsed once.
type Info struct {
	IsResourceRequest bool
	Path              string
	// Verb is the Kubernetes verb (get, list, watch, create, update, patch, delete,
	// deletecollection) for resources, the lower-case HTTP method otherwise.
	Verb        string
	APIPrefix   string // "api" or "apis"
	APIGroup    string
	APIVersion  string
	Namespace   string
	Resource    string
	Subresource string
	Name        string
	Parts       []string // from the resource on
	// FieldSelector and LabelSelector are the raw selectors of the query, for
	// authorization by selector.
	FieldSelector string
	LabelSelector string
}

// GroupVersionResource is the resource that a resource request names.
func (i *Info) GroupVersionResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: i.APIGroup, Version: i.APIVersion, Resource: i.Resource}
}

type contextKey int

const (
	infoKey contextKey = iota
	userKey
	warningsKey
	auditIDKey
)

// WithInfo is ctx with the request's info.
func WithInfo(ctx context.Context, info *Info) context.Context {
	return context.WithValue(ctx, infoKey, info)
}

// InfoFrom is the request's info, nil outside a request.
func InfoFrom(ctx context.Context) *Info {
	info, _ := ctx.Value(infoKey).(*Info)
	return info
}

// WithUser is ctx with the authenticated user.
func WithUser(ctx context.Context, user *authn.User) context.Context {
	return context.WithValue(ctx, userKey, user)
}

// UserFrom is the authenticated user, nil outside a request.
func UserFrom(ctx context.Context) *authn.User {
	user, _ := ctx.Value(userKey).(*authn.User)
	return user
}

// WithAuditID is ctx with the request's audit id.
func WithAuditID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, auditIDKey, id)
}

// AuditIDFrom is the request's audit id, "" outside a request.
func AuditIDFrom(ctx context.Context) string {
	id, _ := ctx.Value(auditIDKey).(string)
	return id
}

// Warnings collects the warnings of one answer, in order and without repeats.
type Warnings struct {
	mu   sync.Mutex
	list []string
}

// WithWarnings is ctx with a fresh collector.
func WithWarnings(ctx context.Context) (context.Context, *Warnings) {
	w := &Warnings{}
	return context.WithValue(ctx, warningsKey, w), w
}

// AddWarning adds a warning to the answer; outside a request it does nothing.
func AddWarning(ctx context.Context, text string) {
	w, _ := ctx.Value(warningsKey).(*Warnings)
	if w == nil || text == "" {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, have := range w.list {
		if have == text {
			return
		}
	}
	w.list = append(w.list, text)
}

// List is what was collected.
func (w *Warnings) List() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.list
}
