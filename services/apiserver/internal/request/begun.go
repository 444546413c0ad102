package request

import "context"

type begunKey struct{}

// WithBegun is ctx with what to do once a watch has sent what there was.
func WithBegun(ctx context.Context, begun func()) context.Context {
	return context.WithValue(ctx, begunKey{}, begun)
}

// Begun says that the request's watch has begun: from now on it only waits.
func Begun(ctx context.Context) {
	if begun, ok := ctx.Value(begunKey{}).(func()); ok {
		begun()
	}
}
