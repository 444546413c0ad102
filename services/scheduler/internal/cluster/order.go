package cluster

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// zone is the region and zone of node as one key.
func zone(node *Node) string {
	if node == nil || node.Object == nil {
		return ""
	}
	return node.Object.Labels[corev1.LabelTopologyRegion] + "\x00" + node.Object.Labels[corev1.LabelTopologyZone]
}

// interleave takes a node from each zone in turn, zones and nodes by name.
func interleave(nodes map[string]*Node) []*Node {
	zones := map[string][]*Node{}
	total := 0
	for _, node := range nodes {
		if node.Object != nil {
			zones[zone(node)] = append(zones[zone(node)], node)
			total++
		}
	}
	keys := slices.Sorted(maps.Keys(zones))
	for _, members := range zones {
		slices.SortFunc(members, func(a, b *Node) int { return cmp.Compare(a.Name, b.Name) })
	}
	ordered := make([]*Node, 0, total)
	for round := 0; len(ordered) < total; round++ {
		for _, key := range keys {
			if round < len(zones[key]) {
				ordered = append(ordered, zones[key][round])
			}
		}
	}
	return ordered
}
