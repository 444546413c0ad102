package kubeletconfig

import (
	"errors"

	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
)

type rule func(c *kubeletv1beta1.KubeletConfiguration) error

// fieldRules are the fields that are taken; a rule refuses some of their values.
func fieldRules() map[string]rule {
	return map[string]rule{
		"kind": nil, "apiVersion": nil,
		"address": nil, "port": nil,
		"readOnlyPort": func(c *kubeletv1beta1.KubeletConfiguration) error {
			if c.ReadOnlyPort != 0 {
				return errors.New("only 0 is supported: the API is never open to anyone")
			}
			return nil
		},
		"tlsCertFile": nil, "tlsPrivateKeyFile": nil, "rotateCertificates": nil, "serverTLSBootstrap": nil,
		"authentication": func(c *kubeletv1beta1.KubeletConfiguration) error {
			if a := c.Authentication.Anonymous.Enabled; a != nil && *a {
				return errors.New("anonymous access is not supported")
			}
			if w := c.Authentication.Webhook.Enabled; w != nil && !*w {
				return errors.New("tokens are always reviewed")
			}
			return nil
		},
		"authorization": func(c *kubeletv1beta1.KubeletConfiguration) error {
			if c.Authorization.Mode == "" {
				return nil
			}
			return only(string(c.Authorization.Mode), string(kubeletv1beta1.KubeletAuthorizationModeWebhook))
		},
		"staticPodPath": nil, "podLogsDir": nil,
		"clusterDNS": nil, "clusterDomain": nil, "resolvConf": nil,
		"cgroupRoot":   nil,
		"cgroupDriver": func(c *kubeletv1beta1.KubeletConfiguration) error { return only(c.CgroupDriver, "cgroupfs") },
		"cgroupsPerQOS": func(c *kubeletv1beta1.KubeletConfiguration) error {
			if c.CgroupsPerQOS != nil && !*c.CgroupsPerQOS {
				return errors.New("only true is supported")
			}
			return nil
		},
		"cpuCFSQuota": nil, "podPidsLimit": nil, "maxPods": nil,
		"containerLogMaxSize": nil, "containerLogMaxFiles": nil, "containerLogMonitorInterval": nil,
		"containerRuntimeEndpoint":  nil,
		"nodeStatusUpdateFrequency": nil, "nodeStatusReportFrequency": nil, "nodeLeaseDurationSeconds": nil, "nodeStatusMaxImages": nil,
		"imageGCHighThresholdPercent": nil, "imageGCLowThresholdPercent": nil, "imageMinimumGCAge": nil, "imageMaximumGCAge": nil,
		"systemReserved": nil, "kubeReserved": nil,
		"registerNode": nil, "registerWithTaints": nil, "providerID": nil,
		"seccompDefault": nil, "allowedUnsafeSysctls": nil, "crashLoopBackOff": nil, "runtimeRequestTimeout": nil,
		"streamingConnectionIdleTimeout": nil,
		"evictionHard":                   nil, "evictionSoft": nil, "evictionSoftGracePeriod": nil, "evictionMinimumReclaim": nil,
		"evictionPressureTransitionPeriod": nil, "evictionMaxPodGracePeriod": nil, "mergeDefaultEvictionSettings": nil,
		"failSwapOn": nil, "failCgroupV1": nil,
		"serializeImagePulls": func(c *kubeletv1beta1.KubeletConfiguration) error {
			if c.SerializeImagePulls != nil && *c.SerializeImagePulls {
				return errors.New("only false is supported: pods do not wait for each other's images")
			}
			return nil
		},
		"configMapAndSecretChangeDetectionStrategy": func(c *kubeletv1beta1.KubeletConfiguration) error {
			return only(string(c.ConfigMapAndSecretChangeDetectionStrategy), string(kubeletv1beta1.WatchChangeDetectionStrategy))
		},
		"cpuManagerPolicy": func(c *kubeletv1beta1.KubeletConfiguration) error {
			return only(c.CPUManagerPolicy, "", "none", "static")
		},
		"memoryManagerPolicy": func(c *kubeletv1beta1.KubeletConfiguration) error {
			return only(c.MemoryManagerPolicy, "", "None", "Static")
		},
		"reservedSystemCPUs": nil, "reservedMemory": nil, "enforceNodeAllocatable": nil, "systemReservedCgroup": nil, "kubeReservedCgroup": nil,
		"topologyManagerPolicy": func(c *kubeletv1beta1.KubeletConfiguration) error {
			return only(c.TopologyManagerPolicy, "", "none", "best-effort", "restricted", "single-numa-node")
		},
		"topologyManagerScope": func(c *kubeletv1beta1.KubeletConfiguration) error {
			return only(c.TopologyManagerScope, "", "container", "pod")
		},
		"shutdownGracePeriod": nil, "shutdownGracePeriodCriticalPods": nil, "shutdownGracePeriodByPodPriority": nil,
		"healthzPort": nil, "healthzBindAddress": nil,
		"enableServer":                  alwaysOn(func(c *kubeletv1beta1.KubeletConfiguration) *bool { return c.EnableServer }),
		"enableDebuggingHandlers":       alwaysOn(func(c *kubeletv1beta1.KubeletConfiguration) *bool { return c.EnableDebuggingHandlers }),
		"localStorageCapacityIsolation": alwaysOn(func(c *kubeletv1beta1.KubeletConfiguration) *bool { return c.LocalStorageCapacityIsolation }),
		"memorySwap": func(c *kubeletv1beta1.KubeletConfiguration) error {
			return only(c.MemorySwap.SwapBehavior, "", "NoSwap", "LimitedSwap")
		},
		"hairpinMode": func(c *kubeletv1beta1.KubeletConfiguration) error { return only(c.HairpinMode, "hairpin-veth") },
		// What makes no difference: this agent follows events and does not poll, has no
		// rules of its own in iptables, and leaves its pace to the API server.
		"syncFrequency": nil, "fileCheckFrequency": nil, "volumeStatsAggPeriod": nil, "cpuManagerReconcilePeriod": nil,
		"makeIPTablesUtilChains": nil, "iptablesMasqueradeBit": nil, "iptablesDropBit": nil,
		"kubeAPIQPS": nil, "kubeAPIBurst": nil, "contentType": nil, "maxParallelImagePulls": nil,
	}
}

// alwaysOn refuses to turn off what is never off.
func alwaysOn(field func(c *kubeletv1beta1.KubeletConfiguration) *bool) rule {
	return func(c *kubeletv1beta1.KubeletConfiguration) error {
		if on := field(c); on != nil && !*on {
			return errors.New("only true is supported")
		}
		return nil
	}
}
