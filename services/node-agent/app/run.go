package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/sampan-io/sampan/services/internal/component"
	"github.com/sampan-io/sampan/services/internal/delegated"
	"github.com/sampan-io/sampan/services/node-agent/internal/admission"
	"github.com/sampan-io/sampan/services/node-agent/internal/cgroups"
	"github.com/sampan-io/sampan/services/node-agent/internal/cri"
	"github.com/sampan-io/sampan/services/node-agent/internal/criconfig"
	"github.com/sampan-io/sampan/services/node-agent/internal/csi"
	"github.com/sampan-io/sampan/services/node-agent/internal/draining"
	"github.com/sampan-io/sampan/services/node-agent/internal/eviction"
	"github.com/sampan-io/sampan/services/node-agent/internal/identity"
	"github.com/sampan-io/sampan/services/node-agent/internal/imagegc"
	"github.com/sampan-io/sampan/services/node-agent/internal/logs"
	"github.com/sampan-io/sampan/services/node-agent/internal/metrics"
	"github.com/sampan-io/sampan/services/node-agent/internal/network"
	"github.com/sampan-io/sampan/services/node-agent/internal/node"
	"github.com/sampan-io/sampan/services/node-agent/internal/objects"
	"github.com/sampan-io/sampan/services/node-agent/internal/pluginregistration"
	"github.com/sampan-io/sampan/services/node-agent/internal/podevents"
	"github.com/sampan-io/sampan/services/node-agent/internal/podresources"
	"github.com/sampan-io/sampan/services/node-agent/internal/podworker"
	"github.com/sampan-io/sampan/services/node-agent/internal/probes"
	"github.com/sampan-io/sampan/services/node-agent/internal/qos"
	"github.com/sampan-io/sampan/services/node-agent/internal/runtime"
	"github.com/sampan-io/sampan/services/node-agent/internal/shutdown"
	"github.com/sampan-io/sampan/services/node-agent/internal/status"
	"github.com/sampan-io/sampan/services/node-agent/internal/tokens"
	"github.com/sampan-io/sampan/services/node-agent/internal/users"
	"github.com/sampan-io/sampan/services/node-agent/internal/volumes"
)

// agent is the node agent with all its parts.
type agent struct {
	*Options
	log      *slog.Logger
	api      kubernetes.Interface
	registry *prometheus.Registry
	probing  *prometheus.Registry
	metrics  *metrics.Metrics

	runtime  *runtime.Server // nil with another runtime
	cri      *cri.Client
	node     *node.Node
	cgroups  qos.Tree
	objects  *objects.Store
	volumes  *volumes.Manager
	csi      *csi.Store
	tokens   *tokens.Source
	probes   *probes.Set
	status   *status.Publisher
	events   *podevents.Recorder
	workers  *podworker.Workers
	users    *users.Ranges
	imageGC  *imagegc.Collector
	proxies  *draining.Proxies
	evictor  *eviction.Manager
	assign   *assigner
	shutdown *shutdown.Watch
	services cache.SharedIndexInformer
	factory  informers.SharedInformerFactory
	gate     *delegated.Gate
	// ownClient and ownServing are nil where certificates come from elsewhere.
	ownClient  *identity.Client
	ownServing *identity.Serving
	// machineMemory is in bytes.
	machineMemory int64
	synced        chan struct{} // closed when the pods of all sources are known
}

