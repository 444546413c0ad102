package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
)

// Topic is one resource on the bus.
type Topic struct {
	Resource   schema.GroupResource
	KeyPrefix  string // of the store's keys, with a trailing slash
	Namespaced bool
	MediaType  string // of the stored objects
	APIVersion string
}

// split takes a key of the topic apart.
func (t Topic) split(key string) (namespace, name string) {
	relative := strings.TrimPrefix(key, t.KeyPrefix)
	if !t.Namespaced {
		return "", relative
	}
	namespace, name, _ = strings.Cut(relative, "/")
	return namespace, name
}

// maxNamespaces bounds what a topic remembers of namespaces.
const maxNamespaces = 20_000

// progress is how far a topic is.
type progress struct {
	last       int64            // revision of the last change
	namespaces map[string]int64 // the same by namespace
	// others is not before the last change in any namespace that is not in
	// namespaces. Before the log's start nothing is known: a listener that is not
	// past it finds a gap there, and lists anew.
	others int64
}

func (s *progress) note(topic *Topic, event storage.Event) {
	if namespace, _ := topic.split(event.Key); namespace != "" {
		if len(s.namespaces) >= maxNamespaces {
			clear(s.namespaces)
			s.others = s.last
		}
		s.namespaces[namespace] = event.Revision
	}
	s.last = event.Revision
}

// of is the revision of the last change in a namespace.
func (s *progress) of(namespace string) int64 {
	if last, ok := s.namespaces[namespace]; ok {
		return last
	}
	return s.others
}

// readProgress finds, up to a revision, the last change of each topic, so that
// the first message already names its predecessor.
func readProgress(ctx context.Context, store storage.Interface, topics []Topic, to int64) (map[string]*progress, error) {
	for {
		all, err := readLog(ctx, store, topics, to)
		var compacted *storage.CompactedError
		if !errors.As(err, &compacted) {
			return all, err
		}
	}
}

func readLog(ctx context.Context, store storage.Interface, topics []Topic, to int64) (map[string]*progress, error) {
	const part = 1000
	compacted := store.CompactedRevision()
	all := map[string]*progress{}
	for _, topic := range topics {
		all[topic.KeyPrefix] = &progress{last: compacted, others: compacted, namespaces: map[string]int64{}}
	}
	for after := compacted; after < to; {
		events, complete, err := store.Log(ctx, "/registry/", after, part)
		if err != nil {
			return nil, fmt.Errorf("reading the log: %w", err)
		}
		for _, event := range events {
			if topic := find(topics, event.Key); topic != nil && event.Revision <= to {
				all[topic.KeyPrefix].note(topic, event)
			}
		}
		if after = complete; ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return all, nil
}

func find(topics []Topic, key string) *Topic {
	for i := range topics {
		if strings.HasPrefix(key, topics[i].KeyPrefix) {
			return &topics[i]
		}
	}
	return nil
}
