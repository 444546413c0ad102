package audit

import (
	"context"
	"errors"
	"time"

	"k8s.io/client-go/util/flowcontrol"
)

// BatchConfig says how events are gathered.
type BatchConfig struct {
	BufferSize int           // events that wait; more are lost
	MaxSize    int           // events in a batch
	MaxWait    time.Duration // after which a smaller batch goes
	Throttle   bool
	QPS        float32 // batches
	Burst      int
}

// Batch hands events on in batches, from another goroutine: requests never wait for
// the sink. It implements Sink.
type Batch struct {
	sink   Sink
	config BatchConfig
	buffer chan *Event
	limit  flowcontrol.RateLimiter
	lost   func(n int)
}

// errFull is the loss of an event for want of room.
var errFull = errors.New("the audit buffer is full")

// NewBatch gathers events for a sink; Run hands them on.
func NewBatch(sink Sink, config BatchConfig, measures *Measures) *Batch {
	b := &Batch{sink: sink, config: config, buffer: make(chan *Event, config.BufferSize), limit: flowcontrol.NewFakeAlwaysRateLimiter(), lost: measures.lost("buffered")}
	if config.Throttle {
		b.limit = flowcontrol.NewTokenBucketRateLimiter(config.QPS, config.Burst)
	}
	return b
}

// Take implements Sink.
func (b *Batch) Take(events ...*Event) error {
	for i, event := range events {
		select {
		case b.buffer <- event:
		default:
			b.lost(len(events) - i)
			return errFull
		}
	}
	return nil
}

// Run hands batches on until ctx ends, and then what is left.
func (b *Batch) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if batch := b.gather(ctx); len(batch) > 0 {
			b.limit.Accept()
			_ = b.sink.Take(batch...) // the sink has counted what is lost
		}
	}
	for {
		batch := b.waiting()
		if len(batch) == 0 {
			return
		}
		_ = b.sink.Take(batch...) // the sink has counted what is lost
	}
}

// gather is a full batch, or what has come within MaxWait of the first event.
func (b *Batch) gather(ctx context.Context) []*Event {
	var batch []*Event
	var late <-chan time.Time
	for len(batch) < b.config.MaxSize {
		select {
		case event := <-b.buffer:
			if batch = append(batch, event); late == nil && b.config.MaxWait > 0 {
				timer := time.NewTimer(b.config.MaxWait)
				defer timer.Stop()
				late = timer.C
			}
		case <-late:
			return batch
		case <-ctx.Done():
			return batch
		}
	}
	return batch
}

// waiting is a batch of what has come already.
func (b *Batch) waiting() []*Event {
	var batch []*Event
	for len(batch) < b.config.MaxSize {
		select {
		case event := <-b.buffer:
			batch = append(batch, event)
		default:
			return batch
		}
	}
	return batch
}
