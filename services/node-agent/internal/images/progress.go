package images

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Progress is how far a pull has come, in compressed bytes. Total is 0 until the
// image's manifest has been read.
type Progress struct{ Done, Total int64 }

// Progress of the pull of a reference that runs now; ok is false when there is none.
func (s *Store) Progress(ref string) (progress Progress, ok bool) {
	name, err := Normalize(ref)
	if err != nil {
		return Progress{}, false
	}
	s.mu.RLock()
	pulls := s.pulls[name]
	s.mu.RUnlock()
	for _, p := range pulls {
		if now := p.get(); now.Done >= progress.Done {
			progress, ok = now, true
		}
	}
	return progress, ok
}

// meter counts the bytes of one pull, and ends the pull when none come. A nil meter
// does neither.
type meter struct {
	mu    sync.Mutex
	now   Progress
	stall time.Duration
	timer *time.Timer
}

// measured runs a pull with a meter under the name.
func (s *Store) measured(ctx context.Context, name string, pull func(context.Context, *meter) (*Image, error)) (*Image, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	m := &meter{stall: s.cfg.StallTimeout}
	m.timer = time.AfterFunc(m.stall, func() { cancel(fmt.Errorf("no data has come for %v", m.stall)) })
	defer m.timer.Stop()
	s.mu.Lock()
	s.pulls[name] = append(s.pulls[name], m)
	s.mu.Unlock()
	defer s.unmeasured(name, m)
	image, err := pull(ctx, m)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return image, err
}

func (s *Store) unmeasured(name string, m *meter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var others []*meter
	for _, other := range s.pulls[name] {
		if other != m {
			others = append(others, other)
		}
	}
	s.pulls[name] = others
	if len(others) == 0 {
		delete(s.pulls, name)
	}
}

func (m *meter) get() Progress {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}

func (m *meter) expect(total int64) {
	if m != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.now = Progress{Total: total}
	}
}

func (m *meter) add(n int64) {
	if m == nil {
		return
	}
	m.timer.Reset(m.stall)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now.Done += n
}

// skip counts a layer that need not be read.
func (m *meter) skip(layer v1.Layer) error {
	if m == nil {
		return nil
	}
	size, err := layer.Size()
	m.add(size)
	return err
}

// metered counts what is read, and takes it back when reading is given up.
type metered struct {
	io.Reader
	meter *meter
	read  int64
}

func (r *metered) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.read += int64(n)
	r.meter.add(int64(n))
	return n, err
}

func (r *metered) undo() { r.meter.add(-r.read) }
