package iptables

import (
	"maps"
	"slices"
	"strings"
)

// difference takes what is in the kernel to what is wanted. Its size depends on
// the Services that changed, not on how many there are.
type difference struct {
	kernel         *kernel
	old, wanted    map[string][]string // chains of the Services that changed
	delta          map[line]int        // how many more ports have a line
	order          []line              // of delta, as ports ask for them
	added, removed []line              // that change the kernel
	opened, closed []chainID           // shared chains that come and go
	growth         map[chainID]int
}

func (s *Syncer) difference() *difference {
	d := &difference{kernel: s.kernel, old: map[string][]string{}, wanted: map[string][]string{}, delta: map[line]int{}, growth: map[chainID]int{}}
	for _, key := range slices.Sorted(maps.Keys(s.dirty)) {
		d.gather(s.kernel.services[key], d.old, -1)
		d.gather(s.wanted[key], d.wanted, +1)
	}
	for _, l := range d.order {
		before := d.kernel.lines[l]
		after := before + d.delta[l]
		id := chainID{l.table, l.chain}
		switch {
		case before == 0 && after > 0:
			d.added = append(d.added, l)
			d.growth[id]++
		case before > 0 && after == 0:
			d.removed = append(d.removed, l)
			d.growth[id]--
		}
	}
	for id, growth := range d.growth {
		if before := d.kernel.chains[id]; !isBlock(id) || growth == 0 && before > 0 {
			continue
		} else if before == 0 {
			d.opened = append(d.opened, id)
		} else if before+growth == 0 {
			d.closed = append(d.closed, id)
		}
	}
	return d
}

// isBlock says whether a shared chain is there only while it has rules.
func isBlock(id chainID) bool { return strings.HasPrefix(id.name, blockPrefix) }

func (d *difference) gather(ports []portRules, chains map[string][]string, sign int) {
	for _, p := range ports {
		for _, c := range p.chains {
			chains[c.name] = c.rules
		}
		for _, l := range p.shared {
			if _, seen := d.delta[l]; !seen {
				d.order = append(d.order, l)
			}
			d.delta[l] += sign
		}
	}
}

// text is the difference as input of iptables-restore, "" when there is none.
func (d *difference) text() string {
	var out strings.Builder
	for _, table := range tables() {
		var body strings.Builder
		d.writeTable(&body, table)
		if body.Len() > 0 {
			out.WriteString("*" + table + "\n" + body.String() + "COMMIT\n")
		}
	}
	return out.String()
}

func (d *difference) writeTable(out *strings.Builder, table string) {
	var gone []string
	var rules strings.Builder
	if table == natTable {
		gone = d.writeChains(out, &rules)
	}
	for _, id := range append(slices.Clone(d.opened), d.closed...) {
		if id.table == table {
			out.WriteString(":" + id.name + " - [0:0]\n")
		}
	}
	out.WriteString(rules.String())
	for _, l := range d.added {
		if l.table != table {
			continue
		}
		verb := "-I " // before the base rules
		if isBlock(chainID{l.table, l.chain}) {
			verb = "-A "
		}
		out.WriteString(verb + l.chain + " " + l.rule + "\n")
	}
	for _, l := range d.removed {
		if l.table == table && !slices.Contains(d.closed, chainID{l.table, l.chain}) {
			out.WriteString("-D " + l.chain + " " + l.rule + "\n")
		}
	}
	for _, id := range d.closed {
		if id.table == table {
			gone = append(gone, id.name)
		}
	}
	for _, name := range gone {
		out.WriteString("-X " + name + "\n")
	}
}

// writeChains declares the chains of Services that change and writes their rules
// aside; it returns the chains to remove, which are emptied first.
func (d *difference) writeChains(declared, rules *strings.Builder) (gone []string) {
	for _, name := range slices.Sorted(maps.Keys(d.wanted)) {
		if old, there := d.old[name]; there && slices.Equal(d.wanted[name], old) {
			continue
		}
		declared.WriteString(":" + name + " - [0:0]\n")
		for _, rule := range d.wanted[name] {
			rules.WriteString("-A " + name + " " + rule + "\n")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.old)) {
		if _, stays := d.wanted[name]; !stays {
			gone = append(gone, name)
			declared.WriteString(":" + name + " - [0:0]\n")
		}
	}
	return gone
}

// touched are the chains that the difference changes.
func (d *difference) touched() []chainID {
	var out []chainID
	for _, chains := range []map[string][]string{d.old, d.wanted} {
		for name := range chains {
			out = append(out, chainID{natTable, name})
		}
	}
	for id := range d.growth {
		out = append(out, id)
	}
	return out
}

// apply notes the difference as written.
func (d *difference) apply() {
	for _, rules := range d.old {
		d.kernel.rules[natTable] -= len(rules)
	}
	for _, rules := range d.wanted {
		d.kernel.rules[natTable] += len(rules)
	}
	for l, delta := range d.delta {
		if d.kernel.lines[l] += delta; d.kernel.lines[l] == 0 {
			delete(d.kernel.lines, l)
		}
	}
	for id, growth := range d.growth {
		d.kernel.rules[id.table] += growth
		if d.kernel.chains[id] += growth; d.kernel.chains[id] == 0 {
			delete(d.kernel.chains, id)
		}
	}
}
