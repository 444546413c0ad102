package plugins

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/lru"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
)

// EventLimit is one rate of events: of the whole server, or of each namespace,
// user, or source with object.
type EventLimit struct {
	Type  string `json:"type"`
	QPS   int32  `json:"qps"`
	Burst int32  `json:"burst"`
	// CacheSize is of how many namespaces, users or sources the rate is kept; 0 is
	// 4096.
	CacheSize int32 `json:"cacheSize,omitempty"`
}

const (
	limitServer    = "Server"
	limitNamespace = "Namespace"
	limitUser      = "User"
	limitSource    = "SourceAndObject"

	defaultEventCache = 4096
)

// eventRateLimit refuses events that come too fast.
type eventRateLimit struct {
	plugin
	limits []*eventLimiter
}

func newEventRateLimit(config Config) admission.Plugin {
	p := &eventRateLimit{plugin: plugin{"EventRateLimit", []admission.Operation{admission.Create, admission.Update}}}
	for _, limit := range config.Configurations.EventRateLimit {
		p.limits = append(p.limits, newEventLimiter(limit))
	}
	return p
}

// Validate implements admission.Validator. An event counts in all limits, whichever
// of them refuses it.
func (p *eventRateLimit) Validate(_ context.Context, a *admission.Attributes) error {
	if a.Resource.Resource != "events" || a.Resource.Group != "" && a.Resource.Group != eventsv1.GroupName || a.Subresource != "" {
		return nil
	}
	var refused error
	for _, limit := range p.limits {
		if err := limit.accept(a); err != nil {
			refused = err
		}
	}
	return refused
}

// eventLimiter is one limit with its buckets of tokens by key.
type eventLimiter struct {
	limit   EventLimit
	buckets *lru.Cache
}

func newEventLimiter(limit EventLimit) *eventLimiter {
	size := int(limit.CacheSize)
	if size == 0 {
		size = defaultEventCache
	}
	return &eventLimiter{limit: limit, buckets: lru.New(size)}
}

func (l *eventLimiter) accept(a *admission.Attributes) error {
	key := l.key(a)
	found, ok := l.buckets.Get(key)
	if !ok {
		// Two that come at once may each make one: the later counts, and nothing else
		// is lost.
		found = flowcontrol.NewTokenBucketRateLimiter(float32(l.limit.QPS), int(l.limit.Burst))
		l.buckets.Add(key, found)
	}
	if found.(flowcontrol.RateLimiter).TryAccept() {
		return nil
	}
	return apierrors.NewTooManyRequests(fmt.Sprintf("limit reached on type %v for key %v", l.limit.Type, key), 0)
}

func (l *eventLimiter) key(a *admission.Attributes) string {
	switch l.limit.Type {
	case limitNamespace:
		return a.Namespace
	case limitUser:
		if a.User != nil {
			return a.User.Name
		}
	case limitSource:
		return sourceAndObject(a.Object)
	}
	return ""
}

func sourceAndObject(obj runtime.Object) string {
	var source []string
	var about corev1.ObjectReference
	switch event := obj.(type) {
	case *corev1.Event:
		source, about = []string{event.Source.Component, event.Source.Host}, event.InvolvedObject
	case *eventsv1.Event:
		source, about = []string{event.ReportingController, event.ReportingInstance}, event.Regarding
	}
	return strings.Join(append(source, about.Kind, about.Namespace, about.Name, string(about.UID), about.APIVersion), "")
}

func readEventLimits(c *Configurations, data []byte, _ string) error {
	var file struct {
		header
		Limits []EventLimit `json:"limits"`
	}
	if err := decodeStrictly(data, &file); err != nil {
		return err
	}
	if err := file.check("Configuration", "eventratelimit.admission.k8s.io/v1alpha1"); err != nil {
		return err
	}
	if len(file.Limits) == 0 {
		return errors.New("limits must not be empty")
	}
	kinds := []string{limitServer, limitNamespace, limitUser, limitSource}
	for i, limit := range file.Limits {
		switch {
		case !slices.Contains(kinds, limit.Type):
			return fmt.Errorf("limits[%d].type: %q is not one of %s", i, limit.Type, strings.Join(kinds, ", "))
		case limit.QPS <= 0 || limit.Burst <= 0:
			return fmt.Errorf("limits[%d]: qps and burst must be positive", i)
		case limit.CacheSize < 0 || limit.Type == limitServer && limit.CacheSize != 0:
			return fmt.Errorf("limits[%d].cacheSize must not be negative, and must be absent for type %s", i, limitServer)
		}
	}
	c.EventRateLimit = file.Limits
	return nil
}
