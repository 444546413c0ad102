package main

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// benchMemory prints what 10,000 ConfigMaps of 1 KiB add to the server's resident
// memory, by its own process_resident_memory_bytes. A peer's store is another process,
// and is not in it.
func benchMemory(ctx context.Context, b *bench) error {
	client, err := ownConnection(b.config)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	count := 10000 / b.scale
	what := b.configMaps()
	if err := b.create(ctx, what, 16, count/10, true); err != nil {
		return err
	}
	before, err := b.settled(ctx, client)
	if err != nil {
		return err
	}
	if err := b.create(ctx, what, 16, count, true); err != nil {
		return err
	}
	after, err := b.settled(ctx, client)
	if err != nil {
		return err
	}
	fmt.Printf("%-44s %9.1f MB   %.1f KiB each\n", fmt.Sprintf("memory of %d more ConfigMaps of 1 KiB", count), (after-before)/1e6, (after-before)/1024/float64(count))
	return nil
}

// settled is the resident memory after garbage has had time to go: the least of what is
// read within ten seconds.
func (b *bench) settled(ctx context.Context, client *http.Client) (float64, error) {
	least := 0.0
	for range 20 {
		now, err := gauge(ctx, client, b.config.Host, "process_resident_memory_bytes")
		if err != nil {
			return 0, err
		}
		if least == 0 || now < least {
			least = now
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
	return least, nil
}
