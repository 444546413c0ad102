package streaming

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// defaultAgentPort is used for nodes that do not say theirs.
const defaultAgentPort = 10250

func (c *Connections) pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	obj, err := c.reader.Get(ctx, podResource, namespace, name)
	if err != nil {
		return nil, err
	}
	return obj.(*corev1.Pod), nil
}

// agent is the base URL of the agent of the node that pod runs on.
func (c *Connections) agent(ctx context.Context, pod *corev1.Pod) (*url.URL, error) {
	if pod.Spec.NodeName == "" {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("pod %s does not have a host assigned", pod.Name))
	}
	return c.nodeURL(ctx, pod.Spec.NodeName, "https", "")
}

// nodeURL is a URL on a node; port "" is its agent's.
func (c *Connections) nodeURL(ctx context.Context, name, scheme, port string) (*url.URL, error) {
	obj, err := c.reader.Get(ctx, nodeResource, "", name)
	if err != nil {
		return nil, err
	}
	node := obj.(*corev1.Node)
	address, ok := preferredAddress(node, c.types)
	if !ok {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("node %s has no address of the types %v", name, c.types))
	}
	if port == "" {
		number := int(node.Status.DaemonEndpoints.KubeletEndpoint.Port)
		if number == 0 {
			number = defaultAgentPort
		}
		port = strconv.Itoa(number)
	}
	return &url.URL{Scheme: scheme, Host: net.JoinHostPort(address, port)}, nil
}

func preferredAddress(node *corev1.Node, types []corev1.NodeAddressType) (string, bool) {
	for _, kind := range types {
		for _, address := range node.Status.Addresses {
			if address.Type == kind && address.Address != "" {
				return address.Address, true
			}
		}
	}
	return "", false
}

// container is the container that a request means: the one it names, else the
// pod's only one or the one that its annotation says.
func container(pod *corev1.Pod, name string) (string, error) {
	var names []string
	for _, c := range pod.Spec.Containers {
		names = append(names, c.Name)
	}
	var initial, ephemeral []string
	for _, c := range pod.Spec.InitContainers {
		initial = append(initial, c.Name)
	}
	for _, c := range pod.Spec.EphemeralContainers {
		ephemeral = append(ephemeral, c.Name)
	}
	if name != "" {
		if slices.Contains(names, name) || slices.Contains(initial, name) || slices.Contains(ephemeral, name) {
			return name, nil
		}
		return "", apierrors.NewBadRequest(fmt.Sprintf("container %s is not valid for pod %s", name, pod.Name))
	}
	if byAnnotation := pod.Annotations["kubectl.kubernetes.io/default-container"]; slices.Contains(names, byAnnotation) {
		return byAnnotation, nil
	}
	switch len(names) {
	case 0:
		return "", apierrors.NewBadRequest(fmt.Sprintf("a container name must be specified for pod %s", pod.Name))
	case 1:
		return names[0], nil
	}
	text := fmt.Sprintf("a container name must be specified for pod %s, choose one of: [%s]", pod.Name, strings.Join(names, " "))
	if len(initial) > 0 {
		text += fmt.Sprintf(" or one of the init containers: [%s]", strings.Join(initial, " "))
	}
	if len(ephemeral) > 0 {
		text += fmt.Sprintf(" or one of the ephemeral containers: [%s]", strings.Join(ephemeral, " "))
	}
	return "", apierrors.NewBadRequest(text)
}
