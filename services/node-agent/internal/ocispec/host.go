package ocispec

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/sampan-io/sampan/services/node-agent/internal/cgroups"
)

// Host is what the machine and the agent's own rights allow.
type Host struct {
	UnifiedCgroups bool
	SwapAccounting bool
	AppArmor       bool
	// Capabilities are the agent's own; a container cannot have more.
	Capabilities []string
	// LowestOOMScore is the lowest oom_score_adj that the agent may set.
	LowestOOMScore int
	// Say is called with a sentence when a request had to be cut down to what the
	// host allows. It may be nil.
	Say func(string)
}

// DetectHost looks at the host. Each kind of cut is logged once.
func DetectHost(log *slog.Logger) (Host, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return Host{}, err
	}
	caps, err := parseCapabilities(string(status))
	if err != nil {
		return Host{}, err
	}
	hierarchy := cgroups.Detect()
	host := Host{
		UnifiedCgroups: hierarchy.Unified(),
		SwapAccounting: hierarchy.SwapAccounting(),
		AppArmor:       enabled("/sys/module/apparmor/parameters/enabled"),
		Capabilities:   caps,
		LowestOOMScore: -1000,
	}
	if !slices.Contains(caps, "CAP_SYS_RESOURCE") {
		if host.LowestOOMScore, err = ownOOMScore(); err != nil {
			return Host{}, err
		}
	}
	var said sync.Map
	host.Say = func(what string) {
		if _, before := said.LoadOrStore(what, true); !before {
			log.Warn("Containers get less than they ask for", "what", what)
		}
	}
	return host, nil
}

func parseCapabilities(status string) ([]string, error) {
	for line := range strings.Lines(status) {
		value, ok := strings.CutPrefix(line, "CapEff:")
		if !ok {
			continue
		}
		mask, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		if err != nil {
			return nil, fmt.Errorf("reading the agent's capabilities: %w", err)
		}
		var caps []string
		for number, name := range allCapabilities() {
			if mask&(1<<number) != 0 {
				caps = append(caps, name)
			}
		}
		return caps, nil
	}
	return nil, fmt.Errorf("reading the agent's capabilities: no CapEff in /proc/self/status")
}

func ownOOMScore() (int, error) {
	data, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(data)))
}

func enabled(path string) bool {
	data, err := os.ReadFile(path)
	return err == nil && strings.HasPrefix(string(data), "Y")
}

func (h Host) clampOOMScore(score int) int {
	if score >= h.LowestOOMScore {
		return score
	}
	h.say(fmt.Sprintf("oom_score_adj below %d", h.LowestOOMScore))
	return h.LowestOOMScore
}

func (h Host) clampCapabilities(wanted []string) []string {
	var granted, denied []string
	for _, name := range wanted {
		if slices.Contains(h.Capabilities, name) {
			granted = append(granted, name)
		} else {
			denied = append(denied, name)
		}
	}
	for _, name := range denied {
		h.say("capability " + name)
	}
	return granted
}

func (h Host) say(what string) {
	if h.Say != nil {
		h.Say(what)
	}
}
