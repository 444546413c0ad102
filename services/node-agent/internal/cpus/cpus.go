// Package cpus gives whole CPUs to containers of guaranteed pods that ask for a
// whole number, as the kubelet's static CPU manager policy does. All other
// containers share the rest.
package cpus

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"

	"github.com/sampan-io/sampan/services/node-agent/internal/qos"
)

// Policy is the name of what this package does, upstream's.
const Policy = "static"

// Pool is the CPUs of the node.
type Pool struct {
	file     string
	topology Topology
	reserved cpuset.CPUSet // never given to one container alone

	mu      sync.Mutex
	entries map[types.UID]map[string]cpuset.CPUSet
}

// state is the file, in upstream's form.
type state struct {
	Policy   string                       `json:"policyName"`
	Default  string                       `json:"defaultCpuSet"`
	Entries  map[string]map[string]string `json:"entries,omitempty"`
	Checksum uint32                       `json:"checksum"`
}

// Open reads who has what from a file. Reserved is how many CPUs are kept for the
// system, unless which are is given. It is an error if the CPUs in the file are not
// the node's, or if another policy wrote it: pods must be drained and the file
// removed then.
func Open(file string, topology Topology, reserved int, which cpuset.CPUSet) (*Pool, error) {
	p := &Pool{file: file, topology: topology, reserved: which, entries: map[types.UID]map[string]cpuset.CPUSet{}}
	if which.IsEmpty() {
		var err error
		if p.reserved, err = topology.take(topology.All(), reserved); err != nil {
			return nil, fmt.Errorf("reserving CPUs: %w", err)
		}
	}
	switch {
	case p.reserved.IsEmpty():
		return nil, errors.New("the static CPU policy needs CPUs that are reserved: by systemReserved, kubeReserved or reservedSystemCPUs")
	case !p.reserved.IsSubsetOf(topology.All()):
		return nil, fmt.Errorf("the reserved CPUs %s are not all of this machine, which has %s", p.reserved, topology.All())
	}
	if err := p.load(); err != nil {
		return nil, fmt.Errorf("CPUs of pods: %w; drain the node and remove the file to go on", err)
	}
	return p, p.save()
}

func (p *Pool) load() error {
	data, err := os.ReadFile(p.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var s state
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("reading %s: %w", p.file, err)
	}
	sum := s.Checksum
	if s.sum() != sum {
		return fmt.Errorf("reading %s: its checksum is wrong", p.file)
	}
	if s.Policy != Policy {
		return fmt.Errorf("configured policy %q differs from state checkpoint policy %q", Policy, s.Policy)
	}
	shared, err := cpuset.Parse(s.Default)
	if err != nil {
		return fmt.Errorf("reading %s: %w", p.file, err)
	}
	all := shared
	for uid, containers := range s.Entries {
		p.entries[types.UID(uid)] = map[string]cpuset.CPUSet{}
		for name, text := range containers {
			set, err := cpuset.Parse(text)
			if err != nil {
				return fmt.Errorf("reading %s: %w", p.file, err)
			}
			p.entries[types.UID(uid)][name] = set
			all = all.Union(set)
		}
	}
	if !all.Equals(p.topology.All()) {
		return fmt.Errorf("the CPUs in %s are %s, but the machine has %s", p.file, all, p.topology.All())
	}
	return nil
}

// sum is the checksum of all but itself; it leaves 0 in its place.
func (s *state) sum() uint32 {
	s.Checksum = 0
	data, err := json.Marshal(s)
	if err != nil {
		return 0
	}
	return crc32.ChecksumIEEE(data)
}

// save keeps who has what. Caller must hold mu, or be alone.
func (p *Pool) save() error {
	s := state{Policy: Policy, Default: p.shared().String(), Entries: map[string]map[string]string{}}
	for uid, containers := range p.entries {
		s.Entries[string(uid)] = map[string]string{}
		for name, set := range containers {
			s.Entries[string(uid)][name] = set.String()
		}
	}
	s.Checksum = s.sum()
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := os.WriteFile(p.file+".part", data, 0o600); err != nil {
		return fmt.Errorf("keeping CPUs of pods: %w", err)
	}
	return os.Rename(p.file+".part", p.file)
}

// shared are the CPUs of no container alone. Caller must hold mu, or be alone.
func (p *Pool) shared() cpuset.CPUSet {
	out := p.topology.All()
	for _, containers := range p.entries {
		for _, set := range containers {
			out = out.Difference(set)
		}
	}
	return out
}

// Shared are the CPUs of all containers that have none of their own.
func (p *Pool) Shared() cpuset.CPUSet {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.shared()
}

// Reserved are the CPUs that no container gets alone.
func (p *Pool) Reserved() cpuset.CPUSet { return p.reserved }

// All are the machine's.
func (p *Pool) All() cpuset.CPUSet { return p.topology.All() }

// Of are the CPUs that a container runs on; own tells whether it has them alone.
func (p *Pool) Of(pod types.UID, container string) (set cpuset.CPUSet, own bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if set, own = p.entries[pod][container]; own {
		return set, true
	}
	return p.shared(), false
}

// Exclusive tells how many CPUs a container is to have alone.
func Exclusive(pod *corev1.Pod, c *corev1.Container) int {
	if qos.Class(pod) != corev1.PodQOSGuaranteed {
		return 0
	}
	request := c.Resources.Requests[corev1.ResourceCPU]
	if request.IsZero() {
		request = c.Resources.Limits[corev1.ResourceCPU]
	}
	if request.Value()*1000 != request.MilliValue() {
		return 0
	}
	return int(request.Value())
}

// Release takes a pod's CPUs back, and tells whether it had any.
func (p *Pool) Release(pod types.UID) (changed bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, had := p.entries[pod]; !had {
		return false, nil
	}
	delete(p.entries, pod)
	return true, p.save()
}
