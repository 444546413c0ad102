package watch

import "sync"

// Budget bounds the memory of derived forms: encodings and decoded objects,
// shared by all caches of a server. When it is exceeded, forms go that were not
// used since they were last looked at (the clock algorithm); an object can
// always make them again.
type Budget struct {
	mu     sync.Mutex
	limit  int64
	held   int64
	oldest *form // of a list in the order of looking
	newest *form
}

// NewBudget allows that many bytes.
func NewBudget(bytes int64) *Budget { return &Budget{limit: bytes} }

// Held is how many bytes are in use.
func (b *Budget) Held() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held
}

// charge accounts for a form and makes room for it.
func (b *Budget) charge(f *form) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f.released {
		return
	}
	b.append(f)
	b.held += f.size
	for b.held > b.limit && b.oldest != nil {
		oldest := b.oldest
		b.unlink(oldest)
		if oldest != f && oldest.used.Swap(false) {
			b.append(oldest)
			continue
		}
		oldest.owner.drop(oldest)
		b.held -= oldest.size
	}
}

// release gives back what a form took whose object is gone.
func (b *Budget) release(f *form) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f.released = true
	if f.listed {
		b.unlink(f)
		b.held -= f.size
	}
}

func (b *Budget) append(f *form) {
	f.listed, f.older = true, b.newest
	if b.newest == nil {
		b.oldest = f
	} else {
		b.newest.newer = f
	}
	b.newest = f
}

func (b *Budget) unlink(f *form) {
	if f.older == nil {
		b.oldest = f.newer
	} else {
		f.older.newer = f.newer
	}
	if f.newer == nil {
		b.newest = f.older
	} else {
		f.newer.older = f.older
	}
	f.listed, f.older, f.newer = false, nil, nil
}
