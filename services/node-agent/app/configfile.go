package app

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/sampan-io/sampan/services/node-agent/internal/eviction"
	"github.com/sampan-io/sampan/services/node-agent/internal/shutdown"
)

// merge takes what the file says wherever no flag was given.
func (o *Options) merge(c *kubeletv1beta1.KubeletConfiguration) error {
	unset := func(flag string) bool { return !o.flags.Changed(flag) }
	take(&o.address, c.Address, unset("address"))
	take(&o.port, int(c.Port), unset("port"))
	take(&o.certFile, c.TLSCertFile, unset("tls-cert-file"))
	take(&o.keyFile, c.TLSPrivateKeyFile, unset("tls-private-key-file"))
	take(&o.rotateClient, c.RotateCertificates, unset("rotate-certificates"))
	take(&o.rotateServing, c.ServerTLSBootstrap, unset("rotate-server-certificates"))
	take(&o.clientCA, c.Authentication.X509.ClientCAFile, unset("client-ca-file"))
	take(&o.manifests, c.StaticPodPath, unset("pod-manifest-path"))
	take(&o.podLogs, c.PodLogsDir, unset("pod-logs-dir"))
	take(&o.clusterDomain, c.ClusterDomain, unset("cluster-domain"))
	take(&o.cgroupRoot, c.CgroupRoot, unset("cgroup-root"))
	take(&o.maxPods, int64(c.MaxPods), unset("max-pods"))
	take(&o.endpoint, c.ContainerRuntimeEndpoint, unset("container-runtime-endpoint"))
	take(&o.providerID, c.ProviderID, unset("provider-id"))
	take(&o.logMaxSize, c.ContainerLogMaxSize, unset("container-log-max-size"))
	takePointer(&o.resolvConf, c.ResolverConfig, unset("resolv-conf"))
	takePointer(&o.podPIDs, c.PodPidsLimit, unset("pod-max-pids"))
	takePointer(&o.registerNode, c.RegisterNode, unset("register-node"))
	takePointer(&o.failSwapOn, c.FailSwapOn, unset("fail-swap-on"))
	takePointer(&o.seccomp, c.SeccompDefault, unset("seccomp-default"))
	take(&o.swapBehavior, c.MemorySwap.SwapBehavior, true)
	takePointer(&o.cfsQuota, c.CPUCFSQuota, true)
	takePointer(&o.failCgroupV1, c.FailCgroupV1, true)
	takePointer(&o.health.port, intPointer(c.HealthzPort), unset("healthz-port"))
	take(&o.health.address, c.HealthzBindAddress, unset("healthz-bind-address"))
	if len(c.ClusterDNS) > 0 && unset("cluster-dns") {
		o.clusterDNS = c.ClusterDNS
	}
	if len(c.AllowedUnsafeSysctls) > 0 && unset("allowed-unsafe-sysctls") {
		o.sysctls = c.AllowedUnsafeSysctls
	}
	if c.ContainerLogMaxFiles != nil && unset("container-log-max-files") {
		o.logMaxFiles = int(*c.ContainerLogMaxFiles)
	}
	if len(c.RegisterWithTaints) > 0 && unset("register-with-taints") {
		o.parsed.taints = c.RegisterWithTaints
	}
	o.mergeTimes(c)
	o.mergeImages(c)
	o.mergeEviction(c)
	if err := o.mergeShutdown(c); err != nil {
		return err
	}
	return o.mergeReserved(c)
}

func (o *Options) mergeTimes(c *kubeletv1beta1.KubeletConfiguration) {
	take(&o.statusEvery, c.NodeStatusUpdateFrequency.Duration, true)
	take(&o.reportEvery, c.NodeStatusReportFrequency.Duration, true)
	take(&o.leaseFor, time.Duration(c.NodeLeaseDurationSeconds)*time.Second, true)
	take(&o.runtimeTimeout, c.RuntimeRequestTimeout.Duration, true)
	take(&o.streamIdle, c.StreamingConnectionIdleTimeout.Duration, true)
	if c.ContainerLogMonitorInterval != nil {
		take(&o.logCheckEvery, c.ContainerLogMonitorInterval.Duration, true)
	}
	if c.CrashLoopBackOff.MaxContainerRestartPeriod != nil {
		take(&o.maxRestartPause, c.CrashLoopBackOff.MaxContainerRestartPeriod.Duration, true)
	}
	if c.NodeStatusMaxImages != nil {
		o.maxImages = int(*c.NodeStatusMaxImages)
	}
}

