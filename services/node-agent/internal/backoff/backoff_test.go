package backoff_test

import (
	"testing"
	"time"

	"github.com/sampan-io/sampan/services/node-agent/internal/backoff"
)

func TestPausesDoubleAndStartAnewAfterAQuietTime(t *testing.T) {
	m := &backoff.Map{Base: 10 * time.Second, Max: 5 * time.Minute}
	now := time.Now()
	if got := m.Pause("a", now); got != 0 {
		t.Errorf("the first pause is %v", got)
	}
	for _, want := range []time.Duration{10, 20, 40, 80, 160, 300, 300} {
		m.Next("a", now)
		now = now.Add(time.Minute)
		if got := m.Pause("a", now); got != want*time.Second {
			t.Errorf("pause %v, want %v", got, want*time.Second)
		}
	}
	if got := m.Pause("b", now); got != 0 {
		t.Errorf("another key's pause is %v", got)
	}
	if got := m.Pause("a", now.Add(11*time.Minute)); got != 0 {
		t.Errorf("after a quiet time the pause is %v", got)
	}
}

func TestAdoptedKeysGoOnWhereTheyWere(t *testing.T) {
	m := &backoff.Map{Base: 10 * time.Second, Max: 5 * time.Minute}
	now := time.Now()
	m.Adopt("a", 3, now)
	if got := m.Pause("a", now); got != 40*time.Second {
		t.Errorf("pause %v", got)
	}
	m.Adopt("a", 1, now)
	if got := m.Pause("a", now); got != 40*time.Second {
		t.Errorf("a known key was adopted again: %v", got)
	}
	m.Adopt("old", 3, now.Add(-time.Hour))
	if got := m.Pause("old", now); got != 0 {
		t.Errorf("what ran for long has a pause of %v", got)
	}
}
