// Package draining waits, before a pod's containers are told to end, until no
// proxy sends the pod new connections. It asks the proxy of this node, which asks
// those of the others; see docs/apis/proxy.md.
package draining

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// maxWait is how long a pod waits for proxies at most.
	maxWait = 2 * time.Second
	// inFlight is left to requests that were on their way when the last proxy had
	// taken the endpoint out.
	inFlight = 300 * time.Millisecond
	// path is the proxy's; its contract is documented with the proxy's API.
	path = "/endpoints/drained"
)

// Proxies are those of the cluster.
type Proxies struct {
	address string
	silent  time.Duration
	client  *http.Client
	log     *slog.Logger
}

// New makes Proxies that are asked at address, host:port of the proxy of this
// node; "" asks none. Where proxies do not tell, pods wait for silent.
func New(address string, silent time.Duration, log *slog.Logger) *Proxies {
	const connect = 250 * time.Millisecond
	return &Proxies{address: address, silent: silent, log: log, client: &http.Client{Transport: &http.Transport{
		DialContext: (&net.Dialer{Timeout: connect}).DialContext,
	}}}
}

// Close ends idle connections.
func (p *Proxies) Close() { p.client.CloseIdleConnections() }

// drained is the proxy's answer.
type drained struct {
	InSlice bool     `json:"inSlice"`
	Drained bool     `json:"drained"`
	Silent  []string `json:"silent"`
}

// Await waits until the pod, which is being deleted, gets no new connections and
// those on their way have had a moment; until the pod turns out to be in no
// EndpointSlice; for 2 s; for half of the grace period; or until ctx ends.
// Pods on the host's network share their address with others and do not wait.
func (p *Proxies) Await(ctx context.Context, pod *corev1.Pod, addresses []string, grace time.Duration) {
	if pod.Spec.HostNetwork || len(addresses) == 0 || grace <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, min(maxWait, grace/2))
	defer cancel()
	began := time.Now()
	wait := time.Duration(0)
	for _, address := range addresses {
		wait = max(wait, p.await(ctx, pod, address))
	}
	sleep(ctx, wait)
	if wait > 0 {
		p.log.DebugContext(ctx, "Waited for proxies", "pod", pod.Namespace+"/"+pod.Name, "elapsed", time.Since(began))
	}
}

// await asks about one address and returns for how long to wait after that.
func (p *Proxies) await(ctx context.Context, pod *corev1.Pod, address string) time.Duration {
	if p.address == "" {
		return p.silent
	}
	told, err := p.ask(ctx, pod.Namespace, address)
	switch {
	case err != nil:
		if ctx.Err() == nil {
			p.log.DebugContext(ctx, "The proxy of this node does not tell of endpoints", "err", err)
		}
		return p.silent
	case !told.InSlice:
		return 0
	case !told.Drained:
		p.log.InfoContext(ctx, "A pod ends though not all proxies have taken its endpoint out", "pod", pod.Namespace+"/"+pod.Name, "nodes", told.Silent)
		return max(inFlight, p.silent)
	}
	return inFlight
}

func (p *Proxies) ask(ctx context.Context, namespace, address string) (drained, error) {
	const margin, limit = 50 * time.Millisecond, 64 << 10
	var told drained
	deadline, _ := ctx.Deadline()
	query := url.Values{"namespace": {namespace}, "address": {address}, "timeout": {max(time.Until(deadline)-inFlight-margin, 0).String()}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.address+path+"?"+query.Encode(), nil)
	if err != nil {
		return told, err
	}
	response, err := p.client.Do(request)
	if err != nil {
		return told, err
	}
	defer func() { _ = response.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(response.Body, limit))
	if err != nil {
		return told, err
	}
	if response.StatusCode != http.StatusOK {
		return told, fmt.Errorf("the answer is %s", response.Status)
	}
	return told, json.Unmarshal(data, &told)
}

func sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
