package streaming

import (
	"context"
	"net/http"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	proxyutil "k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// Exec serves pods/exec.
func (c *Connections) Exec(ctx context.Context, namespace, name, _ string, options runtime.Object) (http.Handler, error) {
	o := options.(*corev1.PodExecOptions)
	if len(o.Command) == 0 {
		return nil, apierrors.NewBadRequest("you must specify at least one command for the container")
	}
	streams := proxy.Options{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Tty: o.TTY}
	return c.run(ctx, namespace, name, "exec", o.Container, o.Command, streams)
}

// Attach serves pods/attach.
func (c *Connections) Attach(ctx context.Context, namespace, name, _ string, options runtime.Object) (http.Handler, error) {
	o := options.(*corev1.PodAttachOptions)
	streams := proxy.Options{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Tty: o.TTY}
	return c.run(ctx, namespace, name, "attach", o.Container, nil, streams)
}

func (c *Connections) run(ctx context.Context, namespace, name, verb, containerName string, command []string, streams proxy.Options) (http.Handler, error) {
	if !streams.Stdin && !streams.Stdout && !streams.Stderr {
		return nil, apierrors.NewBadRequest("you must specify at least one of stdin, stdout, stderr")
	}
	if streams.Tty && streams.Stderr {
		return nil, apierrors.NewBadRequest("tty and stderr cannot both be true")
	}
	pod, err := c.pod(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	chosen, err := container(pod, containerName)
	if err != nil {
		return nil, err
	}
	location, err := c.agent(ctx, pod)
	if err != nil {
		return nil, err
	}
	location.Path = "/" + verb + "/" + pod.Namespace + "/" + pod.Name + "/" + chosen
	location.RawQuery = streamQuery(streams, command).Encode()
	return proxy.NewTranslatingHandler(
		c.upgrade(location),
		proxy.NewStreamTranslatorHandler(location, c.transport, 0, streams),
		wsstream.IsWebSocketRequestWithStreamCloseProtocol,
	), nil
}

func streamQuery(streams proxy.Options, command []string) url.Values {
	query := url.Values{"command": command}
	for key, on := range map[string]bool{"input": streams.Stdin, "output": streams.Stdout, "error": streams.Stderr, "tty": streams.Tty} {
		if on {
			query.Set(key, "1")
		}
	}
	return query
}

// upgrade passes an upgrade request on to a node's agent. The connection to the
// agent is closed when the upgrade fails, so that no second request can ride it
// (CVE-2018-1002105).
func (c *Connections) upgrade(location *url.URL) http.Handler {
	handler := proxyutil.NewUpgradeAwareHandler(location, c.transport, false, true, responder{})
	handler.UseLocationHost = true
	handler.RejectForwardingRedirects = true
	return handler
}

// PortForward serves pods/portforward.
func (c *Connections) PortForward(ctx context.Context, namespace, name, _ string, options runtime.Object) (http.Handler, error) {
	_ = options.(*corev1.PodPortForwardOptions)
	pod, err := c.pod(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	location, err := c.agent(ctx, pod)
	if err != nil {
		return nil, err
	}
	location.Path = "/portForward/" + pod.Namespace + "/" + pod.Name
	handler := c.upgrade(location)
	return proxy.NewTranslatingHandler(handler, proxy.NewTunnelingHandler(handler), wsstream.IsWebSocketRequestWithTunnelingProtocol), nil
}
