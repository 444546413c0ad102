package iptables

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
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
	applied   map[string][]portRules // what the kernel has; nil before the first sync
	dirty     map[string]bool        // Services whose wanted rules may differ
	rebase    bool                   // the base rules changed

	stats Stats
}

// Stats are counts for metrics.
type Stats struct {
	Rules          map[string]int // in the kernel, by table
	FullSyncs      int
	PartialSyncs   int
	RestoreFailed  int
	PartialFailed  int
	ForeignChanges int
}

// NewSyncer has no Services yet; the first Sync is a full one.
func NewSyncer(config Config, execer Execer) *Syncer {
	return &Syncer{config: config, execer: execer, wanted: map[string][]portRules{}, dirty: map[string]bool{}}
}

// SetLocalPods says which pods are on this node.
func (s *Syncer) SetLocalPods(prefix netip.Prefix) {
	if prefix != s.localPods {
		s.localPods, s.rebase = prefix, true
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
func (s *Syncer) Stats() Stats { return s.stats }

// Sync writes the difference. A partial sync that fails is followed by a full
// one; when that fails too nothing is assumed of the kernel and the next Sync is
// full again.
func (s *Syncer) Sync(ctx context.Context) error {
	if s.applied == nil || s.rebase {
		return s.full(ctx)
	}
	input := s.difference()
	if input == "" {
		s.settle()
		return nil
	}
	if err := s.execer.Restore(ctx, input); err != nil {
		s.stats.RestoreFailed++
		s.stats.PartialFailed++
		s.applied = nil
		if fullErr := s.full(ctx); fullErr != nil {
			return fmt.Errorf("%w (after a partial sync failed: %w)", fullErr, err)
		}
		return nil
	}
	s.stats.PartialSyncs++
	s.settle()
	return nil
}

// settle takes what is wanted for applied.
func (s *Syncer) settle() {
	for key := range s.dirty {
		if rules, ok := s.wanted[key]; ok {
			s.applied[key] = rules
		} else {
			delete(s.applied, key)
		}
	}
	clear(s.dirty)
	s.rebase = false
}

// Check compares the kernel's rules with what was applied and repairs foreign
// changes. It says whether it found any.
func (s *Syncer) Check(ctx context.Context) (changed bool, err error) {
	if s.applied == nil {
		return false, nil
	}
	want := s.expected()
	s.stats.Rules = map[string]int{}
	for _, table := range []string{natTable, filterTable} {
		text, err := s.execer.Save(ctx, table)
		if err != nil {
			return false, err
		}
		have := parse(text)
		for chain, rules := range have.rules {
			s.stats.Rules[table] += rules
			_ = chain
		}
		if !have.has(want[table], table) {
			changed = true
		}
	}
	if !changed {
		return false, nil
	}
	s.stats.ForeignChanges++
	s.applied = nil
	return true, s.full(ctx)
}

// expected are the numbers of rules in our chains, by table.
func (s *Syncer) expected() map[string]map[string]int {
	out := map[string]map[string]int{natTable: {}, filterTable: {}}
	for table, chains := range s.config.base(s.localPods) {
		for chain, rules := range chains {
			out[table][chain] += len(rules)
		}
	}
	for _, ports := range s.applied {
		for _, p := range ports {
			for chain, rules := range p.chains {
				out[natTable][chain] = len(rules)
			}
			for _, l := range p.shared {
				out[l.table][l.chain]++
			}
		}
	}
	return out
}

// saved is what iptables-save says of a table.
type saved struct {
	rules map[string]int // of each chain
	jumps map[string]bool
}

func parse(text string) saved {
	out := saved{rules: map[string]int{}, jumps: map[string]bool{}}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, ":"); ok {
			name, _, _ = strings.Cut(name, " ")
			out.rules[name] += 0
		}
		rule, ok := strings.CutPrefix(line, "-A ")
		if !ok {
			continue
		}
		chain, rest, _ := strings.Cut(rule, " ")
		out.rules[chain]++
		if strings.Contains(rest, "--comment sampan") || strings.Contains(rest, `--comment "sampan"`) {
			if _, target, ok := strings.Cut(rest, "-j "); ok {
				out.jumps[chain+" "+target] = true
			}
		}
	}
	return out
}

func (v saved) has(want map[string]int, table string) bool {
	for chain, rules := range want {
		if have, ok := v.rules[chain]; !ok || have != rules {
			return false
		}
	}
	for _, j := range jumps() {
		if j.table == table && !v.jumps[j.from+" "+j.to] {
			return false
		}
	}
	return true
}

// full writes everything and removes chains of ours that are not wanted.
func (s *Syncer) full(ctx context.Context) error {
	var input strings.Builder
	for _, table := range []string{natTable, filterTable} {
		text, err := s.execer.Save(ctx, table)
		if err != nil {
			return err
		}
		s.writeTable(&input, table, parse(text))
	}
	if err := s.execer.Restore(ctx, input.String()); err != nil {
		s.stats.RestoreFailed++
		s.applied = nil
		return err
	}
	s.stats.FullSyncs++
	s.applied = maps.Clone(s.wanted)
	clear(s.dirty)
	s.rebase = false
	return nil
}

