package request

import (
	"context"
	"maps"
	"sync"
)

// Annotations collects what admission notes for a request's audit event.
type Annotations struct {
	mu   sync.Mutex
	list map[string]string
}

type annotationsKey struct{}

// WithAnnotations is ctx with a fresh collector, for a request that is audited.
func WithAnnotations(ctx context.Context) (context.Context, *Annotations) {
	a := &Annotations{list: map[string]string{}}
	return context.WithValue(ctx, annotationsKey{}, a), a
}

// Annotated says that somebody reads the annotations, which may cost to make.
func Annotated(ctx context.Context) bool { return ctx.Value(annotationsKey{}) != nil }

// AddAnnotation notes a value for the audit event. The first value of a key stays;
// where nothing is audited it does nothing.
func AddAnnotation(ctx context.Context, key, value string) {
	a, _ := ctx.Value(annotationsKey{}).(*Annotations)
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, taken := a.list[key]; !taken {
		a.list[key] = value
	}
}

// List is a copy of what was noted.
func (a *Annotations) List() map[string]string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.list)
}
