package app

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"

	"github.com/sampan-io/sampan/services/internal/component"
	"github.com/sampan-io/sampan/services/internal/delegated"
	schedulercache "github.com/sampan-io/sampan/services/scheduler/internal/cache"
	"github.com/sampan-io/sampan/services/scheduler/internal/feed"
	"github.com/sampan-io/sampan/services/scheduler/internal/framework"
	"github.com/sampan-io/sampan/services/scheduler/internal/queue"
	"github.com/sampan-io/sampan/services/scheduler/internal/report"
	"github.com/sampan-io/sampan/services/scheduler/internal/scheduler"
)

// Run serves, fills its cache, and schedules while it leads, until ctx ends or the
// lead is lost.
func (o *Options) Run(ctx context.Context, log *slog.Logger) error {
	registry := component.NewMetrics()
	component.RegisterClientMetrics(registry)
	component.RegisterWorkqueueMetrics(registry)
	api, _, err := o.client.Clientset("kube-scheduler")
	if err != nil {
		return err
	}
	engine, err := o.assemble(api, registry, log)
	if err != nil {
		return err
	}
	gate, err := o.access.Gate("kube-scheduler", api, log)
	if err != nil {
		return &component.UsageError{Err: err}
	}
	health := component.NewHealth()
	health.AddReady(component.Check{Name: "informer-sync", Probe: engine.ready})
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return ended(ctx, o.serving.Serve(ctx, gate.Wrap(delegated.PathAttributes, handler(registry, health, engine.scheduler))))
	})
	engine.informers.Start(ctx.Done())
	group.Go(func() error { // the cache is warm before leading
		if !cache.WaitForCacheSync(ctx.Done(), engine.synced...) {
			return ctx.Err()
		}
		return ended(ctx, o.election.Run(ctx, api, func(ctx context.Context) error {
			log.Info("Leading, scheduling")
			return engine.lead(ctx)
		}))
	})
	err = group.Wait()
	engine.informers.Shutdown()
	engine.events.Shutdown()
	return err
}

// ended turns a return without an error, while ctx goes on, into one that ends the
// other parts too.
func ended(ctx context.Context, err error) error {
	if err != nil {
		return err
	}
	return ctx.Err()
}

// engine is the scheduler and what feeds it.
type engine struct {
	scheduler *scheduler.Scheduler
	reporter  *report.Reporter
	events    events.EventBroadcaster
	informers informers.SharedInformerFactory
	synced    []cache.InformerSynced
}

func (e *engine) ready(context.Context) error {
	for _, synced := range e.synced {
		if !synced() {
			return fmt.Errorf("informers are not in sync yet")
		}
	}
	return nil
}

func (e *engine) lead(ctx context.Context) error {
	if err := e.events.StartRecordingToSinkWithContext(ctx); err != nil {
		return fmt.Errorf("recording events: %w", err)
	}
	var parts sync.WaitGroup
	parts.Go(func() { e.reporter.Run(ctx) })
	e.scheduler.Run(ctx)
	parts.Wait()
	return nil
}