func (s *Syncer) writeTable(out *strings.Builder, table string, have saved) {
	chains := s.config.base(s.localPods)[table]
	var shared []line
	for _, key := range slices.Sorted(maps.Keys(s.wanted)) {
		for _, p := range s.wanted[key] {
			if table == natTable {
				maps.Copy(chains, p.chains)
			}
			for _, l := range p.shared {
				if l.table == table {
					shared = append(shared, l)
				}
			}
		}
	}
	fmt.Fprintf(out, "*%s\n", table)
	names := slices.Sorted(maps.Keys(chains))
	for _, chain := range names {
		fmt.Fprintf(out, ":%s - [0:0]\n", chain)
	}
	var stale []string
	for chain := range have.rules {
		if _, wanted := chains[chain]; !wanted && owned(chain) {
			stale = append(stale, chain)
		}
	}
	slices.Sort(stale)
	for _, chain := range stale {
		fmt.Fprintf(out, ":%s - [0:0]\n", chain)
	}
	for _, l := range shared { // before the base rules, the last of which leads to NodePorts
		fmt.Fprintf(out, "-A %s %s\n", l.chain, l.rule)
	}
	for _, chain := range names {
		for _, rule := range chains[chain] {
			fmt.Fprintf(out, "-A %s %s\n", chain, rule)
		}
	}
	for _, j := range slices.Backward(jumps()) {
		if j.table == table && !have.jumps[j.from+" "+j.to] {
			fmt.Fprintf(out, "-I %s %s\n", j.from, j.rule())
		}
	}
	for _, chain := range stale {
		fmt.Fprintf(out, "-X %s\n", chain)
	}
	out.WriteString("COMMIT\n")
}

// difference is the input that takes what is applied to what is wanted, "" when
// they are the same. Its size does not depend on the number of Services.
func (s *Syncer) difference() string {
	oldChains, newChains := map[string][]string{}, map[string][]string{}
	oldLines, newLines := map[line]bool{}, map[line]bool{}
	for key := range s.dirty {
		gather(s.applied[key], oldChains, oldLines)
		gather(s.wanted[key], newChains, newLines)
	}
	var nat, filter strings.Builder
	tables := map[string]*strings.Builder{natTable: &nat, filterTable: &filter}
	var declared, rules strings.Builder
	for _, chain := range slices.Sorted(maps.Keys(newChains)) {
		if slices.Equal(newChains[chain], oldChains[chain]) {
			continue
		}
		fmt.Fprintf(&declared, ":%s - [0:0]\n", chain)
		for _, rule := range newChains[chain] {
			fmt.Fprintf(&rules, "-A %s %s\n", chain, rule)
		}
	}
	var removed []string
	for _, chain := range slices.Sorted(maps.Keys(oldChains)) {
		if _, stays := newChains[chain]; !stays {
			removed = append(removed, chain)
			fmt.Fprintf(&declared, ":%s - [0:0]\n", chain)
		}
	}
	nat.WriteString(declared.String() + rules.String())
	for _, l := range sortedLines(newLines) {
		if !oldLines[l] {
			fmt.Fprintf(tables[l.table], "-I %s %s\n", l.chain, l.rule)
		}
	}
	for _, l := range sortedLines(oldLines) {
		if !newLines[l] {
			fmt.Fprintf(tables[l.table], "-D %s %s\n", l.chain, l.rule)
		}
	}
	for _, chain := range removed {
		fmt.Fprintf(&nat, "-X %s\n", chain)
	}
	var out strings.Builder
	for _, table := range []string{natTable, filterTable} {
		if text := tables[table].String(); text != "" {
			fmt.Fprintf(&out, "*%s\n%sCOMMIT\n", table, text)
		}
	}
	return out.String()
}

func gather(ports []portRules, chains map[string][]string, lines map[line]bool) {
	for _, p := range ports {
		maps.Copy(chains, p.chains)
		for _, l := range p.shared {
			lines[l] = true
		}
	}
}

func sortedLines(lines map[line]bool) []line {
	return slices.SortedFunc(maps.Keys(lines), func(a, b line) int {
		return strings.Compare(a.table+a.chain+a.rule, b.table+b.chain+b.rule)
	})
}

// Cleanup removes everything that Sync makes.
func Cleanup(ctx context.Context, execer Execer) error {
	var input strings.Builder
	for _, table := range []string{natTable, filterTable} {
		text, err := execer.Save(ctx, table)
		if err != nil {
			return err
		}
		have := parse(text)
		fmt.Fprintf(&input, "*%s\n", table)
		var ours []string
		for chain := range have.rules {
			if owned(chain) {
				ours = append(ours, chain)
				fmt.Fprintf(&input, ":%s - [0:0]\n", chain)
			}
		}
		for _, j := range jumps() {
			if j.table == table && have.jumps[j.from+" "+j.to] {
				fmt.Fprintf(&input, "-D %s %s\n", j.from, j.rule())
			}
		}
		for _, chain := range ours {
			fmt.Fprintf(&input, "-X %s\n", chain)
		}
		input.WriteString("COMMIT\n")
	}
	return execer.Restore(ctx, input.String())
}
