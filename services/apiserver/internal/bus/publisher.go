package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/proto/bus"
	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
)

// Topic is one resource on the bus.
type Topic struct {
	Resource   schema.GroupResource
	KeyPrefix  string // of the store's keys, with a trailing slash
	Namespaced bool
	MediaType  string
	APIVersion string // of the stored objects
}

const (
	heartbeatEvery = 2 * time.Second
	overhead       = 1024 // of a message beyond its object
)

// Publisher tails the store's log and publishes it in order. It is the only one
// that publishes.
type Publisher struct {
	store  storage.Interface
	topics []Topic
	log    *slog.Logger

	mu    sync.Mutex
	queue []storage.Event
	wake  chan struct{}

	state map[string]*progress // by KeyPrefix; of the publishing goroutine

	published, dropped counter
}

// progress is how far a topic is.
type progress struct {
	last       int64
	namespaces map[string]int64
	oldest     int64 // the last revision of namespaces that had no change since the start
}

type counter struct {
	mu sync.Mutex
	n  int64
}

func (c *counter) add(n int64) { c.mu.Lock(); c.n += n; c.mu.Unlock() }
func (c *counter) get() int64  { c.mu.Lock(); defer c.mu.Unlock(); return c.n }

// NewPublisher publishes topics from store.
func NewPublisher(store storage.Interface, topics []Topic, log *slog.Logger) *Publisher {
	return &Publisher{store: store, topics: topics, log: log, wake: make(chan struct{}, 1), state: map[string]*progress{}}
}

// Run publishes over conn until ctx ends.
func (p *Publisher) Run(ctx context.Context, conn *nats.Conn) error {
	from, err := p.start(ctx)
	if err != nil {
		return err
	}
	if err := p.store.Attach(ctx, "/registry/", from, p.enqueue); err != nil {
		return fmt.Errorf("following the store's log: %w", err)
	}
	ticker := time.NewTicker(heartbeatEvery)
	defer ticker.Stop()
	if err := p.heartbeats(conn, from); err != nil {
		return err
	}
	at := from
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.wake:
		case <-ticker.C:
			if current, err := p.store.Current(ctx); err == nil && p.idle() {
				at = max(at, current)
			}
			if err := p.heartbeats(conn, at); err != nil {
				p.log.Warn("Heartbeats not published", "err", err)
			}
			continue
		}
		for _, event := range p.take() {
			at = event.Revision
			if err := p.publish(conn, event); err != nil {
				p.log.Warn("Event not published; listeners will repair", "key", event.Key, "err", err)
			}
		}
	}
}

// start finds for each topic the revision of its last change, so that the first
// message already names its predecessor.
func (p *Publisher) start(ctx context.Context) (from int64, err error) {
	if from, err = p.store.Current(ctx); err != nil {
		return 0, err
	}
	for {
		compacted := p.store.CompactedRevision()
		err := p.readTopics(ctx, compacted, from)
		var gone *storage.CompactedError
		if !errors.As(err, &gone) {
			return from, err
		}
	}
}

func (p *Publisher) readTopics(ctx context.Context, compacted, from int64) error {
	for _, topic := range p.topics {
		// Before the compacted revision nothing is known: a listener that is not past it
		// must list anew, which is what a gap from there leads to.
		state := &progress{last: compacted, oldest: compacted, namespaces: map[string]int64{}}
		for after := compacted; after < from; {
			events, complete, err := p.store.Log(ctx, topic.KeyPrefix, after, 1000)
			if err != nil {
				return fmt.Errorf("reading the log of %s: %w", topic.Resource, err)
			}
			for _, event := range events {
				if event.Revision <= from {
					state.note(topic, event)
				}
			}
			after = complete
		}
		p.state[topic.KeyPrefix] = state
	}
	return nil
}

func (s *progress) note(topic Topic, event storage.Event) {
	s.last = event.Revision
	if namespace, _ := topic.split(event.Key); namespace != "" {
		s.namespaces[namespace] = event.Revision
	}
}

func (t Topic) split(key string) (namespace, name string) {
	relative := strings.TrimPrefix(key, t.KeyPrefix)
	if !t.Namespaced {
		return "", relative
	}
	namespace, name, _ = strings.Cut(relative, "/")
	return namespace, name
}

// enqueue is the store's sink: it never waits.
func (p *Publisher) enqueue(batch []storage.Event) {
	p.mu.Lock()
	for _, event := range batch {
		if p.topic(event.Key) != nil {
			p.queue = append(p.queue, event)
		}
	}
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *Publisher) topic(key string) *Topic {
	for i := range p.topics {
		if strings.HasPrefix(key, p.topics[i].KeyPrefix) {
			return &p.topics[i]
		}
	}
	return nil
}

func (p *Publisher) idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.queue) == 0
}

func (p *Publisher) take() []storage.Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	queue := p.queue
	p.queue = nil
	return queue
}

func (p *Publisher) publish(conn *nats.Conn, event storage.Event) error {
	topic := p.topic(event.Key)
	state := p.state[topic.KeyPrefix]
	namespace, name := topic.split(event.Key)
	message := &bus.Event{
		Namespace: namespace, Name: name, Revision: event.Revision, PreviousOfResource: state.last,
		MediaType: topic.MediaType, ApiVersion: topic.APIVersion,
	}
	if topic.Namespaced {
		previous, known := state.namespaces[namespace]
		if !known {
			previous = state.oldest
		}
		message.PreviousOfNamespace = previous
	}
	switch event.Operation {
	case storage.Create:
		message.Type, message.Object = bus.Event_ADDED, event.Value
	case storage.Update:
		message.Type, message.Object = bus.Event_MODIFIED, event.Value
	case storage.Delete:
		message.Type, message.Object = bus.Event_DELETED, event.PrevValue
	}
	// Known as published whatever comes of it: a listener that does not get it sees
	// the gap by the next message or heartbeat.
	state.note(*topic, event)
	if int64(len(message.Object))+overhead > conn.MaxPayload() {
		message.Object = nil
	}
	data, err := proto.Marshal(message)
	if err != nil {
		return fmt.Errorf("encoding: %w", err)
	}
	if err := conn.Publish(bus.Subject(topic.Resource, namespace, name), data); err != nil {
		p.dropped.add(1)
		return err
	}
	p.published.add(1)
	return nil
}

// heartbeats tells how far each topic is; everything up to revision has been
// published.
func (p *Publisher) heartbeats(conn *nats.Conn, revision int64) error {
	var problems []error
	for _, topic := range p.topics {
		state := p.state[topic.KeyPrefix]
		beat := &bus.Heartbeat{Revision: revision, LastOfResource: state.last, LastOfNamespace: state.namespaces}
		data, err := proto.Marshal(beat)
		if err == nil {
			err = conn.Publish(bus.HeartbeatSubject(topic.Resource), data)
		}
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// Counts are the events published and those that could not be.
func (p *Publisher) Counts() (published, dropped int64) { return p.published.get(), p.dropped.get() }
