package controller

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// Pauses between tries of a key whose reconciling failed.
const (
	firstRetry = 5 * time.Millisecond
	lastRetry  = 60 * time.Second
)

// Reconcile brings what key names to the state it should have. An error makes
// the queue try again after a growing pause; otherwise a positive requeueAfter
// makes it look again then.
type Reconcile func(ctx context.Context, key string) (requeueAfter time.Duration, err error)

// Queue feeds keys to a Reconcile: each key to one worker at a time, and once
// more after a change that came while it was worked on.
type Queue struct {
	workqueue.TypedRateLimitingInterface[string]
	name      string
	workers   int
	reconcile Reconcile
	log       *slog.Logger
}

// NewQueue makes the queue whose metrics carry name.
func NewQueue(name string, workers int, log *slog.Logger, reconcile Reconcile) *Queue {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, lastRetry)
	return &Queue{
		TypedRateLimitingInterface: workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[string]{Name: name}),
		name:                       name, workers: max(workers, 1), reconcile: reconcile, log: log,
	}
}

// AddObject adds the key of obj.
func (q *Queue) AddObject(obj any) {
	if key := Key(obj); key != "" {
		q.Add(key)
	}
}

// Run waits until synced reports true, then works until ctx ends.
func (q *Queue) Run(ctx context.Context, synced ...cache.InformerSynced) error {
	defer q.ShutDown()
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil
	}
	stop := context.AfterFunc(ctx, q.ShutDown)
	defer stop()
	var workers sync.WaitGroup
	for range q.workers {
		workers.Go(func() {
			for q.next(ctx) {
			}
		})
	}
	workers.Wait()
	return nil
}

func (q *Queue) next(ctx context.Context) bool {
	key, quit := q.Get()
	if quit {
		return false
	}
	defer q.Done(key)
	after, err := q.guarded(ctx, key)
	switch {
	case err != nil && ctx.Err() != nil: // stopping: the next leader works on it
	case apierrors.IsConflict(err): // the cache is behind; the next try sees the newer object
		q.log.Debug("Reconciling met a newer object, trying again", "controller", q.name, "key", key, "err", err)
		q.AddRateLimited(key)
	case err != nil:
		q.log.Info("Reconciling ended with an error, trying again", "controller", q.name, "key", key, "err", err)
		q.AddRateLimited(key)
	case after > 0:
		q.Forget(key)
		q.AddAfter(key, after)
	default:
		q.Forget(key)
	}
	return true
}

// guarded turns a panic into an error: one bad object must not take the others'
// controllers down.
func (q *Queue) guarded(ctx context.Context, key string) (after time.Duration, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			q.log.Error("Reconciling panicked", "controller", q.name, "key", key, "cause", cause, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", cause)
		}
	}()
	return q.reconcile(ctx, key)
}
