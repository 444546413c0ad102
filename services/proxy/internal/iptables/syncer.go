package iptables

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"strings"

	"github.com/sampan-io/sampan/services/proxy/internal/servicemap"
)

// Syncer brings the kernel's rules to the wanted ones. It is used by one
// goroutine.
type Syncer struct {
	config Config
	execer Execer

	localPods netip.Prefix
	wanted    map[string][]portRules // by Service, "namespace/name"
	dirty     map[string]bool        // Services whose wanted rules may differ
	rebase    bool                   // the base rules changed

	kernel   *kernel            // nil when nothing is known of it
	verified map[chainID]uint64 // hashes of chains as they were once read back
	base     map[string][]chain // made from localPods
	stats    Stats
}

// kernel is what was written.
type kernel struct {
	services map[string][]portRules
	lines    map[line]int    // how many ports have each line
	chains   map[chainID]int // lines in each shared chain
	rules    map[string]int  // by table
}

type chainID struct{ table, name string }

// Stats are counts for metrics.
type Stats struct {
	Rules          map[string]int // ours in the kernel, by table
	FullSyncs      int
	PartialSyncs   int
	RestoreFailed  int
	PartialFailed  int
	Checks         int
	ForeignChanges int
}

// NewSyncer has no Services yet; the first Sync is a full one.
func NewSyncer(config Config, execer Execer) *Syncer {
	return &Syncer{
		config: config, execer: execer, base: config.base(netip.Prefix{}),
		wanted: map[string][]portRules{}, dirty: map[string]bool{}, verified: map[chainID]uint64{},
	}
}

// SetLocalPods says which pods are on this node.
func (s *Syncer) SetLocalPods(prefix netip.Prefix) {
	if prefix != s.localPods {
		s.localPods, s.rebase = prefix, true
		s.base = s.config.base(prefix)
	}
}

// SetService says how a Service is forwarded from the next Sync on; no ports is
// not at all.
func (s *Syncer) SetService(key string, ports []servicemap.Port) {
	if len(ports) == 0 {
		delete(s.wanted, key)
	} else {
		rules := make([]portRules, 0, len(ports))
		for i := range ports {
			rules = append(rules, s.config.rulesOf(&ports[i]))
		}
		s.wanted[key] = rules
	}
	s.dirty[key] = true
}

// Stats are the syncer's counts.
func (s *Syncer) Stats() Stats {
	stats := s.stats
	stats.Rules = map[string]int{}
	if s.kernel != nil {
		maps.Copy(stats.Rules, s.kernel.rules)
	}
	return stats
}

// Sync writes the difference. A partial sync that fails is followed by a full
// one; when that fails too nothing is assumed of the kernel and the next Sync is
// full again.
func (s *Syncer) Sync(ctx context.Context) error {
	if s.kernel == nil || s.rebase {
		return s.full(ctx)
	}
	d := s.difference()
	if input := d.text(); input != "" {
		if err := s.execer.Restore(ctx, input); err != nil {
			s.stats.RestoreFailed++
			s.stats.PartialFailed++
			s.kernel = nil
			if fullErr := s.full(ctx); fullErr != nil {
				return fmt.Errorf("%w (after a partial sync failed: %w)", fullErr, err)
			}
			return nil
		}
		s.stats.PartialSyncs++
	}
	s.settle(d)
	return nil
}

// settle takes a difference for written.
func (s *Syncer) settle(d *difference) {
	for _, id := range d.touched() {
		delete(s.verified, id)
	}
	d.apply()
	for key := range s.dirty {
		if rules, ok := s.wanted[key]; ok {
			s.kernel.services[key] = rules
		} else {
			delete(s.kernel.services, key)
		}
	}
	clear(s.dirty)
}

// full writes everything and removes chains of ours that are not wanted.
func (s *Syncer) full(ctx context.Context) error {
	next := s.whole()
	var input strings.Builder
	for _, table := range tables() {
		text, err := s.execer.Save(ctx, table)
		if err != nil {
			return err
		}
		s.writeTable(&input, table, parse(text))
	}
	clear(s.verified)
	if err := s.execer.Restore(ctx, input.String()); err != nil {
		s.stats.RestoreFailed++
		s.kernel = nil
		return err
	}
	s.stats.FullSyncs++
	s.kernel = next
	clear(s.dirty)
	s.rebase = false
	s.learn(ctx)
	return nil
}

// whole is the kernel as it is wanted.
func (s *Syncer) whole() *kernel {
	k := &kernel{services: maps.Clone(s.wanted), lines: map[line]int{}, chains: map[chainID]int{}, rules: map[string]int{}}
	for table, chains := range s.base {
		for _, c := range chains {
			k.rules[table] += len(c.rules)
		}
	}
	for _, ports := range s.wanted {
		for _, p := range ports {
			for _, c := range p.chains {
				k.rules[natTable] += len(c.rules)
			}
			for _, l := range p.shared {
				if k.lines[l]++; k.lines[l] == 1 {
					k.chains[chainID{l.table, l.chain}]++
					k.rules[l.table]++
				}
			}
		}
	}
	return k
}
