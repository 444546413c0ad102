package endpoint

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sampan-io/sampan/services/controller-manager/internal/pods"
)

// Triggers finds when the change happened that makes a Service's endpoints be
// written anew. Proxies measure from then how long programming it took.
type Triggers struct {
	mu       sync.Mutex
	services map[string]*seen
}

type seen struct {
	service time.Time
	pods    map[types.UID]time.Time
}

// NewTriggers has seen nothing.
func NewTriggers() *Triggers { return &Triggers{services: map[string]*seen{}} }

// Next is the earliest change of service or of its pods since the last call; zero
// when none of them has a newer time.
func (t *Triggers) Next(key string, service *corev1.Service, behind []*corev1.Pod) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.services[key]
	if before == nil {
		before = &seen{}
	}
	now := &seen{service: service.CreationTimestamp.Time, pods: make(map[types.UID]time.Time, len(behind))}
	var earliest time.Time
	note := func(last, current time.Time) {
		if current.After(last) && (earliest.IsZero() || current.Before(earliest)) {
			earliest = current
		}
	}
	for _, pod := range behind {
		if ready := pods.Condition(pod, corev1.PodReady); ready != nil {
			now.pods[pod.UID] = ready.LastTransitionTime.Time
			note(before.pods[pod.UID], ready.LastTransitionTime.Time)
		}
	}
	note(before.service, now.service)
	t.services[key] = now
	return earliest
}

// Forget drops what was seen of a Service that is gone.
func (t *Triggers) Forget(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.services, key)
}
