package runtime

import (
	"fmt"
	"sync"
	"time"

	"github.com/sampan-io/sampan/services/node-agent/internal/images"
)

// usageAge is how old a measurement of a writable layer may be. Measuring walks over
// its files, and is asked for every few seconds.
const usageAge = 20 * time.Second

// usageCache remembers measurements of writable layers.
type usageCache struct {
	mu      sync.Mutex
	entries map[string]measurement // by container
}

type measurement struct {
	usage images.Usage
	at    time.Time
}

func (c *usageCache) get(id string) (measurement, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m, ok := c.entries[id]
	return m, ok && time.Since(m.at) < usageAge
}

func (c *usageCache) put(id string, m measurement) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil {
		c.entries = map[string]measurement{}
	}
	c.entries[id] = m
}

func (c *usageCache) drop(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.entries, id)
}

// writableUsage is what the container has written to its root file system, and when
// that was measured.
func (s *Server) writableUsage(id string) (images.Usage, time.Time, error) {
	if m, fresh := s.usage.get(id); fresh {
		return m.usage, m.at, nil
	}
	usage, err := images.Measure(s.cfg.writable(id))
	if err != nil {
		return images.Usage{}, time.Time{}, fmt.Errorf("measuring the writable layer of %s: %w", id, err)
	}
	m := measurement{usage: usage, at: time.Now()}
	s.usage.put(id, m)
	return m.usage, m.at, nil
}
