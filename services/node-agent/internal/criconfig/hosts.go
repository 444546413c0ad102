package criconfig

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// HostsFile writes the pod's /etc/hosts to path: the node's for pods on its
// network, else the pod's own addresses; and its aliases after that. It leaves an
// equal file alone.
func (n Node) HostsFile(pod *corev1.Pod, path string, podIPs []string) error {
	var content []byte
	if pod.Spec.HostNetwork {
		host, err := os.ReadFile("/etc/hosts")
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("reading the node's hosts file: %w", err)
		}
		content = append([]byte("# Kubernetes-managed hosts file (host network).\n"), host...)
	} else {
		content = n.podHosts(pod, podIPs)
	}
	content = append(content, aliases(pod.Spec.HostAliases)...)
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, content) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	if err := os.WriteFile(path, content, 0o644); err != nil {
		return fmt.Errorf("writing hosts file: %w", err)
	}
	return os.Chmod(path, 0o644)
}

func (n Node) podHosts(pod *corev1.Pod, podIPs []string) []byte {
	var b bytes.Buffer
	b.WriteString("# Kubernetes-managed hosts file.\n" +
		"127.0.0.1\tlocalhost\n" +
		"::1\tlocalhost ip6-localhost ip6-loopback\n" +
		"fe00::0\tip6-localnet\n" +
		"fe00::0\tip6-mcastprefix\n" +
		"fe00::1\tip6-allnodes\n" +
		"fe00::2\tip6-allrouters\n")
	hostname, domain := n.HostnameOf(pod)
	short, _, _ := strings.Cut(hostname, ".")
	for _, ip := range podIPs {
		if domain != "" {
			fmt.Fprintf(&b, "%s\t%s.%s\t%s\n", ip, short, domain, short)
		} else {
			fmt.Fprintf(&b, "%s\t%s\n", ip, hostname)
		}
	}
	return b.Bytes()
}

func aliases(list []corev1.HostAlias) []byte {
	if len(list) == 0 {
		return nil
	}
	var b bytes.Buffer
	b.WriteString("\n# Entries added by HostAliases.\n")
	for _, alias := range list {
		fmt.Fprintf(&b, "%s\t%s\n", alias.IP, strings.Join(alias.Hostnames, "\t"))
	}
	return b.Bytes()
}
