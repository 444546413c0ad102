package criconfig

import (
	"fmt"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Limits of resolvers, as upstream keeps them.
const (
	maxNameservers = 3
	maxSearches    = 32
	maxSearchChars = 2048
)

// DNS is the resolver configuration that the pod's policy makes.
func (n Node) DNS(pod *corev1.Pod) (*runtimeapi.DNSConfig, error) {
	config := &runtimeapi.DNSConfig{}
	policy := pod.Spec.DNSPolicy
	if policy == corev1.DNSClusterFirst && pod.Spec.HostNetwork {
		policy = corev1.DNSDefault
	}
	if (policy == corev1.DNSClusterFirst || policy == corev1.DNSClusterFirstWithHostNet || policy == "") && len(n.ClusterDNS) == 0 {
		policy = corev1.DNSDefault
	}
	switch policy {
	case corev1.DNSNone:
	case corev1.DNSDefault:
		host, err := n.hostDNS()
		if err != nil {
			return nil, err
		}
		config = host
		if len(config.Servers) == 0 {
			config.Servers = []string{"127.0.0.1"}
		}
	default:
		host, err := n.hostDNS()
		if err != nil {
			return nil, err
		}
		config.Servers = n.ClusterDNS
		config.Searches = append(n.clusterSearches(pod), host.Searches...)
		config.Options = []string{"ndots:5"}
	}
	merge(config, pod.Spec.DNSConfig)
	limit(config)
	return config, nil
}

func (n Node) clusterSearches(pod *corev1.Pod) []string {
	if n.ClusterDomain == "" {
		return nil
	}
	return []string{pod.Namespace + ".svc." + n.ClusterDomain, "svc." + n.ClusterDomain, n.ClusterDomain}
}

// merge adds the pod's own settings; an option of the same name is replaced.
func merge(config *runtimeapi.DNSConfig, own *corev1.PodDNSConfig) {
	if own == nil {
		config.Servers, config.Searches = unique(config.Servers), unique(config.Searches)
		return
	}
	config.Servers = unique(append(append([]string(nil), config.Servers...), own.Nameservers...))
	config.Searches = unique(append(append([]string(nil), config.Searches...), own.Searches...))
	for _, option := range own.Options {
		text := option.Name
		if option.Value != nil && *option.Value != "" {
			text += ":" + *option.Value
		}
		config.Options = replaceOption(config.Options, option.Name, text)
	}
}

func replaceOption(options []string, name, text string) []string {
	out := make([]string, 0, len(options)+1)
	for _, option := range options {
		if old, _, _ := strings.Cut(option, ":"); old != name {
			out = append(out, option)
		}
	}
	return append(out, text)
}

func unique(list []string) []string {
	seen := map[string]struct{}{}
	var out []string
	for _, item := range list {
		if _, again := seen[item]; !again {
			seen[item] = struct{}{}
			out = append(out, item)
		}
	}
	return out
}

func limit(config *runtimeapi.DNSConfig) {
	config.Servers = config.Servers[:min(len(config.Servers), maxNameservers)]
	config.Searches = config.Searches[:min(len(config.Searches), maxSearches)]
	for len(strings.Join(config.Searches, " ")) > maxSearchChars {
		config.Searches = config.Searches[:len(config.Searches)-1]
	}
}

func (n Node) hostDNS() (*runtimeapi.DNSConfig, error) {
	if n.ResolvConf == "" {
		return &runtimeapi.DNSConfig{}, nil
	}
	data, err := os.ReadFile(n.ResolvConf)
	if err != nil {
		return nil, fmt.Errorf("reading the node's resolver configuration: %w", err)
	}
	return parseResolvConf(string(data)), nil
}

// parseResolvConf reads a resolv.conf; the last search and options lines count.
func parseResolvConf(text string) *runtimeapi.DNSConfig {
	config := &runtimeapi.DNSConfig{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 || strings.HasPrefix(fields[0], "#") || strings.HasPrefix(fields[0], ";") {
			continue
		}
		switch fields[0] {
		case "nameserver":
			config.Servers = append(config.Servers, fields[1])
		case "search":
			config.Searches = nil
			for _, search := range fields[1:] {
				if len(search) > 1 {
					search = strings.TrimSuffix(search, ".")
				}
				config.Searches = append(config.Searches, search)
			}
		case "options":
			config.Options = fields[1:]
		}
	}
	return config
}
