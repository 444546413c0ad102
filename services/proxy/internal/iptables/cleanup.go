package iptables

import (
	"context"
	"maps"
	"slices"
	"strings"
)

// Cleanup removes everything that Sync makes, whichever process made it.
func Cleanup(ctx context.Context, execer Execer) error {
	var input strings.Builder
	for _, table := range tables() {
		text, err := execer.Save(ctx, table)
		if err != nil {
			return err
		}
		have := parse(text)
		input.WriteString("*" + table + "\n")
		var ours []string
		for _, name := range slices.Sorted(maps.Keys(have.chains)) {
			if owned(name) {
				ours = append(ours, name)
				input.WriteString(":" + name + " - [0:0]\n")
			}
		}
		for _, j := range jumps() {
			if j.table == table && have.jumps[j.from+" "+j.to] {
				input.WriteString("-D " + j.from + " " + j.rule() + "\n")
			}
		}
		for _, name := range ours {
			input.WriteString("-X " + name + "\n")
		}
		input.WriteString("COMMIT\n")
	}
	return execer.Restore(ctx, input.String())
}