// mergeEviction takes thresholds of the file whole: those that it leaves out are
// none, unless mergeDefaultEvictionSettings says otherwise.
func (o *Options) mergeEviction(c *kubeletv1beta1.KubeletConfiguration) {
	if c.EvictionHard != nil {
		hard := map[string]string{}
		if c.MergeDefaultEvictionSettings != nil && *c.MergeDefaultEvictionSettings {
			hard = eviction.DefaultHard()
		}
		maps.Copy(hard, c.EvictionHard)
		o.evict.settings.Hard = hard
	}
	o.evict.settings.Soft, o.evict.settings.SoftGrace, o.evict.settings.MinReclaim = c.EvictionSoft, c.EvictionSoftGracePeriod, c.EvictionMinimumReclaim
	take(&o.evict.transition, c.EvictionPressureTransitionPeriod.Duration, !o.flags.Changed("eviction-pressure-transition-period"))
	take(&o.evict.maxGrace, int64(c.EvictionMaxPodGracePeriod), !o.flags.Changed("eviction-max-pod-grace-period"))
}

func (o *Options) mergeShutdown(c *kubeletv1beta1.KubeletConfiguration) error {
	total, forCritical := c.ShutdownGracePeriod.Duration, c.ShutdownGracePeriodCriticalPods.Duration
	switch {
	case forCritical > total:
		return errors.New("shutdownGracePeriodCriticalPods is longer than shutdownGracePeriod")
	case total < 0 || forCritical < 0 || (total > 0 && total < time.Second) || (forCritical > 0 && forCritical < time.Second):
		return errors.New("shutdownGracePeriod and shutdownGracePeriodCriticalPods are either zero or at least a second")
	case total > 0 && len(c.ShutdownGracePeriodByPodPriority) > 0:
		return errors.New("shutdownGracePeriodByPodPriority does not go with shutdownGracePeriod")
	}
	o.parsed.shutdown = shutdown.Periods(total, forCritical)
	for _, p := range c.ShutdownGracePeriodByPodPriority {
		o.parsed.shutdown = append(o.parsed.shutdown, shutdown.Period{Priority: p.Priority, Grace: time.Duration(p.ShutdownGracePeriodSeconds) * time.Second})
	}
	return nil
}

// shutdownPeriods are those in upstream's form.
func (o *Options) shutdownPeriods() []kubeletv1beta1.ShutdownGracePeriodByPodPriority {
	var out []kubeletv1beta1.ShutdownGracePeriodByPodPriority
	for _, p := range o.parsed.shutdown {
		out = append(out, kubeletv1beta1.ShutdownGracePeriodByPodPriority{Priority: p.Priority, ShutdownGracePeriodSeconds: int64(p.Grace / time.Second)})
	}
	return out
}

func (o *Options) mergeReserved(c *kubeletv1beta1.KubeletConfiguration) error {
	unset := func(flag string) bool { return !o.flags.Changed(flag) }
	take(&o.cpuPolicy, c.CPUManagerPolicy, unset("cpu-manager-policy"))
	take(&o.memoryPolicy, c.MemoryManagerPolicy, unset("memory-manager-policy"))
	take(&o.topologyPolicy, c.TopologyManagerPolicy, unset("topology-manager-policy"))
	take(&o.topologyScope, c.TopologyManagerScope, unset("topology-manager-scope"))
	take(&o.reservedCPUs, c.ReservedSystemCPUs, unset("reserved-cpus"))
	take(&o.systemGroup, c.SystemReservedCgroup, unset("system-reserved-cgroup"))
	take(&o.kubeGroup, c.KubeReservedCgroup, unset("kube-reserved-cgroup"))
	if c.SystemReserved != nil && unset("system-reserved") {
		o.systemReserved = c.SystemReserved
	}
	if c.KubeReserved != nil && unset("kube-reserved") {
		o.kubeReserved = c.KubeReserved
	}
	if c.EnforceNodeAllocatable != nil && unset("enforce-node-allocatable") {
		o.enforce = c.EnforceNodeAllocatable
	}
	if len(c.ReservedMemory) > 0 && unset("reserved-memory") {
		o.parsed.reservedMemory = map[int]int64{}
		for _, r := range c.ReservedMemory {
			for name, amount := range r.Limits {
				if name != corev1.ResourceMemory {
					return fmt.Errorf("reservedMemory: %s is not supported, only memory is", name)
				}
				o.parsed.reservedMemory[int(r.NumaNode)] += amount.Value()
			}
		}
	}
	return nil
}

func intPointer(n *int32) *int {
	if n == nil {
		return nil
	}
	out := int(*n)
	return &out
}

func take[T comparable](target *T, value T, wanted bool) {
	var none T
	if wanted && value != none {
		*target = value
	}
}

func takePointer[T any](target *T, value *T, wanted bool) {
	if wanted && value != nil {
		*target = *value
	}
}

