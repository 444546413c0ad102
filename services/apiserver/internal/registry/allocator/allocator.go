// Package allocator hands out the addresses and ports of Services. Addresses are
// taken by making IPAddress objects; which ports are taken is kept in memory, by
// owner, and read from the stored Services before the first allocation.
package allocator

import (
	"errors"
	"math/rand/v2"
)

// The reasons for which an allocation fails.
var (
	ErrTaken      = errors.New("provided value is already allocated")
	ErrFull       = errors.New("range is full")
	ErrOutOfRange = errors.New("provided value is not in the valid range")
)

// span is a range of numbered items. Callers must hold the lock of what it is
// part of.
type span struct {
	size  int
	band  int // items below it are left to those who ask for one by number, while others are free
	owner map[int]string
}

func newSpan(size, band int) *span {
	return &span{size: size, band: band, owner: map[int]string{}}
}

// take reserves item n for owner; taking what one already has succeeds.
func (s *span) take(n int, owner string) error {
	if n < 0 || n >= s.size {
		return ErrOutOfRange
	}
	if have, taken := s.owner[n]; taken && have != owner {
		return ErrTaken
	}
	s.owner[n] = owner
	return nil
}

// next reserves any free item, from above the band as long as there is one.
func (s *span) next(owner string) (int, error) {
	if n, ok := s.free(s.band, s.size); ok {
		s.owner[n] = owner
		return n, nil
	}
	if n, ok := s.free(0, s.band); ok {
		s.owner[n] = owner
		return n, nil
	}
	return 0, ErrFull
}

// free finds a free item in [low, high), beginning at a random one.
func (s *span) free(low, high int) (int, bool) {
	if high <= low {
		return 0, false
	}
	start := rand.IntN(high - low)
	for i := range high - low {
		n := low + (start+i)%(high-low)
		if _, taken := s.owner[n]; !taken {
			return n, true
		}
	}
	return 0, false
}

// release frees an item if it is owner's.
func (s *span) release(n int, owner string) {
	if s.owner[n] == owner {
		delete(s.owner, n)
	}
}

// band is the part of a range that is left to explicit requests: a sixteenth
// (addresses) or a thirty-second (ports), within bounds (KEP-3070, KEP-3668).
func band[N int | int64](size, divisor, most N) N {
	const least = 16
	if size <= least {
		return 0
	}
	return min(max(least, size/divisor), most)
}
