package handlers

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sampan-io/sampan/services/apiserver/internal/watch"
)

// atOnce bounds how many objects are decoded to be converted together.
const atOnce = 500

// encodeAll are the forms of many objects. Where another program must convert them
// first, it is asked about many at once.
func (e *endpoint) encodeAll(ctx context.Context, objects []*watch.Object, form watch.Encoding) ([][]byte, error) {
	out := make([][]byte, len(objects))
	together := e.converts() && len(objects) > 1 && e.views(form)
	var missing []int
	for i, o := range objects {
		if together && !o.Has(form) {
			if missing = append(missing, i); len(missing) == atOnce {
				if err := e.encodeTogether(ctx, objects, missing, form, out); err != nil {
					return nil, err
				}
				missing = missing[:0]
			}
			continue
		}
		data, err := o.Encoded(ctx, form)
		if err != nil {
			return nil, err
		}
		out[i] = data
	}
	return out, e.encodeTogether(ctx, objects, missing, form, out)
}

// converts says that another program converts the objects.
func (e *endpoint) converts() bool {
	return e.resource.Untyped != nil && e.resource.Untyped.FromStoredAll != nil
}

// views says that a form is made of objects in the served version.
func (e *endpoint) views(form watch.Encoding) bool {
	return form.Name != e.partial.Name && form.Name != e.partPB.Name && form.Name != e.partCBOR.Name
}

// encodeTogether makes the forms of the objects at some places.
func (e *endpoint) encodeTogether(ctx context.Context, objects []*watch.Object, places []int, form watch.Encoding, out [][]byte) error {
	if len(places) == 0 {
		return nil
	}
	decoded := make([]runtime.Object, len(places))
	for i, place := range places {
		obj, err := objects[place].Decode()
		if err != nil {
			return err
		}
		decoded[i] = obj
	}
	if err := e.resource.Untyped.FromStoredAll(ctx, decoded); err != nil {
		return err
	}
	for i, place := range places {
		data, err := form.Encode(ctx, decoded[i]) // which finds nothing left to convert
		if err != nil {
			return err
		}
		if out[place], err = objects[place].Offer(ctx, form, data); err != nil {
			return err
		}
	}
	return nil
}
