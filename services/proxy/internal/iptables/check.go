package iptables

import (
	"context"
	"hash/fnv"
	"strings"
)

// Check compares the kernel's rules with what was written and repairs foreign
// changes. It says whether it found any.
func (s *Syncer) Check(ctx context.Context) (changed bool, err error) {
	if s.kernel == nil {
		return false, nil
	}
	s.stats.Checks++
	for _, table := range tables() {
		text, err := s.execer.Save(ctx, table)
		if err != nil {
			return false, err
		}
		if !s.matches(table, parse(text)) {
			changed = true
		}
	}
	if !changed {
		return false, nil
	}
	s.stats.ForeignChanges++
	s.kernel = nil
	return true, s.full(ctx)
}

// learn reads back what a full sync wrote, so that foreign changes are noticed from
// then on. What cannot be read or differs already is left to the next Check.
func (s *Syncer) learn(ctx context.Context) {
	for _, table := range tables() {
		if text, err := s.execer.Save(ctx, table); err == nil {
			s.matches(table, parse(text))
		}
	}
}

// matches says whether a table has the chains and ways in that it should. iptables
// writes rules in other words than it was given, so a chain's rules are compared
// by number the first time, and with what was read then from there on.
func (s *Syncer) matches(table string, have saved) bool {
	for name, rules := range s.expected(table) {
		found, ok := have.chains[name]
		if !ok || found.rules != rules {
			return false
		}
		id := chainID{table, name}
		if before, known := s.verified[id]; known && before != found.hash {
			return false
		}
		s.verified[id] = found.hash
	}
	for _, j := range jumps() {
		if j.table == table && !have.jumps[j.from+" "+j.to] {
			return false
		}
	}
	return true
}

// expected are the numbers of rules in our chains.
func (s *Syncer) expected(table string) map[string]int {
	out := make(map[string]int, len(s.kernel.services)+len(s.kernel.chains))
	for _, c := range s.base[table] {
		out[c.name] = len(c.rules)
	}
	for id, lines := range s.kernel.chains {
		if id.table == table {
			out[id.name] += lines
		}
	}
	if table != natTable {
		return out
	}
	for _, ports := range s.kernel.services {
		for _, p := range ports {
			for _, c := range p.chains {
				out[c.name] = len(c.rules)
			}
		}
	}
	return out
}

// saved is what iptables-save says of a table.
type saved struct {
	chains map[string]savedChain
	jumps  map[string]bool // of ours in built-in chains: "FROM TO"
}

type savedChain struct {
	rules int
	hash  uint64 // of the rules
}

func parse(text string) saved {
	out := saved{chains: map[string]savedChain{}, jumps: map[string]bool{}}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, ":"); ok {
			name, _, _ = strings.Cut(name, " ")
			out.chains[name] = savedChain{}
		}
		rule, ok := strings.CutPrefix(line, "-A ")
		if !ok {
			continue
		}
		name, rest, _ := strings.Cut(rule, " ")
		c := out.chains[name]
		c.rules++
		c.hash = c.hash*31 + hash(rest)
		out.chains[name] = c
		if strings.Contains(rest, "--comment sampan ") || strings.Contains(rest, `--comment "sampan" `) {
			if _, target, ok := strings.Cut(rest, "-j "); ok {
				out.jumps[name+" "+target] = true
			}
		}
	}
	return out
}

func hash(text string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text))
	return h.Sum64()
}
