package app

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/sampan-io/sampan/services/internal/component"
	"github.com/sampan-io/sampan/services/node-agent/internal/podsource"
	"github.com/sampan-io/sampan/services/node-agent/internal/server"
)

// feed hands pods to the workers, after what they need is known.
func (a *agent) feed(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), a.services.HasSynced) {
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	forget := func(uid types.UID) {
		a.tokens.Forget(uid)
		a.metrics.ForgetPod(string(uid))
	}
	mirrors := &podsource.Mirrors{Client: a.api, Node: a.node.Object, Seen: a.status.SeenAs, Log: a.log}
	group.Go(func() error { return ended(ctx, mirrors.Run(ctx)) })
	apiSynced, filesSynced := make(chan struct{}), make(chan struct{})
	if a.manifests != "" {
		files := a.files(mirrors)
		files.Synced = func() { close(filesSynced) }
		group.Go(func() error { return ended(ctx, files.Run(ctx)) })
	} else {
		close(filesSynced)
	}
	group.Go(func() error {
		for _, synced := range []<-chan struct{}{apiSynced, filesSynced} {
			select {
			case <-synced:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		close(a.synced)
		return nil
	})
	source := &podsource.API{
		Client: a.api, Node: a.hostname, Sink: sink{a.workers, forget}, Mirror: mirrors.Observe,
		Synced: func(map[types.UID]struct{}) { close(apiSynced) },
	}
	group.Go(func() error { return ended(ctx, source.Run(ctx)) })
	return group.Wait()
}

// files are the static pods.
func (a *agent) files(mirrors *podsource.Mirrors) *podsource.Files {
	return &podsource.Files{
		Dir: a.manifests, Node: a.hostname, Log: a.log,
		Update: func(pod *corev1.Pod) {
			a.workers.UpdateStatic(pod)
			mirrors.Add(pod)
		},
		Remove: func(uid types.UID) {
			a.workers.Remove(uid)
			mirrors.Remove(uid)
		},
	}
}

func (a *agent) healthChecks() *component.Health {
	health := component.NewHealth()
	health.AddLive(component.Check{Name: "runtime", Probe: func(ctx context.Context) error {
		_, err := runtimeAdapter{a.cri}.Version(ctx)
		return err
	}})
	health.AddReady(component.Check{Name: "node-registered", Probe: func(context.Context) error {
		if a.node.Object() == nil {
			return errors.New("the node is not registered yet")
		}
		return nil
	}})
	return health
}

func (a *agent) serveHealth(ctx context.Context, health *component.Health) error {
	listener, err := component.Listen(ctx, net.JoinHostPort(a.health.address, strconv.Itoa(a.health.port)))
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	health.Install(mux)
	return component.Serve(ctx, listener, mux, nil)
}

func (a *agent) handler(health *component.Health) http.Handler {
	mux := http.NewServeMux()
	health.Install(mux)
	return server.Handler(server.Config{
		Gate: a.gate, Pods: a.workers, Runtime: a.cri.RuntimeServiceClient, LogsDir: a.podLogs, Stats: a.summarizer(), Health: mux,
		Metrics: a.metricsHandlers(), Config: a.describe(), Log: a.log,
	})
}
