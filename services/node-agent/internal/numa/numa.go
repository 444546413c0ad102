// Package numa gives containers of guaranteed pods memory of as few NUMA nodes as
// can be, as the kubelet's Static memory manager policy does. Other containers may
// use all nodes.
package numa

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"
)

// Policy is the name of what this package does, upstream's.
const Policy = "Static"

const memory = "memory"

// Block is the memory that a container has been given.
type Block struct {
	Nodes []int  `json:"numaAffinity"`
	Type  string `json:"type"` // "memory"
	Size  int64  `json:"size"` // bytes
}

// Pool is the memory of the machine's NUMA nodes.
type Pool struct {
	file string
	free map[int]int64 // bytes that pods may have, by node

	mu      sync.Mutex
	entries map[types.UID]map[string]Block
}

// state is the file.
type state struct {
	Policy   string                      `json:"policyName"`
	Nodes    map[int]int64               `json:"allocatable"`
	Entries  map[string]map[string]Block `json:"entries,omitempty"`
	Checksum uint32                      `json:"checksum"`
}

// ReadNodes asks the kernel for the memory of each NUMA node, in bytes; sys is
// /sys. A machine without such nodes is one.
func ReadNodes(sys string, total int64) (map[int]int64, error) {
	root := filepath.Join(sys, "devices", "system", "node")
	online, err := os.ReadFile(filepath.Join(root, "online"))
	if errors.Is(err, fs.ErrNotExist) {
		return map[int]int64{0: total}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading NUMA nodes: %w", err)
	}
	ids, err := cpuset.Parse(strings.TrimSpace(string(online)))
	if err != nil {
		return nil, fmt.Errorf("reading NUMA nodes: %w", err)
	}
	out := map[int]int64{}
	for _, id := range ids.List() {
		data, err := os.ReadFile(filepath.Join(root, "node"+strconv.Itoa(id), "meminfo"))
		if err != nil {
			return nil, fmt.Errorf("reading memory of NUMA node %d: %w", id, err)
		}
		out[id] = totalOf(data)
	}
	return out, nil
}

// totalOf finds "Node 0 MemTotal:  123 kB".
func totalOf(data []byte) int64 {
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		const key, value = 2, 3
		if len(fields) > value && fields[key] == "MemTotal:" {
			n, err := strconv.ParseInt(fields[value], 10, 64)
			if err == nil {
				return n << 10
			}
		}
	}
	return 0
}

// Open reads who has what from a file. Reserved is what each node keeps for the
// system, which must sum up to total: what pods cannot have of the machine anyway.
func Open(file string, nodes, reserved map[int]int64, total int64) (*Pool, error) {
	p := &Pool{file: file, free: map[int]int64{}, entries: map[types.UID]map[string]Block{}}
	var sum int64
	for id, amount := range reserved {
		if _, known := nodes[id]; !known {
			return nil, fmt.Errorf("memory is reserved of NUMA node %d, which is not there", id)
		}
		sum += amount
	}
	if sum != total {
		return nil, fmt.Errorf("the total amount %d of type \"memory\" in reservedMemory is not equal to the value %d, which systemReserved, kubeReserved and evictionHard keep", sum, total)
	}
	for id, amount := range nodes {
		p.free[id] = max(amount-reserved[id], 0)
	}
	if err := p.load(); err != nil {
		return nil, fmt.Errorf("memory of pods: %w; drain the node and remove the file to go on", err)
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
	switch {
	case s.sum() != sum:
		return fmt.Errorf("reading %s: its checksum is wrong", p.file)
	case s.Policy != Policy:
		return fmt.Errorf("configured policy %q differs from state checkpoint policy %q", Policy, s.Policy)
	case len(s.Entries) > 0 && !slices.Equal(slices.Sorted(maps.Keys(s.Nodes)), slices.Sorted(maps.Keys(p.free))):
		return fmt.Errorf("the NUMA nodes in %s are not this machine's", p.file)
	}
	for uid, containers := range s.Entries {
		p.entries[types.UID(uid)] = containers
	}
	return p.fits()
}

// fits refuses what pods have been given of nodes that have become too small. Nodes
// of virtual machines grow and shrink while they run, so a change alone is none.
func (p *Pool) fits() error {
	blocks := p.blocks()
	for _, b := range blocks {
		if p.room(b.Nodes, blocks) < 0 {
			return fmt.Errorf("pods have more memory of the NUMA nodes %v in %s than these have", b.Nodes, p.file)
		}
	}
	return nil
}

// blocks are all that were given. Caller must hold mu, or be alone.
func (p *Pool) blocks() []Block {
	var out []Block
	for _, containers := range p.entries {
		out = slices.AppendSeq(out, maps.Values(containers))
	}
	return out
}

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
	s := state{Policy: Policy, Nodes: p.free, Entries: map[string]map[string]Block{}}
	for uid, containers := range p.entries {
		s.Entries[string(uid)] = containers
	}
	s.Checksum = s.sum()
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := os.WriteFile(p.file+".part", data, 0o600); err != nil {
		return fmt.Errorf("keeping memory of pods: %w", err)
	}
	return os.Rename(p.file+".part", p.file)
}

// Of is what a container has been given; of is false if it may use all nodes.
func (p *Pool) Of(pod types.UID, container string) (block Block, own bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	block, own = p.entries[pod][container]
	return block, own
}

// Allocatable is what pods may have of each node.
func (p *Pool) Allocatable() []Block {
	var out []Block
	for _, id := range slices.Sorted(maps.Keys(p.free)) {
		out = append(out, Block{Nodes: []int{id}, Type: memory, Size: p.free[id]})
	}
	return out
}

// choose finds the fewest nodes with enough memory. A node that some container has
// alone is not shared out among several, and the reverse. Caller must hold mu.
func (p *Pool) choose(size int64, blocks []Block) ([]int, error) {
	ids := slices.Sorted(maps.Keys(p.free))
	var best []int
	for mask := uint(1); mask < 1<<len(ids); mask++ {
		if best != nil && bits.OnesCount(mask) >= len(best) {
			continue
		}
		var group []int
		for i, id := range ids {
			if mask&(1<<i) != 0 {
				group = append(group, id)
			}
		}
		if p.room(group, blocks) >= size {
			best = group
		}
	}
	if best == nil {
		return nil, fmt.Errorf("not enough memory of NUMA nodes: requested=%d", size)
	}
	return best, nil
}

// room is what is free in a group of nodes; 0 if one of them belongs to another
// group.
func (p *Pool) room(group []int, blocks []Block) int64 {
	var room int64
	for _, id := range group {
		room += p.free[id]
	}
	for _, b := range blocks {
		if slices.Equal(b.Nodes, group) {
			room -= b.Size
			continue
		}
		if slices.ContainsFunc(b.Nodes, func(id int) bool { return slices.Contains(group, id) }) {
			return 0
		}
	}
	return room
}

// Release takes a pod's memory back.
func (p *Pool) Release(pod types.UID) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, had := p.entries[pod]; !had {
		return nil
	}
	delete(p.entries, pod)
	return p.save()
}
