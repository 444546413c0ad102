package app

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// readConfig takes the supported fields of a KubeProxyConfiguration
// (kubeproxy.config.k8s.io/v1alpha1); fields that are not supported are named
// and refused.
func (o *Options) readConfig(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading --config: %w", err)
	}
	var file struct {
		APIVersion         string   `json:"apiVersion"`
		Kind               string   `json:"kind"`
		HostnameOverride   *string  `json:"hostnameOverride"`
		ClusterCIDR        *string  `json:"clusterCIDR"`
		Mode               *string  `json:"mode"`
		HealthzBindAddress *string  `json:"healthzBindAddress"`
		MetricsBindAddress *string  `json:"metricsBindAddress"`
		NodePortAddresses  []string `json:"nodePortAddresses"`
		ClientConnection   struct {
			Kubeconfig *string `json:"kubeconfig"`
		} `json:"clientConnection"`
		IPTables struct {
			MasqueradeBit *int    `json:"masqueradeBit"`
			MasqueradeAll *bool   `json:"masqueradeAll"`
			SyncPeriod    *string `json:"syncPeriod"`
			MinSyncPeriod *string `json:"minSyncPeriod"`
		} `json:"iptables"`
	}
	if err := yaml.UnmarshalStrict(data, &file); err != nil {
		return fmt.Errorf("--config %s: a field is not supported or has the wrong type: %w", path, err)
	}
	if file.Kind != "KubeProxyConfiguration" || !slices.Contains([]string{"kubeproxy.config.k8s.io/v1alpha1"}, file.APIVersion) {
		return fmt.Errorf("--config %s: it is %s %s, not KubeProxyConfiguration of kubeproxy.config.k8s.io/v1alpha1", path, file.Kind, file.APIVersion)
	}
	set(&o.NodeName, file.HostnameOverride)
	set(&o.ClusterCIDR, file.ClusterCIDR)
	set(&o.ProxyMode, file.Mode)
	set(&o.HealthzBindAddress, file.HealthzBindAddress)
	set(&o.MetricsBindAddress, file.MetricsBindAddress)
	set(&o.Client.Kubeconfig, file.ClientConnection.Kubeconfig)
	set(&o.MasqueradeBit, file.IPTables.MasqueradeBit)
	set(&o.MasqueradeAll, file.IPTables.MasqueradeAll)
	if file.NodePortAddresses != nil {
		o.NodePortAddresses = file.NodePortAddresses
	}
	for name, pair := range map[string]struct {
		text *string
		into *time.Duration
	}{"iptables.syncPeriod": {file.IPTables.SyncPeriod, &o.SyncPeriod}, "iptables.minSyncPeriod": {file.IPTables.MinSyncPeriod, &o.MinSyncPeriod}} {
		if pair.text == nil || strings.TrimSpace(*pair.text) == "" {
			continue
		}
		if *pair.into, err = time.ParseDuration(*pair.text); err != nil {
			return fmt.Errorf("--config %s: %s: %w", path, name, err)
		}
	}
	return nil
}

func set[T any](into *T, value *T) {
	if value != nil {
		*into = *value
	}
}
