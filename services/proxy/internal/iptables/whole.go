package iptables

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// blockChains is how many chains a block leads to where there are many Services.
const blockChains = 50

// writeTable writes a table as it is wanted. A section of the output, from *TABLE
// to COMMIT, changes the kernel at once. With Config.SectionChains there are
// several: first the chains of Services, then the blocks that lead to them, at
// last the chains that all share and the removal of what is stale. Whatever the
// section after which it is cut, every rule leads somewhere.
func (s *Syncer) writeTable(out *strings.Builder, table string, have saved) {
	own, shared := s.collect(table)
	size := s.config.SectionChains
	if chains := count(own) + len(shared); size == 0 || chains <= size {
		s.writeLast(out, table, have, slices.Concat(slices.Concat(own...), shared))
		return
	}
	var blocks, rest []chain
	for _, c := range shared {
		if isBlock(chainID{table, c.name}) {
			blocks = append(blocks, c)
		} else {
			rest = append(rest, c)
		}
	}
	written := rest
	for _, part := range sections(own, blocks, size) {
		if table == natTable { // nearly all lead to it
			part = append(part, chain{markChain, s.markRules()})
		}
		writeSection(out, table, part, nil, nil)
		written = append(written, part...)
	}
	s.writeLast(out, table, have, rest, written...)
}

func count(ports [][]chain) (n int) {
	for _, chains := range ports {
		n += len(chains)
	}
	return n
}

// sections keeps the chains of a port together, which lead to each other.
func sections(ports [][]chain, blocks []chain, size int) [][]chain {
	var out [][]chain
	var part []chain
	for _, chains := range ports {
		if part = append(part, chains...); len(part) >= size {
			out, part = append(out, part), nil
		}
	}
	if len(part) > 0 {
		out = append(out, part)
	}
	return append(out, slices.Collect(slices.Chunk(blocks, max(1, size/blockChains)))...)
}

// collect are the chains of each port, and those that they share, the latter
// with their base rules last.
func (s *Syncer) collect(table string) (own [][]chain, shared []chain) {
	lines := map[string][]string{}
	for _, c := range s.base[table] {
		lines[c.name] = nil
	}
	written := map[line]bool{}
	for _, key := range slices.Sorted(maps.Keys(s.wanted)) {
		for _, p := range s.wanted[key] {
			if table == natTable && len(p.chains) > 0 {
				own = append(own, p.chains)
			}
			for _, l := range p.shared {
				if l.table == table && !written[l] {
					written[l] = true
					lines[l.chain] = append(lines[l.chain], l.rule)
				}
			}
		}
	}
	for _, c := range s.base[table] {
		lines[c.name] = append(lines[c.name], c.rules...)
	}
	for name, rules := range lines {
		shared = append(shared, chain{name, rules})
	}
	return own, shared
}

func (s *Syncer) markRules() []string {
	for _, c := range s.base[natTable] {
		if c.name == markChain {
			return c.rules
		}
	}
	return nil
}

// writeLast writes the last section of a table: also the ways in that are not
// there, and the removal of chains of ours that are neither in it nor among those
// written before.
func (s *Syncer) writeLast(out *strings.Builder, table string, have saved, chains []chain, before ...chain) {
	wanted := map[string]bool{}
	for _, c := range slices.Concat(chains, before) {
		wanted[c.name] = true
	}
	var ways, stale []string
	for _, j := range slices.Backward(jumps()) {
		if j.table == table && !have.jumps[j.from+" "+j.to] {
			ways = append(ways, "-I "+j.from+" "+j.rule())
		}
	}
	for name := range have.chains {
		if !wanted[name] && owned(name) {
			stale = append(stale, name)
		}
	}
	slices.Sort(stale)
	writeSection(out, table, chains, ways, stale)
}

func writeSection(out *strings.Builder, table string, chains []chain, ways, stale []string) {
	// The tools walk their list of chains up to the name: descending names are
	// found at once.
	chains = slices.SortedFunc(slices.Values(chains), func(a, b chain) int { return cmp.Compare(b.name, a.name) })
	out.WriteString("*" + table + "\n")
	for _, c := range chains {
		out.WriteString(":" + c.name + " - [0:0]\n")
	}
	for _, name := range stale {
		out.WriteString(":" + name + " - [0:0]\n")
	}
	for _, c := range chains {
		for _, rule := range c.rules {
			out.WriteString("-A " + c.name + " " + rule + "\n")
		}
	}
	for _, way := range ways {
		out.WriteString(way + "\n")
	}
	for _, name := range stale {
		out.WriteString("-X " + name + "\n")
	}
	out.WriteString("COMMIT\n")
}
