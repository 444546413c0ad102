// Package imagegc removes images that nothing uses when the disk fills, the longest
// unused first, and those that have not been used for a long time.
package imagegc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Policy is upstream's: when to remove images, and which.
type Policy struct {
	High, Low int           // percent of the disk in use: above High images go until it is Low; High 100 never
	MinAge    time.Duration // an image that was found more recently stays
	MaxAge    time.Duration // one that is unused for longer goes; 0 is no limit
}

// Validate refuses contradictions.
func (p Policy) Validate() error {
	switch {
	case p.High < 0 || p.High > 100 || p.Low < 0 || p.Low > 100:
		return fmt.Errorf("image thresholds of %d %% and %d %% are not between 0 and 100", p.High, p.Low)
	case p.Low > p.High:
		return fmt.Errorf("the low image threshold, %d %%, is above the high one, %d %%", p.Low, p.High)
	case p.MinAge < 0 || p.MaxAge < 0:
		return errors.New("ages of images are not negative")
	case p.MaxAge > 0 && p.MaxAge <= p.MinAge:
		return fmt.Errorf("the maximum age of images, %v, is not above the minimum, %v", p.MaxAge, p.MinAge)
	}
	return nil
}

// Runtime is what the collector needs of the runtime.
type Runtime interface {
	Images(ctx context.Context) ([]*runtimeapi.Image, error)
	// ImagesInUse are ids and names of those that containers have, whether they run or
	// not, or that pods are about to use.
	ImagesInUse(ctx context.Context) (map[string]bool, error)
	RemoveImage(ctx context.Context, id string) error
}

// Disk is the file system that images are on, in bytes.
type Disk struct{ Capacity, Available uint64 }

// Config is what a Collector needs.
type Config struct {
	Policy  Policy
	Runtime Runtime
	Disk    func() (Disk, error)
	// Event tells of the node that collecting did not do what it should; reasons are
	// upstream's.
	Event func(reason, message string)
	Every time.Duration
	Log   *slog.Logger
}

// Collector removes images.
type Collector struct {
	cfg Config

	mu   sync.Mutex // one collection at a time
	seen map[string]times
}

// times of an image are known only from this program's start on.
type times struct{ found, used time.Time }

// New makes a Collector; Run does the work.
func New(cfg Config) *Collector { return &Collector{cfg: cfg, seen: map[string]times{}} }

// Run collects at each interval until ctx ends.
func (c *Collector) Run(ctx context.Context) error {
	c.mu.Lock()
	if _, err := c.look(ctx, time.Now()); err != nil { // images begin to age now
		c.cfg.Log.WarnContext(ctx, "Looking at images", "err", err)
	}
	c.mu.Unlock()
	ticker := time.NewTicker(c.cfg.Every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticker.C:
			if err := c.Collect(ctx, now); err != nil {
				c.cfg.Log.WarnContext(ctx, "Collecting images", "err", err)
				c.cfg.Event("ImageGCFailed", err.Error())
			}
		}
	}
}

// candidate is an image that nothing uses.
type candidate struct {
	image *runtimeapi.Image
	times times
}

// look notes which images there are and which are used. Caller must hold mu. It
// returns those that may go, the longest unused first.
func (c *Collector) look(ctx context.Context, now time.Time) ([]candidate, error) {
	used, err := c.cfg.Runtime.ImagesInUse(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing images in use: %w", err)
	}
	images, err := c.cfg.Runtime.Images(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing images: %w", err)
	}
	there := map[string]times{}
	var candidates []candidate
	for _, image := range images {
		t, known := c.seen[image.GetId()]
		if !known {
			t.found = now
		}
		busy := isUsed(used, image)
		if busy {
			t.used = now
		}
		there[image.GetId()] = t
		if !busy && !image.GetPinned() {
			candidates = append(candidates, candidate{image, t})
		}
	}
	c.seen = there
	slices.SortFunc(candidates, func(a, b candidate) int {
		return cmp.Or(a.times.used.Compare(b.times.used), a.times.found.Compare(b.times.found))
	})
	return candidates, nil
}

