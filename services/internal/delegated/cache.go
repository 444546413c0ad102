package delegated

import (
	"sync"
	"time"
)

// cache keeps answers for a time each, and not more than a number of them.
type cache[K comparable, V any] struct {
	limit int

	mu      sync.Mutex
	entries map[K]cached[V]
}

type cached[V any] struct {
	value V
	until time.Time
}

func newCache[K comparable, V any](limit int) *cache[K, V] {
	return &cache[K, V]{limit: limit, entries: map[K]cached[V]{}}
}

func (c *cache[K, V]) get(key K) (V, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	entry, found := c.entries[key]
	if !found || !time.Now().Before(entry.until) {
		var none V
		return none, false
	}
	return entry.value, true
}

func (c *cache[K, V]) put(key K, value V, ttl time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.entries) >= c.limit {
		c.evict()
	}
	c.entries[key] = cached[V]{value: value, until: time.Now().Add(ttl)}
}

// evict drops what has expired, and else anything: asking again is only slower.
// Caller must hold mu.
func (c *cache[K, V]) evict() {
	now := time.Now()
	for key, entry := range c.entries {
		if !now.Before(entry.until) {
			delete(c.entries, key)
		}
	}
	for key := range c.entries {
		if len(c.entries) < c.limit {
			return
		}
		delete(c.entries, key)
	}
}