func (o *Options) assemble(api kubernetes.Interface, registry prometheus.Registerer, log *slog.Logger) (*engine, error) {
	e := &engine{
		informers: informers.NewSharedInformerFactoryWithOptions(api, 0, informers.WithTransform(trim)),
		events:    events.NewBroadcaster(&events.EventSinkImpl{Interface: api.EventsV1()}),
	}
	e.reporter = report.New(api, e.events.NewRecorder(scheme.Scheme, o.config.Name()), log)
	core := e.informers.Core().V1()
	services, sets := core.Services(), e.informers.Apps().V1().ReplicaSets()
	budgets := e.informers.Policy().V1().PodDisruptionBudgets()
	claims, volumes, classes := core.PersistentVolumeClaims(), core.PersistentVolumes(), e.informers.Storage().V1().StorageClasses()
	csiNodes, capacities, drivers := e.informers.Storage().V1().CSINodes(), e.informers.Storage().V1().CSIStorageCapacities(), e.informers.Storage().V1().CSIDrivers()
	held := scheduler.NewWaiting()
	handle := framework.Handle{
		Waiting:   held,
		Binder:    e.reporter,
		Evictor:   report.Evictor{Reporter: e.reporter, PodDisruptionBudgets: budgets.Lister()},
		Workloads: feed.Workloads{Services: services.Lister(), ReplicaSets: sets.Lister()},
		Volumes:   feed.Volumes{Client: api, Claims: claims.Lister(), Listed: volumes.Lister(), Classes: classes.Lister(), Nodes: core.Nodes().Lister(), Storage: csiNodes.Lister(), Free: capacities.Lister(), Drivers: drivers.Lister()},
	}
	profiles, err := o.config.Build(handle)
	if err != nil {
		return nil, &component.UsageError{Err: err}
	}
	metrics := scheduler.NewMetrics(registry)
	initial, longest := o.config.Backoff()
	waiting := queue.New(profiles, queue.Options{InitialBackoff: initial, MaxBackoff: longest, Incoming: metrics.Incoming})
	known := schedulercache.New()
	scheduler.RegisterDepths(registry, waiting, known)
	nominees := scheduler.NewNominees()
	e.scheduler = scheduler.New(scheduler.Config{
		Profiles: profiles, Cache: known, Queue: waiting, Nominees: nominees, Waiting: held, Pods: podReader{core.Pods().Lister()},
		Reporter: e.reporter, Metrics: metrics, Log: log,
	})
	source := &feed.Feed{
		Cache: known, Queue: waiting, Nominees: nominees, Log: log,
		Responsible: func(name string) bool { return profiles[name] != nil },
	}
	for _, watched := range []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{core.Nodes().Informer(), source.Nodes()}, {core.Namespaces().Informer(), source.Namespaces()}, {core.Pods().Informer(), source.Pods()},
		{claims.Informer(), source.Storage()}, {volumes.Informer(), source.Storage()}, {classes.Informer(), source.Storage()},
		{csiNodes.Informer(), source.Storage()}, {capacities.Informer(), source.Storage()}, {drivers.Informer(), source.Storage()},
	} {
		registration, err := watched.informer.AddEventHandler(watched.handler)
		if err != nil {
			return nil, fmt.Errorf("adding event handler: %w", err)
		}
		e.synced = append(e.synced, registration.HasSynced)
	}
	e.synced = append(e.synced, services.Informer().HasSynced, sets.Informer().HasSynced, budgets.Informer().HasSynced)
	return e, nil
}

// podReader reads pods from the informer.
type podReader struct{ lister corelisters.PodLister }

func (r podReader) Get(namespace, name string) *corev1.Pod {
	pod, err := r.lister.Pods(namespace).Get(name)
	if err != nil {
		return nil
	}
	return pod
}

// trim drops what scheduling never reads.
func trim(object any) (any, error) {
	if typed, ok := object.(metav1.Object); ok {
		typed.SetManagedFields(nil)
	}
	return object, nil
}

func handler(registry *prometheus.Registry, health *component.Health, explain *scheduler.Scheduler) http.Handler {
	mux := http.NewServeMux()
	health.Install(mux)
	mux.Handle("GET /metrics", component.MetricsHandler(registry))
	mux.Handle("GET /explain/pods/{namespace}/{name}", explainer(explain))
	return mux
}

// explainer answers with the verdict of each filter on each node for one pod.
func explainer(s *scheduler.Scheduler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		namespace, name := r.PathValue("namespace"), r.PathValue("name")
		explanation, err := s.Explain(r.Context(), namespace, name)
		switch {
		case err != nil:
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		case explanation == nil:
			http.Error(w, fmt.Sprintf("pod %s/%s not found", namespace, name), http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		_ = encoder.Encode(explanation) // the client is gone when this fails
	})
}
