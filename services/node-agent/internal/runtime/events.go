package runtime

import (
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// eventBacklog is how far a listener may fall behind before it is cut off.
const eventBacklog = 4096

// broadcaster hands events to all listeners. It never waits for one.
type broadcaster struct {
	mu        sync.Mutex
	listeners map[chan *runtimeapi.ContainerEventResponse]struct{}
}

func (b *broadcaster) listen() chan *runtimeapi.ContainerEventResponse {
	ch := make(chan *runtimeapi.ContainerEventResponse, eventBacklog)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.listeners == nil {
		b.listeners = map[chan *runtimeapi.ContainerEventResponse]struct{}{}
	}
	b.listeners[ch] = struct{}{}
	return ch
}

func (b *broadcaster) leave(ch chan *runtimeapi.ContainerEventResponse) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.listeners, ch)
}

// idle tells that nobody listens, so that an event need not be made.
func (b *broadcaster) idle() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.listeners) == 0
}

func (b *broadcaster) send(event *runtimeapi.ContainerEventResponse) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for ch := range b.listeners {
		select {
		case ch <- event:
		default:
			// It must list anew rather than miss an event.
			delete(b.listeners, ch)
			close(ch)
		}
	}
}

// emit tells listeners what happened to a container, or to the sandbox itself when
// both ids are equal. It is called after the change can be seen.
func (s *Server) emit(kind runtimeapi.ContainerEventType, id, sandboxID string) {
	if s.events.idle() {
		return
	}
	event := &runtimeapi.ContainerEventResponse{ContainerId: id, ContainerEventType: kind, CreatedAt: time.Now().UnixNano()}
	if sb, err := s.objects.sandbox(sandboxID); err == nil {
		event.PodSandboxStatus = sandboxStatus(sb.get())
		event.ContainersStatuses = s.containerStatuses(sandboxID)
	}
	s.events.send(event)
}

// GetContainerEvents streams what happens to sandboxes and containers from now on. It
// ends with ResourceExhausted when the client falls too far behind; the client then
// lists and listens anew.
func (s *Server) GetContainerEvents(_ *runtimeapi.GetEventsRequest, stream grpc.ServerStreamingServer[runtimeapi.ContainerEventResponse]) error {
	ch := s.events.listen()
	defer s.events.leave(ch)
	// The headers tell the client that it will miss nothing from here on.
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	for {
		select {
		case event, ok := <-ch:
			if !ok {
				return status.Error(codes.ResourceExhausted, fmt.Sprintf("more than %d events behind", eventBacklog))
			}
			if err := stream.Send(event); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-s.background.Done():
			return status.Error(codes.Unavailable, "the runtime is stopping")
		}
	}
}
