package host

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/sampan-io/sampan/services/sampan/internal/cluster"
)

// The host's rules for its nodes: what they send outside leaves with the host's
// address, and a host that drops forwarded packets lets theirs pass.
const (
	natChain     = "SAMPAN-NODES"
	forwardChain = "SAMPAN-FORWARD"
)

func ensureRules() error {
	rules := strings.Join([]string{
		"*nat",
		":" + natChain + " - [0:0]",
		"-A " + natChain + " -s " + cluster.NodeNetwork + " ! -o " + cluster.Bridge + " -j MASQUERADE",
		"-A " + natChain + " -s " + cluster.PodCIDR + " ! -o " + cluster.Bridge + " -j MASQUERADE",
		"COMMIT",
		"*filter",
		":" + forwardChain + " - [0:0]",
		"-A " + forwardChain + " -i " + cluster.Bridge + " -j ACCEPT",
		"-A " + forwardChain + " -o " + cluster.Bridge + " -j ACCEPT",
		"COMMIT", "",
	}, "\n")
	cmd := exec.Command("iptables-restore", "--noflush", "-w")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("writing the host's rules: %w: %s", err, bytes.TrimSpace(out))
	}
	for _, jump := range jumps() {
		if iptables(jump.with("-C")...) != nil {
			if err := iptables(jump.with("-I")...); err != nil {
				return fmt.Errorf("writing the host's rules: %w", err)
			}
		}
	}
	return nil
}

// removeRules takes the host's rules away; what is not there is no error.
func removeRules() error {
	if _, err := exec.LookPath("iptables"); err != nil {
		return nil
	}
	var problems []error
	for _, jump := range jumps() {
		for iptables(jump.with("-C")...) == nil {
			if err := iptables(jump.with("-D")...); err != nil {
				problems = append(problems, err)
				break
			}
		}
		if iptables("-t", jump.table, "-S", jump.chain) != nil {
			continue
		}
		problems = append(problems, iptables("-t", jump.table, "-F", jump.chain), iptables("-t", jump.table, "-X", jump.chain))
	}
	return errors.Join(problems...)
}

type jump struct{ table, from, chain string }

func jumps() []jump {
	return []jump{{"nat", "POSTROUTING", natChain}, {"filter", "FORWARD", forwardChain}}
}

func (j jump) with(verb string) []string {
	return []string{"-t", j.table, verb, j.from, "-j", j.chain}
}

func iptables(args ...string) error {
	out, err := exec.Command("iptables", append([]string{"-w"}, args...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("iptables %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