// Run runs pods until ctx ends. Their containers go on after that.
func (o *Options) Run(ctx context.Context, log *slog.Logger) error {
	a := &agent{Options: o, log: log, registry: component.NewMetrics(), probing: prometheus.NewRegistry(), synced: make(chan struct{})}
	component.RegisterClientMetrics(a.registry)
	a.metrics = metrics.New(a.registry, a.probing, metrics.Sources{NodeName: a.hostname, Running: func() (int, map[string]int) { return countRunning(a.workers) }})
	if err := a.prepare(); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	if a.runtime != nil {
		group.Go(func() error { return ended(ctx, a.runtime.Run(ctx)) })
	}
	err := a.assemble(ctx)
	if err == nil {
		a.start(ctx, group)
	} else {
		group.Go(func() error { return err })
	}
	err = group.Wait()
	a.close()
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

// prepare makes directories, control groups and the runtime.
func (a *agent) prepare() error {
	if a.failSwapOn && swapOn() {
		return &component.UsageError{Err: errors.New("swap is on, and --fail-swap-on is set")}
	}
	if len(a.parsed.nodeIPs) == 0 {
		ip, err := defaultAddress()
		if err != nil {
			return err
		}
		a.parsed.nodeIPs = []netip.Addr{ip}
	}
	for _, dir := range []string{a.rootDir, a.runDir, a.podLogs, filepath.Join(a.rootDir, "pods")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return &component.UsageError{Err: fmt.Errorf("making directories: %w", err)}
		}
	}
	if a.failCgroupV1 && !cgroups.Detect().Unified() {
		return &component.UsageError{Err: errors.New("this machine has control groups of version 1, and failCgroupV1 is set")}
	}
	if a.swapBehavior == limitedSwap && !cgroups.Detect().Unified() {
		return &component.UsageError{Err: errors.New("memorySwap.swapBehavior: LimitedSwap needs control groups of version 2, and this machine has version 1")}
	}
	a.cgroups = qos.Tree{Root: a.cgroupRoot, Hierarchy: cgroups.Detect(), PIDsLimit: a.podPIDs, CFSQuota: a.cfsQuota}
	if err := a.cgroups.Ensure(); err != nil {
		return err
	}
	if a.endpoint != "" {
		return nil
	}
	return a.makeRuntime()
}

func (a *agent) cniConf() string {
	if a.tools.cniConf != "" {
		return a.tools.cniConf
	}
	return filepath.Join(a.rootDir, "cni-conf")
}

func (a *agent) makeRuntime() error {
	config, err := a.runtimeOptions.config(a.log)
	if err != nil {
		return err
	}
	a.endpoint = filepath.Join(a.runDir, "cri.sock")
	config.Root, config.Run, config.Socket = a.rootDir, a.runDir, a.endpoint
	config.Network.ConfDir = a.cniConf()
	config.CgroupParent = filepath.Join("/", a.cgroupRoot, "kubepods")
	config.StreamIdle, config.Observe = a.streamIdle, a.metrics.ObserveStep
	a.runtime, err = runtime.New(config)
	if err != nil {
		return fmt.Errorf("opening the container runtime: %w", err)
	}
	return nil
}

// assemble makes the parts and connects them.
func (a *agent) assemble(ctx context.Context) error {
	var err error
	if err := a.identify(ctx); err != nil {
		return err
	}
	if a.cri, err = cri.Dial(a.endpoint, a.metrics); err != nil {
		return err
	}
	version, err := a.cri.AwaitReady(ctx)
	if err != nil {
		return err
	}
	a.gate, err = delegated.New(delegated.Config{
		Client: a.api, ClientCAFile: a.clientCA, TokenTTL: 2 * time.Minute, AllowedTTL: 5 * time.Minute, DeniedTTL: 30 * time.Second, Log: a.log,
	})
	if err != nil {
		return &component.UsageError{Err: err}
	}
	machine, err := node.ReadMachine()
	if err != nil {
		return err
	}
	a.evictor = a.evictions(machine)
	a.shutdown = shutdown.New(shutdown.Config{
		Periods: a.parsed.shutdown, Announcer: shutdown.Logind{}, Pods: evictor{a}, Changed: func() { a.node.Changed() }, Event: func(text string) { a.events.Node(false, "NodeShutdown", text) }, Log: a.log,
	})
	a.node = node.New(a.nodeConfig(machine))
	if err := a.enforceAllocatable(machine.Memory); err != nil {
		return &component.UsageError{Err: err}
	}
	if a.assign, err = a.newAssigner(machine); err != nil {
		return &component.UsageError{Err: err}
	}
	a.machineMemory = machine.Memory
	a.factory = informers.NewSharedInformerFactory(a.api, 0)
	a.services = a.factory.Core().V1().Services().Informer()
	a.events = podevents.New(context.WithoutCancel(ctx), a.api, a.hostname)
	a.status = status.NewPublisher(a.api, a.log)
	a.tokens = tokens.New(a.api)
	a.objects = objects.New(a.api, func(uid types.UID) {
		a.volumes.Changed(uid)
		a.workers.Wake(uid)
	})
	a.csi = csi.New(csi.Config{
		Root: a.rootDir, NodeName: a.hostname, Client: a.api, Secrets: a.objects, Tokens: a.tokens, Node: a.node, Metrics: a.registry, Log: a.log,
	})
	a.volumes = volumes.New(volumes.Config{
		Root: a.rootDir, Objects: a.objects, Claims: a.objects, CSI: a.csi, Bundles: a.objects, Tokens: a.tokens, Allocatable: a.node.Allocatable, Log: a.log,
		Failed: func(pod *corev1.Pod, volume string, err error) {
			a.events.Event(pod, nil, true, "FailedMount", fmt.Sprintf("MountVolume.SetUp failed for volume %q : %v", volume, err))
		},
	})
	a.probes = probes.New(probes.Config{
		Executor: runtimeAdapter{a.cri}, Observed: a.metrics.ObserveProbe,
		Changed: func(uid types.UID) { a.workers.Wake(uid) },
		Unhealthy: func(pod *corev1.Pod, container *corev1.Container, reason, message string) {
			a.events.Event(pod, container, true, reason, message)
		},
	})
	a.proxies = draining.New(a.proxy, a.proxySilent, a.log)
	if a.users, err = users.Open(filepath.Join(a.rootDir, "pods")); err != nil {
		return err
	}
	a.imageGC = a.collector()
	puller, err := a.puller()
	if err != nil {
		return err
	}
	config := a.workersConfig(version.GetRuntimeName(), machine)
	config.Puller = puller
	a.workers = podworker.New(config)
	return nil
}

