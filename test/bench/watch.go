package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// benchWatch changes objects under 100 and 1,000 watchers and counts the events
// that they get; one more watcher never reads.
func benchWatch(ctx context.Context, b *bench) error {
	for _, watchers := range []int{100, 1000} {
		if err := b.watch(ctx, b.configMaps(), watchers/b.scale, 200/b.scale); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) watch(ctx context.Context, what objects, watchers, changes int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	url := what.url + "?watch=1"
	var group, started sync.WaitGroup
	var received atomic.Int64
	var mu sync.Mutex
	var delays []time.Duration
	// A hundred watchers share a connection, which is as many streams as one has.
	var clients []*http.Client
	for range watchers/90 + 1 {
		client, err := ownConnection(b.config)
		if err != nil {
			return err
		}
		clients = append(clients, client)
	}
	var firstErr atomic.Value
	for i := range watchers + 1 {
		stalled := i == watchers
		started.Add(1)
		group.Go(func() {
			body, err := openWatch(ctx, clients[i/90], url)
			started.Done()
			if err != nil {
				firstErr.CompareAndSwap(nil, err)
				return
			}
			defer func() { _ = body.Body.Close() }()
			if stalled {
				<-ctx.Done()
				return
			}
			mine := readEvents(body, &received)
			mu.Lock()
			delays = append(delays, mine...)
			mu.Unlock()
		})
	}
	started.Wait()
	if err, ok := firstErr.Load().(error); ok {
		return err
	}
	writer, err := ownConnection(b.config)
	if err != nil {
		return err
	}
	began, cpu := time.Now(), cpuTime()
	stamp := began.UnixNano()
	for i := range changes {
		body := what.body(fmt.Sprintf("w%d-%d", stamp, i), strconv.FormatInt(time.Now().UnixNano(), 10))
		if err := post(ctx, writer, what.url, body); err != nil {
			return err
		}
	}
	want := int64(watchers * changes)
	for deadline := time.Now().Add(time.Minute); received.Load() < want; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("%d of %d events came", received.Load(), want)
		}
	}
	took := time.Since(began)
	cpu = cpuTime() - cpu
	cancel()
	group.Wait()
	report(fmt.Sprintf("watch %s, %d watchers and a stalled one", what.kind, watchers), int(want), took, cpu, delays)
	return nil
}

func openWatch(ctx context.Context, client *http.Client, url string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/json")
	answer, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		return nil, errors.Join(fmt.Errorf("watch: %s", answer.Status), answer.Body.Close())
	}
	return answer, nil
}

// readEvents counts events that carry the moment of their sending and measures
// how long they took, without decoding them: the client shares the cores.
func readEvents(answer *http.Response, received *atomic.Int64) []time.Duration {
	var delays []time.Duration
	reader := bufio.NewReaderSize(answer.Body, 32<<10)
	for {
		line, err := reader.ReadString('\n')
		if err != nil {
			return delays
		}
		_, rest, ok := strings.Cut(line, `"sent":"`)
		if !ok {
			continue
		}
		text, _, _ := strings.Cut(rest, `"`)
		var sent int64
		if _, err := fmt.Sscan(text, &sent); err == nil {
			delays = append(delays, time.Duration(time.Now().UnixNano()-sent))
			received.Add(1)
		}
	}
}