// reservations are those of memory in upstream's form.
func (o *Options) reservations() []kubeletv1beta1.MemoryReservation {
	var out []kubeletv1beta1.MemoryReservation
	for _, id := range slices.Sorted(maps.Keys(o.parsed.reservedMemory)) {
		out = append(out, kubeletv1beta1.MemoryReservation{
			NumaNode: int32(id), Limits: corev1.ResourceList{corev1.ResourceMemory: *resource.NewQuantity(o.parsed.reservedMemory[id], resource.BinarySI)},
		})
	}
	return out
}

// describe is the configuration in upstream's form.
func (o *Options) describe() *kubeletv1beta1.KubeletConfiguration {
	no, yes, files, images, healthPort := false, true, int32(o.logMaxFiles), int32(o.maxImages), int32(o.health.port)
	c := &kubeletv1beta1.KubeletConfiguration{
		TypeMeta: metav1.TypeMeta{Kind: "KubeletConfiguration", APIVersion: kubeletv1beta1.SchemeGroupVersion.String()},
		Address:  o.address, Port: int32(o.port), TLSCertFile: o.certFile, TLSPrivateKeyFile: o.keyFile,
		StaticPodPath: o.manifests, PodLogsDir: o.podLogs, ClusterDNS: o.clusterDNS, ClusterDomain: o.clusterDomain, ResolverConfig: &o.resolvConf,
		CgroupRoot: o.cgroupRoot, CgroupDriver: o.cgroupDriver, CgroupsPerQOS: &yes, CPUCFSQuota: &o.cfsQuota, PodPidsLimit: &o.podPIDs,
		MaxPods: int32(o.maxPods), ContainerLogMaxSize: o.logMaxSize, ContainerLogMaxFiles: &files, ContainerRuntimeEndpoint: o.endpoint,
		NodeStatusUpdateFrequency: metav1.Duration{Duration: o.statusEvery}, NodeStatusReportFrequency: metav1.Duration{Duration: o.reportEvery},
		NodeLeaseDurationSeconds: int32(o.leaseFor / time.Second), NodeStatusMaxImages: &images, SystemReserved: o.systemReserved, KubeReserved: o.kubeReserved,
		CPUManagerPolicy: o.cpuPolicy, MemoryManagerPolicy: o.memoryPolicy, TopologyManagerPolicy: o.topologyPolicy, TopologyManagerScope: o.topologyScope,
		ReservedSystemCPUs: o.reservedCPUs, ReservedMemory: o.reservations(), EnforceNodeAllocatable: o.enforce,
		SystemReservedCgroup: o.systemGroup, KubeReservedCgroup: o.kubeGroup,
		RegisterNode: &o.registerNode, RegisterWithTaints: o.parsed.taints, ProviderID: o.providerID, FailSwapOn: &o.failSwapOn,
		HealthzPort: &healthPort, HealthzBindAddress: o.health.address, FailCgroupV1: &o.failCgroupV1, EnableServer: &yes, EnableDebuggingHandlers: &yes,
		LocalStorageCapacityIsolation: &yes, RuntimeRequestTimeout: metav1.Duration{Duration: o.runtimeTimeout},
		StreamingConnectionIdleTimeout:   metav1.Duration{Duration: o.streamIdle},
		ContainerLogMonitorInterval:      &metav1.Duration{Duration: o.logCheckEvery},
		CrashLoopBackOff:                 kubeletv1beta1.CrashLoopBackOffConfig{MaxContainerRestartPeriod: &metav1.Duration{Duration: o.maxRestartPause}},
		ShutdownGracePeriodByPodPriority: o.shutdownPeriods(),
		EvictionHard:                     o.evict.settings.Hard, EvictionSoft: o.evict.settings.Soft, EvictionSoftGracePeriod: o.evict.settings.SoftGrace,
		EvictionMinimumReclaim: o.evict.settings.MinReclaim, EvictionPressureTransitionPeriod: metav1.Duration{Duration: o.evict.transition},
		EvictionMaxPodGracePeriod: int32(o.evict.maxGrace),
		SeccompDefault:            &o.seccomp, AllowedUnsafeSysctls: o.sysctls, SerializeImagePulls: &no,
		ConfigMapAndSecretChangeDetectionStrategy: kubeletv1beta1.WatchChangeDetectionStrategy,
	}
	o.images.describe(c)
	c.MemorySwap.SwapBehavior = o.swapBehavior
	c.RotateCertificates, c.ServerTLSBootstrap = o.rotateClient || o.bootstrap != "", o.rotateServing
	c.Authentication.Anonymous.Enabled, c.Authentication.Webhook.Enabled = &no, &yes
	c.Authentication.X509.ClientCAFile = o.clientCA
	c.Authorization.Mode = kubeletv1beta1.KubeletAuthorizationModeWebhook
	return c
}