func (a *agent) nodeConfig(machine node.Machine) node.Config {
	return node.Config{
		Name: a.hostname, IPs: a.parsed.nodeIPs, Labels: a.labels, Taints: a.parsed.taints, Register: a.registerNode, ProviderID: a.providerID,
		Port: int32(a.port), MaxPods: a.maxPods, RootDir: a.rootDir, Reserved: a.reserved, Pressure: a.evictor.Conditions,
		Unready: func() string {
			if a.shutdown.Going() {
				return "node is shutting down"
			}
			return ""
		},
		Devices: func() (capacity, allocatable corev1.ResourceList) {
			if a.assign == nil {
				return nil, nil
			}
			return a.assign.devices.Resources()
		},
		Kept: func(capacity corev1.ResourceList) corev1.ResourceList {
			return eviction.Kept(a.parsed.thresholds, capacity)
		},
		VolumesInUse: func() []corev1.UniqueVolumeName { return a.csi.InUse() },
		MaxImages:    a.maxImages,
		UpdateEvery:  a.statusEvery, ReportEvery: a.reportEvery, LeaseFor: a.leaseFor,
		Machine: machine, Client: a.api, Runtime: runtimeAdapter{a.cri}, PodCIDRs: a.setPodCIDRs, Log: a.log,
	}
}

func (a *agent) workersConfig(runtimeName string, machine node.Machine) podworker.Config {
	host, err := os.Hostname()
	if err != nil {
		host = a.hostname
	}
	admit := admission.Node{
		Name: a.hostname, Allocatable: a.node.Allocatable, UnsafeSysctls: a.sysctls,
		Labels: func() map[string]string {
			if object := a.node.Object(); object != nil {
				return object.Labels
			}
			return nil
		},
	}
	return podworker.Config{
		Runtime: a.cri, RuntimeName: runtimeName,
		Node: criconfig.Node{
			Name: a.hostname, HostIPs: addressStrings(a.parsed.nodeIPs), Hostname: host, LogsDir: a.podLogs,
			ClusterDNS: a.clusterDNS, ClusterDomain: a.clusterDomain, ResolvConf: a.resolvConf, Cgroups: a.cgroups,
			MemoryCapacity: machine.Memory, Allocatable: a.node.Allocatable, SeccompRoot: filepath.Join(a.rootDir, "seccomp"), SeccompDefault: a.seccomp,
			UnsafeSysctls: a.sysctls, Users: a.users.Namespace,
			SwapCapacity: a.swapFor(machine), HugePages: slices.Sorted(maps.Keys(machine.HugePages)),
		},
		Cgroups: a.cgroups, Volumes: a.volumes, Objects: a.objects, Services: listServices(a.services.GetStore().List),
		Probes: a.probes, Status: a.status, Events: a.events, Observer: a.metrics,
		Admit: func(pod *corev1.Pod, others []*corev1.Pod) *status.End {
			if end := a.shutdown.Admit(); end != nil {
				return end
			}
			if end := a.evictor.Admit(pod); end != nil {
				end.Message = "Pod was rejected: " + end.Message
				return end
			}
			return admit.Admit(pod, others)
		},
		Preempt:  admit.Preempt,
		Assigner: a.assign, Resizable: a.resizable(admit),
		Drainer: a.proxies, Handler: handlerOf(a.api), MaxRestartPause: a.maxRestartPause, RuntimeTimeout: a.runtimeTimeout, Log: a.log,
	}
}

