package imagegc_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/imagegc"
)

// store is a disk of 1000 bytes with images.
type store struct {
	images  []*runtimeapi.Image
	used    map[string]bool
	stuck   map[string]bool
	other   uint64 // bytes in use by what is no image
	removed []string
	events  []string
}

func (s *store) Images(context.Context) ([]*runtimeapi.Image, error) {
	return slices.Clone(s.images), nil
}
func (s *store) ImagesInUse(context.Context) (map[string]bool, error) { return s.used, nil }
func (s *store) Event(reason, message string)                         { s.events = append(s.events, reason+": "+message) }

func (s *store) RemoveImage(_ context.Context, id string) error {
	if s.stuck[id] {
		return errors.New("device busy")
	}
	s.removed = append(s.removed, id)
	s.images = slices.DeleteFunc(s.images, func(image *runtimeapi.Image) bool { return image.GetId() == id })
	return nil
}

func (s *store) disk() (imagegc.Disk, error) {
	used := s.other
	for _, image := range s.images {
		used += image.GetSize()
	}
	return imagegc.Disk{Capacity: 1000, Available: 1000 - used}, nil
}

func (s *store) add(id string, size uint64, edit ...func(*runtimeapi.Image)) {
	image := &runtimeapi.Image{Id: id, RepoTags: []string{"registry.test/" + id + ":v1"}, Size: size}
	for _, fn := range edit {
		fn(image)
	}
	s.images = append(s.images, image)
}

func (s *store) collector(policy imagegc.Policy) *imagegc.Collector {
	return imagegc.New(imagegc.Config{Policy: policy, Runtime: s, Disk: s.disk, Event: s.Event, Every: time.Hour, Log: slog.New(slog.DiscardHandler)})
}

func (s *store) assertRemoved(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(s.removed, want) {
		t.Errorf("removed %v, want %v", s.removed, want)
	}
}

func TestTheLongestUnusedImagesGoUntilTheDiskIsLow(t *testing.T) {
	s := &store{used: map[string]bool{}, other: 300}
	c := s.collector(imagegc.Policy{High: 85, Low: 70, MinAge: 2 * time.Minute})
	start := time.Unix(1_800_000_000, 0)
	for i, id := range []string{"first", "second", "third"} {
		s.add(id, 100)
		s.used = map[string]bool{"registry.test/" + id + ":v1": true} // by name, then no more
		if err := c.Collect(t.Context(), start.Add(time.Duration(i)*time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	s.add("pinned", 100, func(image *runtimeapi.Image) { image.Pinned = true })
	s.add("running", 100)
	s.used = map[string]bool{"running": true}
	if err := c.Collect(t.Context(), start.Add(3*time.Minute)); err != nil {
		t.Fatal(err)
	}
	s.assertRemoved(t) // 80 %
	s.add("young", 100)
	s.used["first"] = true // in use again, so that it is the last to go
	if err := c.Collect(t.Context(), start.Add(10*time.Minute)); err != nil {
		t.Fatal(err)
	}
	s.assertRemoved(t, "second", "third")
}

func TestCollectingTellsWhenItFreesTooLittle(t *testing.T) {
	s := &store{used: map[string]bool{"used": true}, other: 800}
	s.add("used", 50)
	s.add("stuck", 50)
	s.stuck = map[string]bool{"stuck": true}
	c := s.collector(imagegc.Policy{High: 85, Low: 80})
	err := c.Collect(t.Context(), time.Now())
	if err == nil || err.Error() != "wanted to free 100 bytes, but freed 0 bytes space with errors in image deletion: removing image stuck: device busy" {
		t.Errorf("error %v", err)
	}
	s.stuck = nil
	err = c.Collect(t.Context(), time.Now())
	if err == nil || len(s.events) != 1 || !strings.HasPrefix(s.events[0], "FreeDiskSpaceFailed: Failed to garbage collect required amount of images. Attempted to free 100 bytes, but only found 50 bytes eligible to free.") {
		t.Errorf("error %v, events %q", err, s.events)
	}
	s.assertRemoved(t, "stuck")
}

func TestYoungImagesStayAndOldOnesGo(t *testing.T) {
	s := &store{used: map[string]bool{"busy": true}, other: 900}
	s.add("young", 10)
	s.add("busy", 10)
	now := time.Unix(1_800_000_000, 0)
	c := s.collector(imagegc.Policy{High: 85, Low: 80, MinAge: 2 * time.Minute, MaxAge: time.Hour})
	_ = c.Collect(t.Context(), now)
	_ = c.Collect(t.Context(), now.Add(time.Minute))
	s.assertRemoved(t)
	s.other = 0 // the disk has room, but an hour without use is enough
	if err := c.Collect(t.Context(), now.Add(59*time.Minute)); err != nil {
		t.Fatal(err)
	}
	s.assertRemoved(t)
	if err := c.Collect(t.Context(), now.Add(61*time.Minute)); err != nil {
		t.Fatal(err)
	}
	s.assertRemoved(t, "young")
}

func TestAllUnusedImagesGoBeforePodsDo(t *testing.T) {
	s := &store{used: map[string]bool{"used": true}}
	for _, id := range []string{"used", "young", "stuck", "other"} {
		s.add(id, 1)
	}
	s.add("pinned", 1, func(image *runtimeapi.Image) { image.Pinned = true })
	s.stuck = map[string]bool{"stuck": true}
	if err := s.collector(imagegc.Policy{High: 100, Low: 80, MinAge: time.Hour}).RemoveUnused(t.Context()); err == nil {
		t.Error("the one that was not removed is not told of")
	}
	slices.Sort(s.removed)
	s.assertRemoved(t, "other", "young")
}

func TestContradictoryPoliciesAreRefused(t *testing.T) {
	for name, policy := range map[string]imagegc.Policy{
		"low above high":   {High: 70, Low: 80},
		"above a hundred":  {High: 101, Low: 80},
		"negative":         {High: 85, Low: -1},
		"negative age":     {High: 85, Low: 80, MinAge: -1},
		"old before young": {High: 85, Low: 80, MinAge: time.Hour, MaxAge: time.Minute},
	} {
		if policy.Validate() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if err := (imagegc.Policy{High: 85, Low: 80, MinAge: 2 * time.Minute}).Validate(); err != nil {
		t.Error(err)
	}
}
