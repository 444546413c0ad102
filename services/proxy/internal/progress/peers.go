package progress

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Peer is the proxy of another node.
type Peer struct {
	Node    string
	Address string // host:port of its /healthz
}

// HTTPPeers asks proxies over HTTP.
type HTTPPeers struct {
	// List are the other nodes' proxies now.
	List   func() []Peer
	client *http.Client
}

// NewHTTPPeers makes one. A node that is gone must not hold others up: it has a
// quarter of a second to take the connection.
func NewHTTPPeers(list func() []Peer) *HTTPPeers {
	const connect, idle, perPeer = 250 * time.Millisecond, 30 * time.Second, 4
	return &HTTPPeers{List: list, client: &http.Client{Transport: &http.Transport{
		DialContext:         (&net.Dialer{Timeout: connect}).DialContext,
		MaxIdleConnsPerHost: perPeer, IdleConnTimeout: idle,
	}}}
}

// Close ends idle connections.
func (p *HTTPPeers) Close() { p.client.CloseIdleConnections() }

// Await implements Peers.
func (p *HTTPPeers) Await(ctx context.Context, revision uint64) (silent []string) {
	var mu sync.Mutex
	var group sync.WaitGroup
	for _, peer := range p.List() {
		group.Go(func() {
			if err := p.await(ctx, peer, revision); err != nil {
				mu.Lock()
				silent = append(silent, peer.Node)
				mu.Unlock()
			}
		})
	}
	group.Wait()
	slices.Sort(silent)
	return silent
}

// await asks one peer. It answers a little before ctx ends, so that what it says
// then still arrives.
func (p *HTTPPeers) await(ctx context.Context, peer Peer, revision uint64) error {
	const margin = 50 * time.Millisecond
	left := time.Duration(0)
	if deadline, has := ctx.Deadline(); has {
		left = max(time.Until(deadline)-margin, 0)
	}
	query := url.Values{"revision": {strconv.FormatUint(revision, 10)}, "timeout": {min(left, maxWait).String()}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+peer.Address+AppliedPath+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	response, err := p.client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	const limit = 4 << 10
	data, err := io.ReadAll(io.LimitReader(response.Body, limit))
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the answer is %s", response.Status)
	}
	var applied Applied
	if err := json.Unmarshal(data, &applied); err != nil {
		return err
	}
	if applied.Revision < revision {
		return errors.New("it is not that far")
	}
	return nil
}
