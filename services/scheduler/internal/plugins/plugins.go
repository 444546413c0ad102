// Package plugins has the scheduler's plugins, one a file, under upstream's names
// and with upstream's formulas and messages.
package plugins

import (
	"encoding/json"
	"fmt"

	"sigs.k8s.io/yaml"

	"github.com/sampan-io/sampan/services/scheduler/internal/framework"
)

// Definition is how a plugin is made.
type Definition struct {
	Name string
	// Weight of its scores in the default profile; 0 for one that does not score.
	Weight int32
	// New makes the plugin with args, which are empty for the defaults. Arguments
	// that are not supported are refused by name.
	New func(args []byte, handle framework.Handle) (framework.Plugin, error)
}

// All is every plugin, in the order of the default profile. A new one is a file
// here and a line below.
func All() []Definition {
	return []Definition{
		{"SchedulingGates", 0, newSchedulingGates},
		{"PrioritySort", 0, newPrioritySort},
		{"NodeUnschedulable", 0, newNodeUnschedulable},
		{"NodeName", 0, newNodeName},
		{"TaintToleration", 3, newTaintToleration},
		{"NodeAffinity", 2, newNodeAffinity},
		{"NodePorts", 0, newNodePorts},
		{"NodeResourcesFit", 1, newNodeResourcesFit},
		{"VolumeRestrictions", 0, newVolumeRestrictions},
		{"NodeVolumeLimits", 0, newNodeVolumeLimits},
		{"VolumeBinding", 0, newVolumeBinding},
		{"PodTopologySpread", 2, newPodTopologySpread},
		{"InterPodAffinity", 2, newInterPodAffinity},
		{"DefaultPreemption", 0, newDefaultPreemption},
		{"NodeResourcesBalancedAllocation", 1, newNodeResourcesBalancedAllocation},
		{"ImageLocality", 1, newImageLocality},
		{"DefaultBinder", 0, newDefaultBinder},
	}
}

// decode reads args into a struct of the fields that are supported, and names one
// that is not.
func decode(plugin string, args []byte, into any) error {
	if len(args) == 0 {
		return nil
	}
	var fields map[string]json.RawMessage
	if err := yaml.Unmarshal(args, &fields); err != nil {
		return fmt.Errorf("arguments of %s: %w", plugin, err)
	}
	delete(fields, "apiVersion")
	delete(fields, "kind")
	rest, err := json.Marshal(fields)
	if err != nil {
		return fmt.Errorf("arguments of %s: %w", plugin, err)
	}
	if err := yaml.UnmarshalStrict(rest, into); err != nil {
		return fmt.Errorf("arguments of %s: %w", plugin, err)
	}
	return nil
}

// none refuses any argument.
func none(plugin string, args []byte) error { return decode(plugin, args, &struct{}{}) }

// refusal is an answer that a plugin gives for many nodes: made once, never changed.
func refusal(plugin string, code framework.Code, reason string) *framework.Status {
	return &framework.Status{Code: code, Reasons: []string{reason}, Plugin: plugin}
}
