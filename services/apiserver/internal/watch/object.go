package watch

import (
	"k8s.io/apimachinery/pkg/runtime"
)

// Object is one immutable version of an object as the cache holds it, shared by
// all readers.
type Object struct {
	Attributes
	Revision       int64 // its resourceVersion
	CreateRevision int64
	// wire is the protobuf envelope with the resourceVersion spliced in, or the
	// JSON document for resources that are stored as JSON.
	wire  []byte
	cache *Cache
}

// Wire is the object in the media type that it is stored in, resourceVersion
// included: for protobuf exactly the body of a GET. Shared; must not be changed.
func (o *Object) Wire() []byte { return o.wire }

// Encoded is the object in another form, made on first use and shared.
func (o *Object) Encoded(e Encoding) ([]byte, error) { return o.cache.encoded(o, e) }

// Decode is a fresh copy of the object with resourceVersion, apiVersion and
// kind set; the caller owns it.
func (o *Object) Decode() (runtime.Object, error) { return o.cache.decode(o) }

// Shared is a decoded form that all callers share and none may change. It costs
// a decode only on first use while it is held in the cache's budget.
func (o *Object) Shared() (runtime.Object, error) { return o.cache.shared(o) }
