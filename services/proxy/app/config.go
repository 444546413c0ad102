package app

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

const configVersion = "kubeproxy.config.k8s.io/v1alpha1"

// fileFields are the fields of a KubeProxyConfiguration that are supported, with
// the flags that mean the same.
func fileFields() map[string]string {
	return map[string]string{
		"clientConnection.kubeconfig": "kubeconfig",
		"hostnameOverride":            "hostname-override",
		"clusterCIDR":                 "cluster-cidr",
		"mode":                        "proxy-mode",
		"healthzBindAddress":          "healthz-bind-address",
		"metricsBindAddress":          "metrics-bind-address",
		"nodePortAddresses":           "nodeport-addresses",
		"iptables.masqueradeBit":      "iptables-masquerade-bit",
		"iptables.masqueradeAll":      "masquerade-all",
		"iptables.syncPeriod":         "iptables-sync-period",
		"iptables.minSyncPeriod":      "iptables-min-sync-period",
	}
}

// fileConstants are fields that are accepted with the one value that says what
// the proxy does anyway.
func fileConstants() map[string]string {
	return map[string]string{
		"apiVersion":                   configVersion,
		"kind":                         "KubeProxyConfiguration",
		"bindAddress":                  "0.0.0.0",
		"detectLocalMode":              "ClusterCIDR",
		"clientConnection.contentType": "application/vnd.kubernetes.protobuf",
	}
}

// readConfig takes the supported fields of a KubeProxyConfiguration. Flags that
// were given win over the file. Fields that are not supported are named and
// refused, unless they are empty.
func (o *Options) readConfig(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading --config: %w", err)
	}
	var file map[string]any
	if err := yaml.UnmarshalStrict(data, &file); err != nil {
		return fmt.Errorf("--config %s: %w", path, err)
	}
	if file["kind"] != "KubeProxyConfiguration" || file["apiVersion"] != configVersion {
		return fmt.Errorf("--config %s: it is %v %v, not KubeProxyConfiguration of %s", path, file["apiVersion"], file["kind"], configVersion)
	}
	values := map[string]string{}
	flatten("", file, values)
	fields, constants := fileFields(), fileConstants()
	var refused []string
	for _, field := range slices.Sorted(maps.Keys(values)) {
		flag, supported := fields[field]
		if !supported {
			if values[field] != constants[field] {
				refused = append(refused, field)
			}
			continue
		}
		if o.flags.Changed(flag) {
			continue
		}
		if err := o.flags.Set(flag, values[field]); err != nil {
			return fmt.Errorf("--config %s: %s: %w", path, field, err)
		}
	}
	if len(refused) > 0 {
		return fmt.Errorf("--config %s: not supported: %s", path, strings.Join(refused, ", "))
	}
	return nil
}

// flatten collects the leaves that are not empty, by their path.
func flatten(path string, value any, into map[string]string) {
	switch v := value.(type) {
	case nil:
	case map[string]any:
		for name, inner := range v {
			flatten(strings.TrimPrefix(path+"."+name, "."), inner, into)
		}
	case []any:
		var texts []string
		for _, element := range v {
			texts = append(texts, fmt.Sprint(element))
		}
		if len(texts) > 0 {
			into[path] = strings.Join(texts, ",")
		}
	default:
		// A period of "0s" is the file's way to ask for the default.
		if text := fmt.Sprint(v); text != "" && text != "0" && text != "0s" && text != "false" {
			into[path] = text
		}
	}
}
