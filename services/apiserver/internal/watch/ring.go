package watch

import (
	"errors"
	"sync"
)

// ringEvent is one change of one object.
type ringEvent struct {
	revision      int64
	before, after *Object // before is nil for a creation, after for a deletion

	once sync.Once
	last *Object // before, at this revision; made on first use
	err  error
}

// left is the object as a watcher sees it that it leaves: its last state with
// this event's revision.
func (e *ringEvent) left() (*Object, error) {
	e.once.Do(func() { e.last, e.err = e.before.withRevision(e.revision) })
	if errors.Is(e.err, errRetired) {
		return loose(e.before.withRevision(e.revision))
	}
	return e.last, e.err
}

// errRetired marks events that left the ring before a watcher asked for left.
var errRetired = errors.New("event has left the ring")

func (e *ringEvent) size() int64 {
	const overhead = 200
	size := int64(overhead)
	if e.after != nil {
		size += int64(len(e.after.wire))
	}
	return size
}

// ring holds recent events, bounded by their bytes. Positions count all events
// ever pushed; those from start to end are held.
type ring struct {
	events []*ringEvent
	first  int64 // position of events[0]
	floor  int64 // every event after this revision is held
	bytes  int64
	limit  int64
}

func (r *ring) start() int64 { return r.first }
func (r *ring) end() int64   { return r.first + int64(len(r.events)) }

func (r *ring) reset(revision int64) {
	*r = ring{first: r.end(), floor: revision, limit: r.limit}
}

// push appends an event and returns those that there is no room for any more.
func (r *ring) push(e *ringEvent) (dropped []*ringEvent) {
	r.events = append(r.events, e)
	r.bytes += e.size()
	drop := 0
	for r.bytes > r.limit && drop < len(r.events)-1 {
		r.bytes -= r.events[drop].size()
		r.floor = r.events[drop].revision
		dropped = append(dropped, r.events[drop])
		r.events[drop] = nil
		drop++
	}
	r.events = r.events[drop:]
	r.first += int64(drop)
	return dropped
}

// retire lets go of the objects that only this event held.
func (e *ringEvent) retire() {
	if e.before == nil {
		return
	}
	e.before.retire()
	e.once.Do(func() { e.err = errRetired })
	if e.last != nil {
		e.last.retire()
	}
}

// from are the events at and after a position that is held.
func (r *ring) from(position int64) []*ringEvent { return r.events[position-r.first:] }

// after is the position of the first event after a revision, which must not be
// below the floor.
func (r *ring) after(revision int64) int64 {
	low, high := 0, len(r.events)
	for low < high {
		middle := (low + high) / 2
		if r.events[middle].revision > revision {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return r.first + int64(low)
}
