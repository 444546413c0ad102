package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/sampan-io/sampan/proto/bus"
	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
)

const (
	heartbeatEvery = 2 * time.Second
	overhead       = 1024 // bytes of a message beyond its object
	// maxQueue is how many events wait with their objects; those beyond are
	// published without, and listeners read them from the API server.
	maxQueue       = 10_000
	defaultPayload = 1 << 20 // of NATS, while no server has said otherwise
)

// Publisher tails the store's log and publishes it in order. It is the only one
// that publishes.
type Publisher struct {
	store  storage.Interface
	topics []Topic
	log    *slog.Logger

	mu    sync.Mutex
	queue []storage.Event
	seen  int64 // revision of the newest event that the store has delivered
	wake  chan struct{}

	state map[string]*progress // by KeyPrefix; of the goroutine that runs

	published, dropped, bytes atomic.Int64
}

// NewPublisher publishes topics from store.
func NewPublisher(store storage.Interface, topics []Topic, log *slog.Logger) *Publisher {
	return &Publisher{store: store, topics: topics, log: log, wake: make(chan struct{}, 1)}
}

// Run publishes over conn until ctx ends. Interest, when it is not nil, says
// whether anyone listens to a subject; heartbeats of namespaces that nobody
// listens to are spared.
func (p *Publisher) Run(ctx context.Context, conn *nats.Conn, interest func(subject string) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // detaches from the store
	from, err := p.store.Current(ctx)
	if err != nil {
		return fmt.Errorf("reading the store's revision: %w", err)
	}
	if p.state, err = readProgress(ctx, p.store, p.topics, from); err != nil {
		return err
	}
	p.mu.Lock()
	p.queue, p.seen = nil, from
	p.mu.Unlock()
	if err := p.store.Attach(ctx, "/registry/", from, p.enqueue); err != nil {
		return fmt.Errorf("following the store's log: %w", err)
	}
	ticker := time.NewTicker(heartbeatEvery)
	defer ticker.Stop()
	beat := true
	for {
		if beat {
			if err := p.heartbeats(conn, interest); err != nil {
				p.log.Warn("Heartbeats are not published", "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.wake:
			p.drain(conn)
			beat = false
		case <-ticker.C:
			beat = true
		}
	}
}

// enqueue is the store's sink: it never waits.
func (p *Publisher) enqueue(batch []storage.Event) {
	p.mu.Lock()
	for _, event := range batch {
		p.seen = event.Revision
		if find(p.topics, event.Key) == nil {
			continue
		}
		event.Hint = nil
		if len(p.queue) >= maxQueue {
			event.Value, event.PrevValue = nil, nil
		}
		p.queue = append(p.queue, event)
	}
	waiting := len(p.queue) > 0
	p.mu.Unlock()
	if !waiting {
		return
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// drain publishes what waits, and returns the revision up to which everything
// has been published.
func (p *Publisher) drain(conn *nats.Conn) int64 {
	for {
		p.mu.Lock()
		queue, seen := p.queue, p.seen
		p.queue = nil
		p.mu.Unlock()
		if len(queue) == 0 {
			return seen
		}
		for _, event := range queue {
			if err := p.publish(conn, event); err != nil {
				p.dropped.Add(1)
				p.log.Warn("Event is not published; listeners will repair", "key", event.Key, "err", err)
			}
		}
	}
}

func (p *Publisher) publish(conn *nats.Conn, event storage.Event) error {
	topic := find(p.topics, event.Key)
	state := p.state[topic.KeyPrefix]
	namespace, name := topic.split(event.Key)
	message := &bus.Event{
		Namespace: namespace, Name: name, Revision: event.Revision, PreviousOfResource: state.last,
		MediaType: topic.MediaType, ApiVersion: topic.APIVersion,
	}
	if topic.Namespaced {
		message.PreviousOfNamespace = state.of(namespace)
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
	state.note(topic, event)
	limit := conn.MaxPayload()
	if limit <= 0 {
		limit = defaultPayload
	}
	if int64(len(message.Object))+overhead > limit {
		message.Object = nil
	}
	data, err := proto.Marshal(message)
	if err != nil {
		return fmt.Errorf("encoding: %w", err)
	}
	if err := conn.Publish(bus.Subject(topic.Resource, namespace, name), data); err != nil {
		return err
	}
	p.published.Add(1)
	p.bytes.Add(int64(len(data)))
	return nil
}

// heartbeats tells how far each topic is.
func (p *Publisher) heartbeats(conn *nats.Conn, interest func(subject string) bool) error {
	revision := p.drain(conn)
	var problems []error
	beat := func(subject string, last int64) {
		data, err := proto.Marshal(&bus.Heartbeat{Revision: revision, Last: last})
		if err == nil {
			err = conn.Publish(subject, data)
		}
		problems = append(problems, err)
	}
	for _, topic := range p.topics {
		state := p.state[topic.KeyPrefix]
		beat(bus.HeartbeatSubject(topic.Resource, ""), state.last)
		// Namespaces without a change since the log's start have no heartbeat; who
		// listens to one is fed by the API server until it has a change.
		for namespace, last := range state.namespaces {
			if subject := bus.HeartbeatSubject(topic.Resource, namespace); interest == nil || interest(subject) {
				beat(subject, last)
			}
		}
	}
	return errors.Join(problems...)
}
