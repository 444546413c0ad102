package watch

import (
	"context"
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
	bytes []byte
	obj   runtime.Object
	size  int64
	err   error
	used  atomic.Bool // since the budget last looked

	owner *Object // whose mu guards what follows
	next  *form
	made  bool          // what is above is set
	wait  chan struct{} // closed when it is made; nil while nobody waits

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

// Encoded is the object in another form, made on first use and shared. The context
// is of this reader alone: when it ends while another makes the form, that one goes
// on.
func (o *Object) Encoded(ctx context.Context, e Encoding) ([]byte, error) {
	if o.wireForm == e.Name && e.Name != "" {
		return o.wire, nil
	}
	f, err := o.form(ctx, e.Name, func(f *form) error {
		obj, err := o.Decode()
		if err != nil {
			return err
		}
		f.bytes, err = e.Encode(ctx, obj)
		f.size = int64(len(f.bytes))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("encoding %s/%s as %s: %w", o.Namespace, o.Name, e.Name, err)
	}
	return f.bytes, nil
}

// Has says that the form is made, or being made.
func (o *Object) Has(e Encoding) bool {
	if o.wireForm == e.Name && e.Name != "" {
		return true
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for f := o.forms; f != nil; f = f.next {
		if f.name == e.Name {
			return true
		}
	}
	return false
}

// Offer is Encoded for a form that the caller has made, if nobody else has.
func (o *Object) Offer(ctx context.Context, e Encoding, data []byte) ([]byte, error) {
	f, err := o.form(ctx, e.Name, func(f *form) error {
		f.bytes, f.size = data, int64(len(data))
		return nil
	})
	if err != nil {
		return nil, err
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
	f, err := o.form(context.Background(), sharedForm, func(f *form) error {
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

// form finds or makes a derived form. Readers that come together make it once,
// unless the time of the one who makes it ends before theirs.
func (o *Object) form(ctx context.Context, name string, fill func(*form) error) (*form, error) {
	for {
		f, mine, kept := o.find(name)
		if mine {
			return o.fill(f, kept, fill)
		}
		if err := f.await(ctx); err != nil {
			return nil, err
		}
		if f.err == nil {
			if !f.used.Load() {
				f.used.Store(true)
			}
			return f, nil
		}
		if !errors.Is(f.err, context.Canceled) && !errors.Is(f.err, context.DeadlineExceeded) {
			return nil, f.err
		}
	}
}

// find is the form of that name. One that is new is the caller's to fill, and kept
// says that others find it.
func (o *Object) find(name string) (f *form, mine, kept bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for f = o.forms; f != nil; f = f.next {
		if f.name == name {
			return f, false, true
		}
	}
	f = &form{name: name, owner: o, err: errFormUnfinished}
	if !o.loose {
		f.next, o.forms = o.forms, f
	}
	return f, true, !o.loose
}

// fill makes a form that this reader has begun.
func (o *Object) fill(f *form, kept bool, fill func(*form) error) (*form, error) {
	defer func() { // even when fill panics: others wait
		o.mu.Lock()
		f.made = true
		if f.wait != nil {
			close(f.wait)
		}
		o.mu.Unlock()
		if f.err != nil {
			o.drop(f)
		}
	}()
	f.err = fill(f)
	f.size += formOverhead
	if f.err != nil {
		return nil, f.err
	}
	if kept {
		o.cache.options.Budget.charge(f)
	}
	return f, nil
}

// await returns when the form is made, or ctx has ended.
func (f *form) await(ctx context.Context) error {
	f.owner.mu.Lock()
	if f.made {
		f.owner.mu.Unlock()
		return nil
	}
	if f.wait == nil {
		f.wait = make(chan struct{})
	}
	wait := f.wait
	f.owner.mu.Unlock()
	select {
	case <-wait:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
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
