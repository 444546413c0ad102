// Package users gives pods with user namespaces of their own ranges of the node's user
// and group ids, no two pods the same.
package users

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// IDsPerPod is upstream's default, and what most images need.
	IDsPerPod = 65536
	// The first range is the node's own; ids above 2^31 trouble old programs.
	lastRange = 1<<31/IDsPerPod - 1
	fileName  = "userns"
)

// Ranges hands them out. What a pod has is written into its directory, so that it goes
// when that does, and outlives this program.
type Ranges struct {
	dir string // parent of the pods' directories

	mu    sync.Mutex
	taken map[types.UID]uint32 // the first id
}

// Open reads what pods have already.
func Open(podsDir string) (*Ranges, error) {
	r := &Ranges{dir: podsDir, taken: map[types.UID]uint32{}}
	files, err := filepath.Glob(filepath.Join(podsDir, "*", fileName))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		uid := types.UID(filepath.Base(filepath.Dir(file)))
		first, err := r.read(uid)
		if err != nil {
			return nil, err
		}
		r.taken[uid] = first
	}
	return r, nil
}

type record struct {
	FirstID uint32 `json:"firstID"`
	Length  uint32 `json:"length"`
}

func (r *Ranges) file(uid types.UID) string { return filepath.Join(r.dir, string(uid), fileName) }

func (r *Ranges) read(uid types.UID) (uint32, error) {
	data, err := os.ReadFile(r.file(uid))
	if err != nil {
		return 0, fmt.Errorf("reading the ids of pod %s: %w", uid, err)
	}
	var saved record
	if err := json.Unmarshal(data, &saved); err != nil {
		return 0, fmt.Errorf("reading the ids of pod %s: %w", uid, err)
	}
	if saved.FirstID == 0 || saved.FirstID%IDsPerPod != 0 || saved.Length != IDsPerPod {
		return 0, fmt.Errorf("reading the ids of pod %s: %d ids from %d on are no range", uid, saved.Length, saved.FirstID)
	}
	return saved.FirstID, nil
}

// Own tells whether the pod asks for a user namespace of its own.
func Own(pod *corev1.Pod) bool { return pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers }

// Namespace is the pod's user namespace as the runtime is told of it; nil for pods that
// have the node's.
func (r *Ranges) Namespace(pod *corev1.Pod) (*runtimeapi.UserNamespace, error) {
	if !Own(pod) {
		return nil, nil
	}
	first, err := r.of(pod.UID)
	if err != nil {
		return nil, err
	}
	ids := []*runtimeapi.IDMapping{{HostId: first, Length: IDsPerPod}}
	return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids}, nil
}

func (r *Ranges) of(uid types.UID) (uint32, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if first, ok := r.taken[uid]; ok {
		return first, nil
	}
	r.forget()
	first, err := r.free()
	if err != nil {
		return 0, err
	}
	if err := r.write(uid, first); err != nil {
		return 0, fmt.Errorf("writing down the ids of pod %s: %w", uid, err)
	}
	r.taken[uid] = first
	return first, nil
}

// forget takes back the ranges of pods whose directories are gone. Caller must hold mu.
func (r *Ranges) forget() {
	for uid := range r.taken {
		if _, err := os.Stat(r.file(uid)); errors.Is(err, fs.ErrNotExist) {
			delete(r.taken, uid)
		}
	}
}

// free picks a range by chance: other agents of this machine do not know of this one's.
// Caller must hold mu.
func (r *Ranges) free() (uint32, error) {
	used := make(map[uint32]bool, len(r.taken))
	for _, first := range r.taken {
		used[first] = true
	}
	const most = lastRange / 2 // more than half would make the search long
	if len(used) >= most {
		return 0, errors.New("the node has no more ids for user namespaces")
	}
	for {
		first := (1 + rand.Uint32N(lastRange)) * IDsPerPod
		if !used[first] {
			return first, nil
		}
	}
}

func (r *Ranges) write(uid types.UID, first uint32) error {
	data, err := json.Marshal(record{FirstID: first, Length: IDsPerPod})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(r.file(uid)), 0o750); err != nil {
		return err
	}
	temporary := r.file(uid) + ".tmp"
	if err := os.WriteFile(temporary, data, 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, r.file(uid))
}
