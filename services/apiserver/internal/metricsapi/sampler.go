package metricsapi

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"
)

const (
	// fresh is for how long figures are given out without asking again.
	fresh = 5 * time.Second
	// stale is when a sample is too old to measure processor time from.
	stale = time.Minute
	// window is the time between two samples where there is no earlier one.
	window = time.Second
	// scrapeTimeout bounds one question to a node's agent, and maxSummary its answer.
	scrapeTimeout = 5 * time.Second
	maxSummary    = 16 << 20
	// atOnce is how many nodes are asked at a time.
	atOnce = 32
)

// Agents says how a node's agent is reached: the URL of its API, and what
// authenticates there.
type Agents interface {
	Agent(ctx context.Context, node string) (*url.URL, http.RoundTripper, error)
}

// sampler asks agents when someone wants to know, and remembers their answers for
// a while. Processor time is counted by the kernel: what is used of it shows
// between two samples.
type sampler struct {
	agents Agents

	mu    sync.Mutex
	nodes map[string]*nodeSamples
}

// nodeSamples are the last two samples of a node. Lock order: sampler.mu is never
// held while a node is asked.
type nodeSamples struct {
	mu             sync.Mutex
	earlier, later *sample
}

func newSampler(agents Agents) *sampler {
	return &sampler{agents: agents, nodes: map[string]*nodeSamples{}}
}

// keep forgets all other nodes.
func (s *sampler) keep(names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.nodes {
		if !slices.Contains(names, name) {
			delete(s.nodes, name)
		}
	}
}

// spans are what nodes used lately, without those that do not answer.
func (s *sampler) spans(ctx context.Context, names []string) map[string]*span {
	out := map[string]*span{}
	var mu sync.Mutex
	var group sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for _, name := range names {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			found, err := s.span(ctx, name)
			if err != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			out[name] = found
		})
	}
	group.Wait()
	return out
}

func (s *sampler) of(name string) *nodeSamples {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes[name] == nil {
		s.nodes[name] = &nodeSamples{}
	}
	return s.nodes[name]
}

// span is what a node used lately. Those who ask at once wait for the same answer.
func (s *sampler) span(ctx context.Context, name string) (*span, error) {
	n := s.of(name)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.earlier != nil && time.Since(n.later.taken) < fresh {
		return newSpan(n.earlier, n.later), nil
	}
	latest, err := s.take(ctx, name)
	if err != nil {
		return nil, err
	}
	if n.later != nil && latest.taken.Sub(n.later.taken) >= window && latest.taken.Sub(n.later.taken) < stale {
		n.earlier, n.later = n.later, latest
		return newSpan(n.earlier, n.later), nil
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(window):
	}
	second, err := s.take(ctx, name)
	if err != nil {
		return nil, err
	}
	n.earlier, n.later = latest, second
	return newSpan(latest, second), nil
}

// take asks a node's agent for its summary.
func (s *sampler) take(ctx context.Context, name string) (*sample, error) {
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	base, transport, err := s.agents.Agent(ctx, name)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath("stats/summary").String(), nil)
	if err != nil {
		return nil, err
	}
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return nil, fmt.Errorf("asking node %s for its statistics: %w", name, err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("asking node %s for its statistics: %s", name, answer.Status)
	}
	out := &sample{taken: time.Now()}
	if err := json.NewDecoder(io.LimitReader(answer.Body, maxSummary)).Decode(&out.summary); err != nil {
		return nil, fmt.Errorf("reading the statistics of node %s: %w", name, err)
	}
	return out, nil
}
