package app

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/sampan-io/sampan/services/controller-manager/internal/account"
	"github.com/sampan-io/sampan/services/controller-manager/internal/controller"
	"github.com/sampan-io/sampan/services/internal/component"
	"github.com/sampan-io/sampan/services/internal/delegated"
)

// Run serves, waits for the lead, and runs the controllers until ctx ends or the
// lead is lost.
func (o *Options) Run(ctx context.Context, log *slog.Logger) error {
	registry := component.NewMetrics()
	component.RegisterClientMetrics(registry)
	component.RegisterWorkqueueMetrics(registry)
	root, config, err := o.client.Clientset("kube-controller-manager")
	if err != nil {
		return err
	}
	gate, err := o.access.Gate("kube-controller-manager", root, log)
	if err != nil {
		return &component.UsageError{Err: err}
	}
	health := component.NewHealth()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := o.serving.Serve(ctx, gate.Wrap(delegated.PathAttributes, handler(registry, health))); err != nil {
			return err
		}
		return ctx.Err()
	})
	group.Go(func() error {
		if err := o.election.Run(ctx, root, func(ctx context.Context) error {
			log.Info("Leading, starting controllers")
			return o.lead(ctx, log, root, config)
		}); err != nil {
			return err
		}
		return ctx.Err()
	})
	return group.Wait()
}

func handler(registry *prometheus.Registry, health *component.Health) http.Handler {
	mux := http.NewServeMux()
	health.Install(mux)
	mux.Handle("/metrics", component.MetricsHandler(registry))
	return mux
}

// lead makes the controllers, starts the informers that they asked for, and runs
// them until ctx ends.
func (o *Options) lead(ctx context.Context, log *slog.Logger, root kubernetes.Interface, config *rest.Config) error {
	events := controller.NewBroadcaster(ctx, root)
	defer events.Shutdown()
	env, err := o.shared(log, root, config, events)
	if err != nil {
		return err
	}
	enabled, err := o.enabled()
	if err != nil {
		return err
	}
	clients := account.New(root, config)
	runners := map[string]controller.Runner{}
	for _, definition := range enabled {
		own := env
		if o.ownAccounts {
			if err := actAs(&own, clients.Config(definition.Account)); err != nil {
				return err
			}
		}
		runner, err := definition.New(own)
		if err != nil {
			return &component.UsageError{Err: fmt.Errorf("starting %s: %w", definition.Name, err)}
		}
		if runner == nil {
			log.Info("Controller has nothing to do with this configuration", "controller", definition.Name)
			continue
		}
		runners[definition.Name] = runner
	}
	group, ctx := errgroup.WithContext(ctx)
	env.Informers.Start(ctx.Done())
	for name, runner := range runners {
		group.Go(func() error {
			if err := runner.Run(ctx); err != nil {
				return fmt.Errorf("running %s: %w", name, err)
			}
			if ctx.Err() == nil {
				return fmt.Errorf("running %s: it ended by itself", name)
			}
			return nil
		})
	}
	err = group.Wait()
	env.Informers.Shutdown()
	env.MetadataInformers.Shutdown()
	return err
}

// shared is what all controllers use: informers that watch as the controller
// manager itself, without managed fields, which no controller reads.
func (o *Options) shared(log *slog.Logger, root kubernetes.Interface, config *rest.Config, events controller.EventSink) (controller.Env, error) {
	meta, err := metadata.NewForConfig(rest.CopyConfig(config))
	if err != nil {
		return controller.Env{}, fmt.Errorf("making metadata client: %w", err)
	}
	cached := memory.NewMemCacheClient(root.Discovery())
	return controller.Env{
		Client: root, Metadata: meta, Discovery: root.Discovery(),
		Mapper:            restmapper.NewDeferredDiscoveryRESTMapper(cached),
		Informers:         informers.NewSharedInformerFactoryWithOptions(root, 0, informers.WithTransform(trim)),
		MetadataInformers: metadatainformer.NewSharedInformerFactoryWithOptions(meta, 0, metadatainformer.WithTransform(trim)),
		Events:            events, Config: o.config, Log: log,
	}, nil
}

func trim(object any) (any, error) {
	if typed, ok := object.(interface {
		SetManagedFields([]metav1.ManagedFieldsEntry)
	}); ok {
		typed.SetManagedFields(nil)
	}
	return object, nil
}

func actAs(env *controller.Env, config *rest.Config) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making client: %w", err)
	}
	meta, err := metadata.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making metadata client: %w", err)
	}
	env.Client, env.Metadata, env.Discovery = client, meta, client.Discovery()
	return nil
}