// setPodCIDRs configures the pod network, unless the operator has.
func (a *agent) setPodCIDRs(_ context.Context, cidrs []netip.Prefix) error {
	if a.runtime == nil || a.tools.cniConf != "" {
		return nil
	}
	a.log.Info("Configuring the pod network", "cidrs", addressStrings(cidrs))
	return network.WriteBridgeConfig(a.cniConf(), network.BridgeConfig{
		Bridge: a.bridge, PodCIDRs: cidrs, DataDir: filepath.Join(a.rootDir, "cni-data"), MTU: a.mtu, IPMasq: a.masquerade,
	})
}

// start runs everything in group.
func (a *agent) start(ctx context.Context, group *errgroup.Group) {
	health := a.healthChecks()
	group.Go(func() error { return ended(ctx, a.serve(ctx, a.handler(health))) })
	if a.health.port != 0 {
		group.Go(func() error { return ended(ctx, a.serveHealth(ctx, health)) })
	}
	group.Go(func() error { return ended(ctx, a.node.Run(ctx)) })
	group.Go(func() error { return ended(ctx, a.cri.Watch(ctx, a.workers, a.log)) })
	a.factory.StartWithContext(ctx)
	group.Go(func() error { return ended(ctx, a.feed(ctx)) })
	rotator := &logs.Rotator{
		Root: a.podLogs, Runtime: podLogs{runtimeAdapter{a.cri}, a.workers}, MaxSize: a.parsed.logMaxSize, MaxFiles: a.logMaxFiles,
		Interval: a.logCheckEvery, Log: a.log,
	}
	group.Go(func() error { return ended(ctx, rotator.Run(ctx)) })
	limits := &eviction.LocalStorage{Pods: a.workers, Disk: podDisk{a}, Every: 10 * time.Second, Evicted: a.tellEvicted, Log: a.log}
	group.Go(func() error { return ended(ctx, limits.Run(ctx)) })
	group.Go(func() error { return ended(ctx, a.evictor.Run(ctx)) })
	group.Go(func() error { return ended(ctx, a.assign.devices.Run(ctx)) })
	group.Go(func() error { return ended(ctx, a.shareCPUs(ctx)) })
	group.Go(func() error { return ended(ctx, a.shutdown.Run(ctx)) })
	resources := &podresources.Server{Pods: a.workers.Pods, Devices: a.assign.devices, CPUs: a.assign.cpus, Memory: a.assign.memory}
	group.Go(func() error {
		return ended(ctx, resources.Run(ctx, filepath.Join(a.rootDir, "pod-resources", "kubelet.sock")))
	})
	group.Go(func() error { return ended(ctx, a.imageGC.Run(ctx)) })
	group.Go(func() error { return ended(ctx, a.csi.Run(ctx, a.synced)) })
	plugins := &pluginregistration.Watcher{
		Dir: filepath.Join(a.rootDir, "plugins_registry"), Handlers: map[string]pluginregistration.Handler{registerapi.CSIPlugin: a.csi}, Log: a.log,
	}
	group.Go(func() error { return ended(ctx, plugins.Run(ctx)) })
	sweeper := &orphans{client: a.cri, workers: a.workers, volumes: a.volumes, cgroups: a.cgroups, log: a.log}
	group.Go(func() error { return ended(ctx, sweeper.run(ctx, a.synced)) })
}

// close ends what was not started in a group. Containers go on.
func (a *agent) close() {
	if a.workers != nil {
		a.workers.Close()
	}
	if a.proxies != nil {
		a.proxies.Close()
	}
	if a.probes != nil {
		a.probes.Close()
	}
	if a.volumes != nil {
		a.volumes.Close()
	}
	if a.objects != nil {
		a.objects.Close()
	}
	if a.status != nil {
		a.status.Close()
	}
	if a.events != nil {
		a.events.Close()
	}
	if a.factory != nil {
		a.factory.Shutdown()
	}
	if a.cri != nil {
		_ = a.cri.Close()
	}
	if a.ownClient != nil {
		a.ownClient.Stop()
	}
	if a.ownServing != nil {
		a.ownServing.Stop()
	}
}