func isUsed(used map[string]bool, image *runtimeapi.Image) bool {
	inUse := func(name string) bool { return used[name] }
	return used[image.GetId()] || slices.ContainsFunc(image.GetRepoTags(), inUse) || slices.ContainsFunc(image.GetRepoDigests(), inUse)
}

// Collect removes images as the policy says.
func (c *Collector) Collect(ctx context.Context, now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	candidates, err := c.look(ctx, now)
	if err != nil {
		return err
	}
	candidates = c.removeOld(ctx, candidates, now)
	disk, err := c.cfg.Disk()
	if err != nil {
		return fmt.Errorf("looking at the images' disk: %w", err)
	}
	if disk.Capacity == 0 {
		return errors.New("invalid capacity 0 on image filesystem")
	}
	disk.Available = min(disk.Available, disk.Capacity)
	const percent = 100
	usage := percent - int(disk.Available*percent/disk.Capacity)
	if usage < c.cfg.Policy.High || c.cfg.Policy.High == percent {
		return nil
	}
	want := int64(disk.Capacity*uint64(percent-c.cfg.Policy.Low)/percent) - int64(disk.Available)
	if want <= 0 {
		return nil
	}
	freed, err := c.free(ctx, candidates, want, now)
	if err != nil {
		return fmt.Errorf("wanted to free %d bytes, but freed %d bytes space with errors in image deletion: %w", want, freed, err)
	}
	if freed < want {
		err := fmt.Errorf("Failed to garbage collect required amount of images. Attempted to free %d bytes, but only found %d bytes eligible to free.", want, freed) //nolint:staticcheck // the words are upstream's, for an event
		c.cfg.Event("FreeDiskSpaceFailed", err.Error())
		return err
	}
	return nil
}

// removeOld removes what is unused beyond the maximum age, and returns the rest.
func (c *Collector) removeOld(ctx context.Context, candidates []candidate, now time.Time) []candidate {
	if c.cfg.Policy.MaxAge == 0 {
		return candidates
	}
	var rest []candidate
	for _, one := range candidates {
		last := one.times.used
		if last.IsZero() {
			last = one.times.found
		}
		if now.Sub(last) <= c.cfg.Policy.MaxAge || c.remove(ctx, one, "too old") != nil {
			rest = append(rest, one)
		}
	}
	return rest
}

// free removes images until so many bytes are freed, as far as their sizes tell.
func (c *Collector) free(ctx context.Context, candidates []candidate, want int64, now time.Time) (freed int64, err error) {
	var errs []error
	for _, one := range candidates {
		if freed >= want {
			break
		}
		if now.Sub(one.times.found) < c.cfg.Policy.MinAge {
			continue
		}
		if err := c.remove(ctx, one, "the disk is filling"); err != nil {
			errs = append(errs, err)
			continue
		}
		freed += int64(one.image.GetSize())
	}
	return freed, errors.Join(errs...)
}

func (c *Collector) remove(ctx context.Context, one candidate, why string) error {
	c.cfg.Log.InfoContext(ctx, "Removing an image", "image", one.image.GetId(), "tags", one.image.GetRepoTags(), "bytes", one.image.GetSize(), "why", why)
	if err := c.cfg.Runtime.RemoveImage(ctx, one.image.GetId()); err != nil {
		return fmt.Errorf("removing image %s: %w", one.image.GetId(), err)
	}
	delete(c.seen, one.image.GetId())
	return nil
}

// RemoveUnused removes all images that may go, whatever their age: the node is about to
// end pods for want of disk.
func (c *Collector) RemoveUnused(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	candidates, err := c.look(ctx, time.Now())
	if err != nil {
		return err
	}
	var errs []error
	for _, one := range candidates {
		errs = append(errs, c.remove(ctx, one, "the disk is nearly full"))
	}
	return errors.Join(errs...)
}
