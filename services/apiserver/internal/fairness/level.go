package fairness

import (
	"container/list"
	"math"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
)

const (
	// objectsPerSeat is how many objects a list reads for one seat, and maxSeats
	// the widest request (KEP-1040: width of the request).
	objectsPerSeat = 100
	maxSeats       = 10
	// widest is the largest part of a level that one request may take.
	widest = 0.15
	// assumedService is how long a request is taken to run until it has.
	assumedService = 3 * time.Millisecond
)

// level is a priority level. All fields are guarded by the Dispatcher's mu.
type level struct {
	name, uid string
	exempt    bool
	retired   bool // its configuration is gone; it drains
	metrics   *Metrics

	nominal, lendable int // seats
	borrowable        int // seats beyond nominal; negative is without a bound
	inUse             int // seats

	queues     []*queue // nil: requests that find no seat are refused
	handSize   int
	queueLimit int // requests in each queue
	waiting    int
	// direct holds what a level without queues is about to start.
	direct *queue
}

// queue is one queue of a level, served when it has had the least service.
type queue struct {
	tickets list.List
	// served is the seat-time that the queue has had, and what it was given in
	// advance, in seat-seconds.
	served float64
	inUse  int
}

// ticket is a request that waits or runs.
type ticket struct {
	level   *level
	queue   *queue
	place   *list.Element
	seats   int
	exempt  bool
	running bool
	ready   chan struct{} // closed when it runs
}

func nominalShares(configured *flowcontrolv1.PriorityLevelConfiguration) int32 {
	switch {
	case configured.Spec.Limited != nil:
		return valueOr(configured.Spec.Limited.NominalConcurrencyShares, 30)
	case configured.Spec.Exempt != nil:
		return valueOr(configured.Spec.Exempt.NominalConcurrencyShares, 0)
	}
	return 0
}

