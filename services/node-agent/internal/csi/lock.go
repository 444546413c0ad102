package csi

import "context"

// lock is held by who works on one volume.
type lock struct {
	held    chan struct{} // holds one token while the lock is held
	waiting int           // with the holder
}

// lock waits for the volume of that key until ctx ends.
func (s *Store) lock(ctx context.Context, key string) (unlock func(), err error) {
	s.mu.Lock()
	l := s.locks[key]
	if l == nil {
		l = &lock{held: make(chan struct{}, 1)}
		s.locks[key] = l
	}
	l.waiting++
	s.mu.Unlock()
	leave := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if l.waiting--; l.waiting == 0 {
			delete(s.locks, key)
		}
	}
	select {
	case l.held <- struct{}{}:
		return func() {
			<-l.held
			leave()
		}, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
