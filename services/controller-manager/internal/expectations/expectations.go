// Package expectations remembers what a controller has done that its cache does
// not show yet, so that it does not do it twice.
package expectations

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// Timeout ends a wait for a change that never shows: the object came and went
// between two looks at the cache.
const Timeout = 5 * time.Minute

// Store holds expectations per owner key. It is level-driven: it asks the cache
// at each look, and needs no event to be counted exactly once.
type Store struct {
	clock clock.PassiveClock

	mu     sync.Mutex
	owners map[string]*owner
}

type owner struct {
	created map[string]time.Time    // names that the cache must show
	deleted map[types.UID]time.Time // UIDs that the cache must show as terminating, or no more
}

// New is an empty store.
func New(clock clock.PassiveClock) *Store {
	return &Store{clock: clock, owners: map[string]*owner{}}
}

// Look is how Satisfied sees the cache.
type Look struct {
	// Exists says whether the cache has an object of that name.
	Exists func(name string) bool
	// Live says whether the cache has an object of that UID that is not yet
	// marked as being deleted.
	Live func(uid types.UID) bool
}

// Satisfied says whether the cache shows all that was done for key.
func (s *Store) Satisfied(key string, look Look) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.owners[key]
	if o == nil {
		return true
	}
	now := s.clock.Now()
	for name, since := range o.created {
		if look.Exists(name) || now.Sub(since) > Timeout {
			delete(o.created, name)
		}
	}
	for uid, since := range o.deleted {
		if !look.Live(uid) || now.Sub(since) > Timeout {
			delete(o.deleted, uid)
		}
	}
	if len(o.created)+len(o.deleted) > 0 {
		return false
	}
	delete(s.owners, key)
	return true
}

// Created notes that an object of that name was made for key.
func (s *Store) Created(key, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.owner(key).created[name] = s.clock.Now()
}

// Deleted notes that deleting the object of that UID was asked for.
func (s *Store) Deleted(key string, uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.owner(key).deleted[uid] = s.clock.Now()
}

// Gone notes that the cache has seen the object go: no one waits for it to come.
func (s *Store) Gone(key, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.owners[key]; o != nil {
		delete(o.created, name)
	}
}

// Undeleted takes Deleted back: the request was refused.
func (s *Store) Undeleted(key string, uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.owners[key]; o != nil {
		delete(o.deleted, uid)
	}
}

// Forget drops what was expected for key: its owner is gone.
func (s *Store) Forget(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.owners, key)
}

func (s *Store) owner(key string) *owner {
	o := s.owners[key]
	if o == nil {
		o = &owner{created: map[string]time.Time{}, deleted: map[types.UID]time.Time{}}
		s.owners[key] = o
	}
	return o
}
