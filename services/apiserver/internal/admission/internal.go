package admission

import "context"

type internalKey struct{}

// Internal is ctx for writes that the server makes for itself: what it needs to be
// ready, what it says of webhooks, and what a request that passed admission comes
// down to. Webhooks and policies do not see them, so that none can keep the server
// from being repaired, and none is asked twice.
func Internal(ctx context.Context) context.Context {
	return context.WithValue(ctx, internalKey{}, true)
}

// IsInternal says whether ctx is that of such a write.
func IsInternal(ctx context.Context) bool { return ctx.Value(internalKey{}) != nil }
