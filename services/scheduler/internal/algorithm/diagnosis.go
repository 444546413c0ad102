package algorithm

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/sampan-io/sampan/services/scheduler/internal/cluster"
	"github.com/sampan-io/sampan/services/scheduler/internal/framework"
)

// Diagnosis is why a pod found no node.
type Diagnosis struct {
	Total    int // nodes
	Verdicts framework.Verdicts
	Refusers sets.Set[string] // plugins that refused the pod or a node
	// PreFilter is why the pod was refused altogether; empty when it was not.
	PreFilter string
	// PostFilter is what trying to make room came to.
	PostFilter string

	last string // plugin noted last
}

func (d *Diagnosis) refuse(node *cluster.Node, status *framework.Status) {
	d.Verdicts.Refuse(node, status)
	if status.Plugin != d.last { // most often the one before
		d.last = status.Plugin
		d.refusedBy(status.Plugin)
	}
}

func (d *Diagnosis) refusedBy(plugin string) {
	if d.Refusers == nil {
		d.Refusers = sets.New[string]()
	}
	d.Refusers.Insert(plugin)
}

// refuseAll notes a refusal of the pod on every node.
func (d *Diagnosis) refuseAll(status *framework.Status) {
	d.PreFilter = status.Message()
	d.Verdicts.Rest = status
	d.refusedBy(status.Plugin)
}

func restReason(by []string) string {
	return fmt.Sprintf("node(s) didn't satisfy plugin(s) %v", by)
}

// FitError is that no node can take a pod. Its text is what upstream's scheduler
// writes: how many nodes, and how many of them for each reason.
type FitError struct {
	Pod       *corev1.Pod
	Diagnosis Diagnosis

	none bool // there are no nodes
}

func (e *FitError) Error() string {
	if e.none {
		return "no nodes available to schedule pods"
	}
	d := &e.Diagnosis
	text := fmt.Sprintf("0/%d nodes are available", d.Total)
	if reasons := d.reasons(); reasons != "" {
		text += ": " + reasons + "."
	}
	if d.PostFilter != "" {
		text += " " + d.PostFilter
	}
	return text
}

// reasons is each reason with the number of nodes that it holds for, sorted as
// text.
func (d *Diagnosis) reasons() string {
	if d.PreFilter != "" {
		return d.PreFilter
	}
	numbers := map[string]int{}
	d.Verdicts.Each(func(status *framework.Status) {
		for _, reason := range status.Reasons {
			numbers[reason]++
		}
	})
	if rest := d.Total - d.Verdicts.Len(); rest > 0 && d.Verdicts.Rest != nil {
		for _, reason := range d.Verdicts.Rest.Reasons {
			numbers[reason] += rest
		}
	}
	lines := make([]string, 0, len(numbers))
	for reason, number := range numbers {
		lines = append(lines, fmt.Sprintf("%d %s", number, reason))
	}
	slices.Sort(lines)
	return strings.Join(lines, ", ")
}
