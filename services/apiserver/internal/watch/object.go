package watch

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
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
	wire     []byte
	wireForm string // the encoding that wire is too, "" for none
	cache    *Cache

	mu    sync.Mutex
	forms *form // a list, for there are one or two
	// loose says that neither the cache nor its ring holds the object: whoever has
	// it gets forms that are not kept.
	loose bool
}

// form is a derived form of an object: bytes, or the shared decoded object.
type form struct {
	name  string
	once  sync.Once
	bytes []byte
	obj   runtime.Object
	size  int64
	err   error
	used  atomic.Bool // since the budget last looked

	owner *Object // whose mu guards next
	next  *form

	older, newer     *form // in the budget's list, guarded by its mu, as are
	listed, released bool
}

// formOverhead is what a form costs besides its content.
const formOverhead = 200

// sharedForm is the name of the decoded form; encodings have other names.
const sharedForm = "\x00shared"

// decodedFactor is how many times larger a decoded object is than its bytes, by
// experience.
const decodedFactor = 4

// Wire is the object in the media type that it is stored in, resourceVersion
// included: for protobuf exactly the body of a GET. Shared; must not be changed.
func (o *Object) Wire() []byte { return o.wire }

// Encoded is the object in another form, made on first use and shared.
func (o *Object) Encoded(e Encoding) ([]byte, error) {
	if o.wireForm == e.Name && e.Name != "" {
		return o.wire, nil
	}
	f, err := o.form(e.Name, func(f *form) error {
		obj, err := o.Decode()
		if err != nil {
			return err
		}
		f.bytes, err = e.Encode(obj)
		f.size = int64(len(f.bytes))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("encoding %s/%s as %s: %w", o.Namespace, o.Name, e.Name, err)
	}
	return f.bytes, nil
}

// Decode is a fresh copy of the object with resourceVersion, apiVersion and
// kind set; the caller owns it.
func (o *Object) Decode() (runtime.Object, error) {
	obj, err := o.cache.config.Decode(o.wire)
	if err != nil {
		return nil, fmt.Errorf("decoding %s/%s: %w", o.Namespace, o.Name, err)
	}
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return nil, fmt.Errorf("decoding %s/%s: %w", o.Namespace, o.Name, err)
	}
	accessor.SetResourceVersion(strconv.FormatInt(o.Revision, 10))
	return obj, nil
}

// Shared is a decoded form that all callers share and none may change. It costs
// a decode only on first use while it is held in the cache's budget.
func (o *Object) Shared() (runtime.Object, error) {
	f, err := o.form(sharedForm, func(f *form) error {
		obj, err := o.Decode()
		f.obj, f.size = obj, decodedFactor*int64(len(o.wire))
		return err
	})
	if err != nil {
		return nil, err
	}
	return f.obj, nil
}

var errFormUnfinished = errors.New("making a form of the object ended without one")

// form finds or makes a derived form. Readers that come together make it once.
func (o *Object) form(name string, fill func(*form) error) (*form, error) {
	o.mu.Lock()
	f, keep := o.forms, !o.loose
	for f != nil && f.name != name {
		f = f.next
	}
	if f == nil {
		f = &form{name: name, owner: o, err: errFormUnfinished}
		if keep {
			f.next, o.forms = o.forms, f
		}
	}
	o.mu.Unlock()
	made := false
	f.once.Do(func() {
		f.err = fill(f)
		f.size += formOverhead
		made = true
	})
	switch {
	case f.err != nil:
		o.drop(f)
		return nil, f.err
	case made && keep:
		o.cache.options.Budget.charge(f)
	case !f.used.Load():
		f.used.Store(true)
	}
	return f, nil
}

// drop forgets a form that the budget has no room for.
func (o *Object) drop(gone *form) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for at := &o.forms; *at != nil; at = &(*at).next {
		if *at == gone {
			*at = gone.next
			return
		}
	}
}

// retire gives the forms' room back: the cache no longer holds the object.
func (o *Object) retire() {
	o.mu.Lock()
	forms := o.forms
	o.forms, o.loose = nil, true
	o.mu.Unlock()
	for f := forms; f != nil; {
		next := f.next
		o.cache.options.Budget.release(f)
		f = next
	}
}
