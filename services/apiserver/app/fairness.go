package app

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"github.com/sampan-io/sampan/services/apiserver/internal/fairness"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
	"github.com/sampan-io/sampan/services/apiserver/internal/watch"
)

// newFairness makes the dispatcher of requests; nil if they are only counted.
func (s *server) newFairness(metrics prometheus.Registerer) *fairness.Dispatcher {
	seats := s.Serving.MaxRequests + s.Serving.MaxMutating
	if !s.Serving.Fairness || seats == 0 {
		return nil
	}
	// A request may wait for a quarter of its time, as upstream.
	return fairness.New(seats, s.Serving.RequestTimeout/4, fairness.NewMetrics(metrics), clock.RealClock{})
}

// followFairness configures the dispatcher from the stored objects until ctx ends.
func (s *server) followFairness(ctx context.Context) error {
	if s.fairness == nil {
		return nil
	}
	return fairness.Follow(ctx, s.fairness, s.engine, s.log)
}

// objects is how many objects of a request's resource there are.
func (s *server) objects(info *request.Info) int {
	store := s.engine.Version(info.GroupVersionResource())
	if store == nil {
		return 0
	}
	if cache, ok := store.Cache().(interface{ Stats() watch.Stats }); ok {
		return cache.Stats().Objects
	}
	return 0
}
