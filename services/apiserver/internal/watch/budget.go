package watch

import "sync"

// Budget bounds the memory of derived forms: encodings and decoded objects,
// shared by all caches of a server. When it is exceeded, forms go that were not
// used since they were last looked at (the clock algorithm); an object can
// always make them again.
type Budget struct {
	mu    sync.Mutex
	left  int64
	queue []*form
	head  int
}

// NewBudget allows that many bytes.
func NewBudget(bytes int64) *Budget { return &Budget{left: bytes} }

// charge accounts for a form and makes room for it.
func (b *Budget) charge(f *form) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left -= f.size
	b.queue = append(b.queue, f)
	for b.left < 0 && b.head < len(b.queue) {
		oldest := b.queue[b.head]
		b.queue[b.head] = nil
		b.head++
		if oldest != f && oldest.used.Swap(false) {
			b.queue = append(b.queue, oldest)
			continue
		}
		oldest.owner.drop(oldest)
		b.left += oldest.size
	}
	if b.head > 1024 && b.head > len(b.queue)/2 {
		b.queue = append([]*form(nil), b.queue[b.head:]...)
		b.head = 0
	}
}
