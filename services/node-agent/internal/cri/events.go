package cri

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Listener is told which pods have changed in the runtime.
type Listener interface {
	// PodChanged tells that a container or sandbox of the pod has changed.
	PodChanged(uid types.UID)
	// AllChanged tells that any pod may have changed unseen.
	AllChanged()
}

const (
	retryPause   = 200 * time.Millisecond
	relistPeriod = time.Second
)

// Watch tells the listener of changes until ctx ends: by the runtime's events
// where it has them, else by listing once a second.
func (c *Client) Watch(ctx context.Context, listener Listener, log *slog.Logger) error {
	for ctx.Err() == nil {
		err := c.follow(ctx, listener)
		if status.Code(err) == codes.Unimplemented {
			log.InfoContext(ctx, "The runtime has no events; listing its containers instead")
			return c.relist(ctx, listener, log)
		}
		if ctx.Err() == nil {
			log.WarnContext(ctx, "Runtime events ended; listening again", "err", err)
			pause(ctx, retryPause)
		}
	}
	return nil
}

func (c *Client) follow(ctx context.Context, listener Listener) error {
	stream, err := c.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		return fmt.Errorf("listening for runtime events: %w", err)
	}
	// Runtimes that send headers at once tell so that nothing is missed from here.
	go func() {
		if _, err := stream.Header(); err == nil {
			listener.AllChanged()
		}
	}()
	for {
		event, err := stream.Recv()
		if err != nil {
			return err
		}
		if uid := event.GetPodSandboxStatus().GetMetadata().GetUid(); uid != "" {
			listener.PodChanged(types.UID(uid))
		}
	}
}

// relist compares the states of all sandboxes and containers with those of the
// last time.
func (c *Client) relist(ctx context.Context, listener Listener, log *slog.Logger) error {
	last := map[string]string{}
	for ctx.Err() == nil {
		now, owners, err := c.states(ctx)
		if err != nil {
			log.WarnContext(ctx, "Listing containers", "err", err)
			pause(ctx, relistPeriod)
			continue
		}
		for id, owner := range owners {
			if last[id] != now[id] {
				listener.PodChanged(owner)
			}
		}
		for id := range last {
			if _, still := now[id]; !still {
				listener.AllChanged()
				break
			}
		}
		last = now
		pause(ctx, relistPeriod)
	}
	return nil
}

func (c *Client) states(ctx context.Context) (states map[string]string, owners map[string]types.UID, err error) {
	states, owners = map[string]string{}, map[string]types.UID{}
	sandboxes, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, nil, err
	}
	for _, item := range sandboxes.GetItems() {
		states[item.GetId()], owners[item.GetId()] = item.GetState().String(), types.UID(item.GetLabels()[LabelPodUID])
	}
	containers, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, nil, err
	}
	for _, item := range containers.GetContainers() {
		states[item.GetId()], owners[item.GetId()] = item.GetState().String(), types.UID(item.GetLabels()[LabelPodUID])
	}
	return states, owners, nil
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
