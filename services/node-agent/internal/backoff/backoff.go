// Package backoff spaces out repetitions: of restarts and of image pulls.
package backoff

import (
	"sync"
	"time"
)

// Map has a pause for each key, which doubles with each use and starts anew after
// a long quiet time. It is safe for use by several goroutines.
type Map struct {
	Base, Max time.Duration

	mu      sync.Mutex
	entries map[string]entry
}

type entry struct {
	pause time.Duration
	used  time.Time
}

// Next doubles the key's pause, from Base on.
func (m *Map) Next(key string, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.entries == nil {
		m.entries = map[string]entry{}
	}
	old, known := m.entries[key]
	if !known || m.quiet(old, now) {
		m.entries[key] = entry{pause: m.Base, used: now}
		return
	}
	m.entries[key] = entry{pause: min(2*old.pause, m.Max), used: now}
}

func (m *Map) quiet(e entry, now time.Time) bool { return now.Sub(e.used) > 2*m.Max }

// Pause is how long to wait since the event, 0 for a key that need not wait.
func (m *Map) Pause(key string, event time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, known := m.entries[key]
	if !known || m.quiet(e, event) {
		return 0
	}
	return e.pause
}

// Adopt gives a key that is not known the pause that it had after so many uses,
// the last of them at that time.
func (m *Map) Adopt(key string, uses int, last time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, known := m.entries[key]; known || uses < 1 {
		return
	}
	if m.entries == nil {
		m.entries = map[string]entry{}
	}
	pause := m.Base
	for i := 1; i < uses && pause < m.Max; i++ {
		pause *= 2
	}
	m.entries[key] = entry{pause: min(pause, m.Max), used: last}
}

// Reset makes the key's next repetition immediate.
func (m *Map) Reset(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.entries, key)
}
