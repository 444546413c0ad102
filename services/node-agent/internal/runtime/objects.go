package runtime

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/monitor"
)

var (
	errNotFound = errors.New("not found")
	errState    = errors.New("not possible in this state")
	errInvalid  = errors.New("invalid request")
)

// opLock is a mutex that can be waited for with a context.
type opLock chan struct{}

func newOpLock() opLock { return make(opLock, 1) }

func (l opLock) lock(ctx context.Context) error {
	select {
	case l <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for another operation on the same object: %w", ctx.Err())
	}
}

func (l opLock) unlock() { <-l }

// phase is how far a sandbox or container has come.
type phase string

const (
	creating phase = "creating" // half made; undone at the next start
	ready    phase = "ready"    // sandbox
	notReady phase = "notready" // sandbox: stopped
	failed   phase = "failed"   // sandbox: of no use, and not given back; stopping does that
	created  phase = "created"  // container: waits for its start
	running  phase = "running"  // container
	exited   phase = "exited"   // container
)

// sandboxRecord is what of a sandbox is written down.
type sandboxRecord struct {
	ID        string                       `json:"id"`
	Phase     phase                        `json:"phase"`
	BootID    string                       `json:"bootID"`
	CreatedAt int64                        `json:"createdAt"` // nanoseconds
	IPs       []string                     `json:"ips,omitempty"`
	Pause     monitor.Process              `json:"pause,omitzero"` // with a shared PID namespace only
	Handler   string                       `json:"handler,omitempty"`
	Config    *runtimeapi.PodSandboxConfig `json:"config"`
}

type sandbox struct {
	id     string
	lock   opLock
	record atomic.Pointer[sandboxRecord]
}

func (sb *sandbox) get() *sandboxRecord { return sb.record.Load() }

// containerRecord is what of a container is written down.
type containerRecord struct {
	ID         string                      `json:"id"`
	SandboxID  string                      `json:"sandboxID"`
	Phase      phase                       `json:"phase"`
	BootID     string                      `json:"bootID"`
	CreatedAt  int64                       `json:"createdAt"` // nanoseconds, as all times here
	StartedAt  int64                       `json:"startedAt,omitempty"`
	FinishedAt int64                       `json:"finishedAt,omitempty"`
	ExitCode   int32                       `json:"exitCode"`
	Reason     string                      `json:"reason,omitempty"`
	Message    string                      `json:"message,omitempty"`
	Monitor    monitor.Process             `json:"monitor,omitzero"`
	Init       monitor.Process             `json:"init,omitzero"`
	ImageID    string                      `json:"imageID"`
	ImageRef   string                      `json:"imageRef"`
	StopSignal string                      `json:"stopSignal,omitempty"`
	LogPath    string                      `json:"logPath,omitempty"`
	Cgroup     string                      `json:"cgroup"`
	Handler    string                      `json:"handler,omitempty"`
	OwnPIDs    bool                        `json:"ownPIDs"` // its init is process 1 of a namespace, and takes all with it
	UID        int64                       `json:"uid"`
	GID        int64                       `json:"gid"`
	Groups     []int64                     `json:"groups,omitempty"`
	Config     *runtimeapi.ContainerConfig `json:"config"`
}

type container struct {
	id     string
	lock   opLock
	record atomic.Pointer[containerRecord]
	mu     sync.Mutex // serializes changes of record
	done   chan struct{}
}

func (c *container) get() *containerRecord { return c.record.Load() }

func newContainer(record *containerRecord) *container {
	c := &container{id: record.ID, lock: newOpLock(), done: make(chan struct{})}
	c.record.Store(record)
	if record.Phase == exited {
		close(c.done)
	}
	return c
}

func newSandbox(record *sandboxRecord) *sandbox {
	sb := &sandbox{id: record.ID, lock: newOpLock()}
	sb.record.Store(record)
	return sb
}

// registry finds objects by id, and keeps their names unique.
type registry struct {
	mu         *sync.RWMutex
	sandboxes  map[string]*sandbox
	containers map[string]*container
	names      map[string]string // of both kinds → id
}

func newRegistry() registry {
	return registry{mu: &sync.RWMutex{}, sandboxes: map[string]*sandbox{}, containers: map[string]*container{}, names: map[string]string{}}
}

func (r registry) reserve(name, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if owner, taken := r.names[name]; taken {
		return fmt.Errorf("name %q is reserved for %q", name, owner)
	}
	r.names[name] = id
	return nil
}

func (r registry) release(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.names, name)
}

func (r registry) addSandbox(sb *sandbox) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sandboxes[sb.id] = sb
}

func (r registry) addContainer(c *container) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.containers[c.id] = c
}

func (r registry) dropSandbox(sb *sandbox) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sandboxes, sb.id)
	delete(r.names, sandboxName(sb.get().Config))
}

func (r registry) dropContainer(c *container) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.containers, c.id)
	delete(r.names, containerName(c.get().SandboxID, c.get().Config))
}

// sandbox finds by id or by an unambiguous beginning of one.
func (r registry) sandbox(id string) (*sandbox, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	sb, ok := find(r.sandboxes, id)
	if !ok {
		return nil, fmt.Errorf("sandbox %q: %w", id, errNotFound)
	}
	return sb, nil
}

func (r registry) container(id string) (*container, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	c, ok := find(r.containers, id)
	if !ok {
		return nil, fmt.Errorf("container %q: %w", id, errNotFound)
	}
	return c, nil
}

func find[T any](objects map[string]T, id string) (T, bool) {
	if object, ok := objects[id]; ok {
		return object, true
	}
	var found T
	matches := 0
	for full, object := range objects {
		if id != "" && strings.HasPrefix(full, id) {
			found = object
			matches++
		}
	}
	return found, matches == 1
}

// listSandboxes returns all, the newest first.
func (r registry) listSandboxes() []*sandbox {
	r.mu.RLock()
	defer r.mu.RUnlock()
	list := make([]*sandbox, 0, len(r.sandboxes))
	for _, sb := range r.sandboxes {
		list = append(list, sb)
	}
	slices.SortFunc(list, func(a, b *sandbox) int { return int(min(1, max(-1, b.get().CreatedAt-a.get().CreatedAt))) })
	return list
}

// listContainers returns those of the sandbox, or all for an empty id, the newest
// first.
func (r registry) listContainers(sandboxID string) []*container {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var list []*container
	for _, c := range r.containers {
		if sandboxID == "" || c.get().SandboxID == sandboxID {
			list = append(list, c)
		}
	}
	slices.SortFunc(list, func(a, b *container) int { return int(min(1, max(-1, b.get().CreatedAt-a.get().CreatedAt))) })
	return list
}

func sandboxName(config *runtimeapi.PodSandboxConfig) string {
	m := config.GetMetadata()
	return fmt.Sprintf("sandbox %s/%s/%s/%d", m.GetNamespace(), m.GetName(), m.GetUid(), m.GetAttempt())
}

func containerName(sandboxID string, config *runtimeapi.ContainerConfig) string {
	m := config.GetMetadata()
	return fmt.Sprintf("container %s/%s/%d", sandboxID, m.GetName(), m.GetAttempt())
}