func valueOr[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

// configure takes the limits of the configuration: its part of total by its part
// of the shares.
func (l *level) configure(configured *flowcontrolv1.PriorityLevelConfiguration, total, shares int) {
	l.uid, l.retired = string(configured.UID), false
	l.exempt = configured.Spec.Type == flowcontrolv1.PriorityLevelEnablementExempt
	l.nominal = int(math.Ceil(float64(total) * float64(nominalShares(configured)) / float64(max(shares, 1))))
	limited := configured.Spec.Limited
	if l.exempt || limited == nil {
		if exempt := configured.Spec.Exempt; exempt != nil {
			l.lendable = percent(l.nominal, valueOr(exempt.LendablePercent, 0))
		}
		l.metrics.configured(l)
		return
	}
	l.lendable = percent(l.nominal, valueOr(limited.LendablePercent, 0))
	l.borrowable = -1
	if limited.BorrowingLimitPercent != nil {
		l.borrowable = percent(l.nominal, *limited.BorrowingLimitPercent)
	}
	queuing := limited.LimitResponse.Queuing
	if limited.LimitResponse.Type != flowcontrolv1.LimitResponseTypeQueue || queuing == nil {
		l.requeue(0)
	} else {
		l.handSize, l.queueLimit = int(queuing.HandSize), int(queuing.QueueLengthLimit)
		l.requeue(int(queuing.Queues))
	}
	l.metrics.configured(l)
}

func percent(of int, part int32) int { return int(math.Round(float64(of) * float64(part) / 100)) }

// requeue makes the level have that many queues. Those that are cut off drain.
func (l *level) requeue(count int) {
	if l.direct == nil {
		l.direct = &queue{}
	}
	if count == 0 {
		for _, q := range l.queues {
			for e := q.tickets.Front(); e != nil; e = e.Next() {
				t := e.Value.(*ticket)
				t.queue, t.place = l.direct, l.direct.tickets.PushBack(t)
			}
		}
		l.queues = nil
		return
	}
	for len(l.queues) < count {
		l.queues = append(l.queues, &queue{})
	}
	for _, cut := range l.queues[count:] {
		for e := cut.tickets.Front(); e != nil; e = e.Next() {
			t := e.Value.(*ticket)
			t.queue, t.place = l.queues[0], l.queues[0].tickets.PushBack(t)
		}
	}
	l.queues = l.queues[:count]
}

// retire lets the level drain: it keeps one seat so that what waits is served.
func (l *level) retire() {
	l.retired, l.uid = true, ""
	l.nominal, l.lendable, l.borrowable = 1, 1, -1
	l.metrics.configured(l)
}

// guaranteed are the seats that the level always has: those it does not lend.
func (l *level) guaranteed() int { return l.nominal - l.lendable }

// ceiling are the seats that the level may ever have.
func (l *level) ceiling() int {
	if l.borrowable < 0 {
		return math.MaxInt
	}
	return l.nominal + l.borrowable
}

// width is how many seats a request takes that reads so many objects.
func (l *level) width(objects int) int {
	most := min(maxSeats, max(1, int(float64(l.nominal)*widest)))
	return min(max(1, (objects+objectsPerSeat-1)/objectsPerSeat), most)
}

// enqueue puts the ticket into the shortest queue of its flow's hand. It returns
// why it could not.
func (l *level) enqueue(t *ticket, flow uint64) string {
	q := l.direct
	if l.queues != nil {
		q = nil
		for _, index := range deal(flow, len(l.queues), l.handSize) {
			if candidate := l.queues[index]; q == nil || candidate.tickets.Len() < q.tickets.Len() {
				q = candidate
			}
		}
		if q.tickets.Len() >= l.queueLimit {
			return ReasonQueueFull
		}
	}
	if q.tickets.Len() == 0 && q.inUse == 0 {
		q.served = max(q.served, l.leastServed()) // idleness earns no credit
	}
	t.queue = q
	t.place = q.tickets.PushBack(t)
	l.waiting++
	return ""
}

// leastServed is the service of the busy queue that has had least, or 0.
func (l *level) leastServed() float64 {
	least := math.Inf(1)
	for _, q := range l.queues {
		if q.tickets.Len()+q.inUse > 0 {
			least = min(least, q.served)
		}
	}
	if math.IsInf(least, 1) {
		return 0
	}
	return least
}

// next is the queue that is served next: of those that have something, the one
// that has had the least service.
func (l *level) next() *queue {
	if l.direct != nil && l.direct.tickets.Len() > 0 {
		return l.direct
	}
	var next *queue
	for _, q := range l.queues {
		if q.tickets.Len() > 0 && (next == nil || q.served < next.served) {
			next = q
		}
	}
	return next
}

// peek is the request that starts next. The level must have one.
func (l *level) peek() *ticket { return l.next().tickets.Front().Value.(*ticket) }

// take is peek, and removes it from its queue, which pays for it in advance.
func (l *level) take() *ticket {
	t := l.peek()
	l.withdraw(t)
	t.queue.inUse += t.seats
	t.queue.served += float64(t.seats) * assumedService.Seconds()
	return t
}

// withdraw removes a ticket that waits.
func (l *level) withdraw(t *ticket) {
	t.queue.tickets.Remove(t.place)
	l.waiting--
}

// finished settles the difference between what the ticket took and what its
// queue paid.
func (l *level) finished(t *ticket, took time.Duration) {
	t.queue.inUse -= t.seats
	t.queue.served += float64(t.seats) * (took - assumedService).Seconds()
}

// deal draws a hand of distinct queues for a flow: the same for the same flow,
// and for another most likely not the same (shuffle sharding).
func deal(flow uint64, queues, hand int) []int {
	hand = min(max(hand, 1), queues)
	drawn := make([]int, 0, hand)
	for i := range hand {
		rest := uint64(queues - i)
		card := int(flow % rest)
		flow /= rest
		// The card counts only queues that have not been drawn.
		place := 0
		for place < len(drawn) && drawn[place] <= card+place {
			place++
		}
		drawn = append(drawn, 0)
		copy(drawn[place+1:], drawn[place:])
		drawn[place] = card + place
	}
	return drawn
}
