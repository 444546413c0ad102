package eviction

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Signal is something of the node that can run short.
type Signal string

// The signals, upstream's. The image file system is that of the images and of what
// containers write; it is the node's own where they are on one.
const (
	MemoryAvailable   Signal = "memory.available"
	NodeFsAvailable   Signal = "nodefs.available"
	NodeFsInodesFree  Signal = "nodefs.inodesFree"
	ImageFsAvailable  Signal = "imagefs.available"
	ImageFsInodesFree Signal = "imagefs.inodesFree"
	PIDAvailable      Signal = "pid.available"
)

// signals are all of them, in the order in which pods are ended for them, with the
// node's condition and the resource in messages.
func signals() []struct {
	signal    Signal
	condition corev1.NodeConditionType
	resource  corev1.ResourceName
} {
	return []struct {
		signal    Signal
		condition corev1.NodeConditionType
		resource  corev1.ResourceName
	}{
		{MemoryAvailable, corev1.NodeMemoryPressure, corev1.ResourceMemory},
		{NodeFsAvailable, corev1.NodeDiskPressure, corev1.ResourceEphemeralStorage},
		{NodeFsInodesFree, corev1.NodeDiskPressure, "inodes"},
		{ImageFsAvailable, corev1.NodeDiskPressure, corev1.ResourceEphemeralStorage},
		{ImageFsInodesFree, corev1.NodeDiskPressure, "inodes"},
		{PIDAvailable, corev1.NodePIDPressure, "pids"},
	}
}

func (s Signal) condition() corev1.NodeConditionType {
	for _, known := range signals() {
		if known.signal == s {
			return known.condition
		}
	}
	return ""
}

func (s Signal) resource() corev1.ResourceName {
	for _, known := range signals() {
		if known.signal == s {
			return known.resource
		}
	}
	return ""
}

// rank is the signal's place in the order.
func (s Signal) rank() int {
	for i, known := range signals() {
		if known.signal == s {
			return i
		}
	}
	return len(signals())
}

// Value is an amount, or a share of the capacity.
type Value struct {
	Quantity resource.Quantity
	Percent  float64 // 0 uses Quantity
}

// Of is the amount for a capacity.
func (v Value) Of(capacity int64) int64 {
	if v.Percent > 0 {
		return int64(float64(capacity) * v.Percent / 100)
	}
	return v.Quantity.Value()
}

func (v Value) zero() bool { return v.Percent == 0 && v.Quantity.IsZero() }

// Threshold is how little of a signal may be left.
type Threshold struct {
	Signal Signal
	Value  Value
	// Grace is how long it may be less; 0, a hard threshold, is not at all.
	Grace time.Duration
	// MinReclaim is how much more than the value must be free again.
	MinReclaim Value
}

// Settings are the thresholds as flags and files have them, by signal.
type Settings struct {
	Hard, Soft, SoftGrace, MinReclaim map[string]string
}

// DefaultHard are upstream's defaults.
func DefaultHard() map[string]string {
	return map[string]string{
		string(MemoryAvailable): "100Mi", string(NodeFsAvailable): "10%", string(NodeFsInodesFree): "5%",
		string(ImageFsAvailable): "15%", string(ImageFsInodesFree): "5%",
	}
}

// Parse turns settings into thresholds. One of 0% or 100% is none.
func (s Settings) Parse() ([]Threshold, error) {
	var out []Threshold
	var errs []error
	grace := map[Signal]time.Duration{}
	for name, text := range s.SoftGrace {
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 {
			errs = append(errs, fmt.Errorf("grace period of %s: %q is not a duration", name, text))
		}
		grace[Signal(name)] = d
	}
	for _, list := range []struct {
		texts map[string]string
		soft  bool
	}{{s.Hard, false}, {s.Soft, true}} {
		for _, name := range slices.Sorted(maps.Keys(list.texts)) {
			t, err := s.threshold(Signal(name), list.texts[name])
			if err != nil {
				errs = append(errs, err)
				continue
			}
			if list.soft {
				t.Grace = grace[t.Signal]
				if t.Grace <= 0 {
					errs = append(errs, fmt.Errorf("grace period must be specified for the soft eviction threshold %s", name))
				}
			}
			if !t.Value.zero() && t.Value.Percent != 100 {
				out = append(out, t)
			}
		}
	}
	return out, errors.Join(errs...)
}

func (s Settings) threshold(signal Signal, text string) (Threshold, error) {
	if signal.condition() == "" {
		return Threshold{}, fmt.Errorf("%q is not a signal that is supported", signal)
	}
	value, err := parseValue(text)
	if err != nil {
		return Threshold{}, fmt.Errorf("%s: %w", signal, err)
	}
	t := Threshold{Signal: signal, Value: value}
	if more, has := s.MinReclaim[string(signal)]; has {
		if t.MinReclaim, err = parseValue(more); err != nil {
			return Threshold{}, fmt.Errorf("minimum reclaim of %s: %w", signal, err)
		}
	}
	return t, nil
}

func parseValue(text string) (Value, error) {
	if number, percent := strings.CutSuffix(text, "%"); percent {
		share, err := strconv.ParseFloat(number, 64)
		if err != nil || share < 0 || share > 100 {
			return Value{}, fmt.Errorf("%q is not a share between 0%% and 100%%", text)
		}
		return Value{Percent: share}, nil
	}
	quantity, err := resource.ParseQuantity(text)
	if err != nil || quantity.Sign() < 0 {
		return Value{}, fmt.Errorf("%q is not an amount", text)
	}
	return Value{Quantity: quantity}, nil
}

// ParsePairs reads what flags have: "memory.available<100Mi,nodefs.available<10%"
// with "<" as separator.
func ParsePairs(text, separator string) (map[string]string, error) {
	out := map[string]string{}
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		name, value, found := strings.Cut(part, separator)
		if !found {
			return nil, fmt.Errorf("%q is not signal%svalue", part, separator)
		}
		out[strings.TrimSpace(name)] = strings.TrimSpace(value)
	}
	return out, nil
}

// Kept is what pods cannot have of a node, so that the hard thresholds are not met
// by pods that use what they asked for.
func Kept(thresholds []Threshold, capacity corev1.ResourceList) corev1.ResourceList {
	out := corev1.ResourceList{}
	for _, t := range thresholds {
		name := corev1.ResourceMemory
		switch {
		case t.Grace > 0:
			continue
		case t.Signal == NodeFsAvailable:
			name = corev1.ResourceEphemeralStorage
		case t.Signal != MemoryAvailable:
			continue
		}
		if whole, known := capacity[name]; known {
			out[name] = *resource.NewQuantity(t.Value.Of(whole.Value()), resource.BinarySI)
		}
	}
	return out
}
