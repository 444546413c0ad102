package rest

import (
	"context"
	"encoding/json"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/watch"
)

// selecting is a cache whose objects must be converted before their selectable
// fields are known. It reads them when they are asked for, once for each version
// of an object, and applies the selector itself.
type selecting struct {
	watch.Store
	names  map[string]bool
	fields watch.Encoding // of an object, in JSON
}

func newSelecting(cache watch.Store, resource *registry.Resource) *selecting {
	s := &selecting{Store: cache, names: map[string]bool{}}
	for name := range resource.Fields(resource.New()) {
		s.names[name] = true
	}
	s.fields = watch.Encoding{
		Name: "fields/" + resource.GroupVersion().String() + "/" + resource.Untyped.Edition,
		Encode: func(ctx context.Context, obj runtime.Object) ([]byte, error) {
			set, err := resource.Untyped.Select(ctx, obj)
			if err != nil {
				return nil, err
			}
			return json.Marshal(set)
		},
	}
	return s
}

// asks says whether a selector needs fields that objects do not carry.
func (s *selecting) asks(selector fields.Selector) bool {
	if selector == nil {
		return false
	}
	for _, r := range selector.Requirements() {
		if s.names[r.Field] {
			return true
		}
	}
	return false
}

func (s *selecting) matches(ctx context.Context, o *watch.Object, selector fields.Selector) (bool, error) {
	data, err := o.Encoded(ctx, s.fields)
	if err != nil {
		return false, err
	}
	set := fields.Set{}
	if err := json.Unmarshal(data, &set); err != nil {
		return false, err
	}
	set["metadata.name"], set["metadata.namespace"] = o.Name, o.Namespace
	return selector.Matches(set), nil
}

// List implements watch.Store.
func (s *selecting) List(ctx context.Context, opts watch.ListOptions) (*watch.List, error) {
	if !s.asks(opts.Fields) {
		return s.Store.List(ctx, opts)
	}
	selector, limit := opts.Fields, opts.Limit
	opts.Fields = nil
	var out *watch.List
	for {
		page, err := s.Store.List(ctx, opts)
		if err != nil {
			return nil, err
		}
		if out == nil {
			out = &watch.List{Revision: page.Revision, Remaining: -1}
		}
		for i, o := range page.Objects {
			ok, err := s.matches(ctx, o, selector)
			if err != nil {
				return nil, err
			}
			if !ok {
				continue
			}
			out.Objects = append(out.Objects, o)
			if limit > 0 && len(out.Objects) == limit && (i < len(page.Objects)-1 || page.Next != "") {
				out.Next = relativeKey(o)
				return out, nil
			}
		}
		if page.Next == "" {
			return out, nil
		}
		opts.StartAfter, opts.Versions = page.Next, watch.Versions{Match: watch.Exact, Revision: page.Revision}
	}
}

func relativeKey(o *watch.Object) string {
	if o.Namespace == "" {
		return o.Name
	}
	return o.Namespace + "/" + o.Name
}

// Watch implements watch.Store.
func (s *selecting) Watch(ctx context.Context, opts watch.WatchOptions) (watch.Watcher, error) {
	if !s.asks(opts.Fields) {
		return s.Store.Watch(ctx, opts)
	}
	w := &selectingWatcher{store: s, selector: opts.Fields, known: map[objectKey]bool{}}
	opts.Fields = nil
	if !opts.InitialEvents { // what the client has by now
		list, err := s.Store.List(ctx, watch.ListOptions{
			Namespace: opts.Namespace, Name: opts.Name, Labels: opts.Labels,
			Versions: watch.Versions{Match: watch.Exact, Revision: opts.Revision},
		})
		if err != nil {
			return nil, err
		}
		for _, o := range list.Objects {
			ok, err := s.matches(ctx, o, w.selector)
			if err != nil {
				return nil, err
			}
			w.known[keyOf(o)] = ok
		}
	}
	var err error
	w.Watcher, err = s.Store.Watch(ctx, opts)
	return w, err
}

// selectingWatcher turns the events of all objects into those of a selection.
type selectingWatcher struct {
	watch.Watcher
	store    *selecting
	selector fields.Selector
	known    map[objectKey]bool // what the client has
}

// Next implements watch.Watcher.
func (w *selectingWatcher) Next(ctx context.Context, buf []watch.Event) ([]watch.Event, error) {
	start := len(buf)
	for {
		events, err := w.Watcher.Next(ctx, buf)
		if err != nil {
			return buf, err
		}
		kept := events[:start]
		for _, event := range events[start:] {
			event, ok, err := w.turn(ctx, event)
			if err != nil {
				return buf, err
			}
			if ok {
				kept = append(kept, event)
			}
		}
		if len(kept) > start {
			return kept, nil
		}
	}
}

// turn is what an event is to the selection, and whether it is anything.
func (w *selectingWatcher) turn(ctx context.Context, event watch.Event) (watch.Event, bool, error) {
	if event.Object == nil {
		return event, true, nil
	}
	key := keyOf(event.Object)
	had := w.known[key]
	if event.Type == watch.Deleted {
		delete(w.known, key)
		return event, had, nil
	}
	matches, err := w.store.matches(ctx, event.Object, w.selector)
	if err != nil {
		return event, false, err
	}
	w.known[key] = matches
	switch {
	case matches && had:
		event.Type = watch.Modified
	case matches:
		event.Type = watch.Added
	case had:
		delete(w.known, key)
		event.Type = watch.Deleted
	default:
		delete(w.known, key)
		return event, false, nil
	}
	return event, true, nil
}
