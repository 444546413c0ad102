package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
)

// benchCreate creates 1-KiB ConfigMaps in JSON with 1, 16 and 64 clients, each
// with a connection of its own.
func benchCreate(ctx context.Context, b *bench) error {
	for _, clients := range []int{1, 16, 64} {
		if err := b.create(ctx, b.configMaps(), clients, 300/b.scale, true); err != nil {
			return err
		}
		count := map[int]int{1: 2000, 16: 20000, 64: 20000}[clients] / b.scale
		if err := b.create(ctx, b.configMaps(), clients, count, false); err != nil {
			return err
		}
	}
	return nil
}

// objects are what a benchmark creates: of one kind, in the benchmark's
// namespace, with a map of texts.
type objects struct {
	version, kind string
	url           string // of the collection
}

func (b *bench) configMaps() objects {
	return objects{version: "v1", kind: "ConfigMap", url: b.config.Host + "/api/v1/namespaces/" + b.namespace + "/configmaps"}
}

// body is an object with 900 bytes of data.
func (o objects) body(name, annotation string) string {
	return fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q,"annotations":{"sent":%q}},"data":{"key":%q}}`,
		o.version, o.kind, name, annotation, strings.Repeat("x", 900))
}

func (b *bench) create(ctx context.Context, what objects, clients, count int, warmUp bool) error {
	stamp := time.Now().UnixNano()
	name := fmt.Sprintf("create 1 KiB %s, JSON, %d clients", what.kind, clients)
	if warmUp {
		name = ""
	}
	return b.hammer(ctx, name, clients, count, func(client *http.Client, c int, i int64) error {
		return request(ctx, client, http.MethodPost, what.url, "application/json", what.body(fmt.Sprintf("c%d-%d-%d", stamp, c, i), "-"))
	})
}

// hammer does something count times in all from clients with a connection each, and
// reports it under name, or not at all where that is empty.
func (b *bench) hammer(ctx context.Context, name string, clients, count int, do func(client *http.Client, c int, i int64) error) error {
	var next, failed atomic.Int64
	var mu sync.Mutex
	var latencies []time.Duration
	var firstErr error
	var group sync.WaitGroup
	began, cpu := time.Now(), cpuTime()
	for c := range clients {
		client, err := ownConnection(b.config)
		if err != nil {
			return err
		}
		group.Go(func() {
			defer client.CloseIdleConnections()
			var mine []time.Duration
			for ctx.Err() == nil {
				i := next.Add(1)
				if i > int64(count) {
					break
				}
				start := time.Now()
				if err := do(client, c, i); err != nil {
					failed.Add(1)
					mu.Lock()
					firstErr = err
					mu.Unlock()
					continue
				}
				mine = append(mine, time.Since(start))
			}
			mu.Lock()
			latencies = append(latencies, mine...)
			mu.Unlock()
		})
	}
	group.Wait()
	if failed.Load() > 0 {
		return fmt.Errorf("%d of %d requests failed: %w", failed.Load(), count, firstErr)
	}
	if name != "" {
		report(name, count, time.Since(began), cpuTime()-cpu, latencies)
	}
	return ctx.Err()
}

func ownConnection(config *rest.Config) (*http.Client, error) {
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, err
	}
	if tlsConfig == nil {
		tlsConfig = &tls.Config{}
	}
	transport := &http.Transport{TLSClientConfig: tlsConfig, ForceAttemptHTTP2: true}
	wrapped, err := rest.HTTPWrappersForConfig(config, transport)
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: wrapped}, nil
}

func post(ctx context.Context, client *http.Client, url, body string) error {
	return request(ctx, client, http.MethodPost, url, "application/json", body)
}

// request wants a success.
func request(ctx context.Context, client *http.Client, method, url, contentType, body string) error {
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", contentType)
	r.Header.Set("Accept", "application/json")
	answer, err := client.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK && answer.StatusCode != http.StatusCreated {
		return fmt.Errorf("%s: %s", answer.Status, text)
	}
	return nil
}
