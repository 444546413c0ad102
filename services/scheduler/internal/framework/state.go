package framework

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
)

// CycleState is what plugins remember while one pod is scheduled. It is not safe
// for concurrent writing.
type CycleState struct {
	data        map[string]any
	skipFilters sets.Set[string]
	skipScores  sets.Set[string]
	filters     []Filter // those that are not skipped
}

// NewCycleState is empty.
func NewCycleState() *CycleState { return &CycleState{data: map[string]any{}} }

// Cloner is data that a what-if changes; data without it is shared.
type Cloner interface{ Clone() any }

// Write remembers data under key.
func (s *CycleState) Write(key string, data any) { s.data[key] = data }

// Read is what was written under key, as T; the zero T and false when nothing was.
func Read[T any](s *CycleState, key string) (T, bool) {
	data, ok := s.data[key].(T)
	return data, ok
}

// Clone is a state for a what-if.
func (s *CycleState) Clone() *CycleState {
	copied := &CycleState{data: maps.Clone(s.data), skipFilters: s.skipFilters, skipScores: s.skipScores, filters: s.filters}
	for key, data := range copied.data {
		if cloner, ok := data.(Cloner); ok {
			copied.data[key] = cloner.Clone()
		}
	}
	return copied
}

// Workloads tells which pods belong together without saying so in a constraint.
type Workloads interface {
	// Selector selects the pods of the Services and the controller that pod belongs
	// to; an empty one when it belongs to none.
	Selector(pod *corev1.Pod) labels.Selector
}
