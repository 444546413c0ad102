package core

import (
	"context"
	"fmt"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// Nodes are stored under their old name, minions. proxying may be nil.
func Nodes(proxying Proxying) *registry.Resource {
	status := nodeBehaviour()
	status.PrepareForUpdate = func(_ context.Context, obj, old *corev1.Node) { obj.Spec = old.Spec }
	status.ResetFields = []string{"spec"}
	r := registry.Define(registry.Definition[*corev1.Node]{
		GroupVersion: v1, Resource: "nodes", Kind: "Node", Singular: "node", ShortNames: []string{"no"},
		New:       func() *corev1.Node { return &corev1.Node{} },
		NewList:   func() runtime.Object { return &corev1.NodeList{} },
		KeyPrefix: "/registry/minions",
		Fields: func(obj *corev1.Node) fields.Set {
			return fields.Set{"spec.unschedulable": fmt.Sprint(obj.Spec.Unschedulable)}
		},
		Strategy: nodeBehaviour(),
		Columns:  nodeColumns(),
		Row:      nodeRow,
		Subresources: []registry.Subresource{
			{Name: "status", Verbs: readWrite(), Update: registry.Erase(status)},
		},
	})
	if proxying != nil {
		proxy := proxySubresource("NodeProxyOptions", func() runtime.Object { return &corev1.NodeProxyOptions{} }, proxying.NodeProxy)
		r.Subresources = append([]registry.Subresource{proxy}, r.Subresources...)
	}
	return r
}

func nodeBehaviour() registry.Behaviour[*corev1.Node] {
	return registry.Behaviour[*corev1.Node]{
		Default: defaultNode,
		PrepareForCreate: func(_ context.Context, obj *corev1.Node) {
			dropConfigSource(obj, nil)
		},
		PrepareForUpdate: func(_ context.Context, obj, old *corev1.Node) {
			obj.Status = old.Status
			dropConfigSource(obj, old)
		},
		Validate:       func(_ context.Context, obj *corev1.Node) field.ErrorList { return validateNode(obj) },
		ValidateUpdate: validateNodeUpdate,
		Warnings:       warnOfNode,
		ResetFields:    []string{"status"},
	}
}

// dropConfigSource drops the configuration source, which has no effect any
// more, unless the node has had it.
func dropConfigSource(obj, old *corev1.Node) {
	if old == nil || old.Spec.ConfigSource == nil {
		obj.Spec.ConfigSource = nil
	}
	if old == nil || old.Status.Config == nil {
		obj.Status.Config = nil
	}
}

func defaultNode(obj *corev1.Node) {
	podspec.RoundQuantities(obj.Status.Capacity)
	if obj.Status.Allocatable == nil && obj.Status.Capacity != nil {
		obj.Status.Allocatable = obj.Status.Capacity.DeepCopy()
	}
	podspec.RoundQuantities(obj.Status.Allocatable)
	// podCIDR is the first of podCIDRs.
	if obj.Spec.PodCIDR != "" && len(obj.Spec.PodCIDRs) == 0 {
		obj.Spec.PodCIDRs = []string{obj.Spec.PodCIDR}
	}
}

func nodeColumns() []metav1.TableColumnDefinition {
	info, status := corev1.NodeSystemInfo{}.SwaggerDoc(), corev1.NodeStatus{}.SwaggerDoc()
	return []metav1.TableColumnDefinition{
		table.Name(),
		table.String("Status", "The status of the node"),
		table.String("Roles", "The roles of the node"),
		table.Age(),
		table.String("Version", info["kubeletVersion"]),
		table.Wide(table.String("Internal-IP", status["addresses"])),
		table.Wide(table.String("External-IP", status["addresses"])),
		table.Wide(table.String("OS-Image", info["osImage"])),
		table.Wide(table.String("Kernel-Version", info["kernelVersion"])),
		table.Wide(table.String("Container-Runtime", info["containerRuntimeVersion"])),
	}
}

func nodeRow(obj *corev1.Node) []any {
	info := obj.Status.NodeInfo
	return []any{
		obj.Name, nodeStatus(obj), nodeRoles(obj), table.Since(obj.CreationTimestamp), info.KubeletVersion,
		nodeAddress(obj, corev1.NodeInternalIP), nodeAddress(obj, corev1.NodeExternalIP),
		orUnknown(info.OSImage), orUnknown(info.KernelVersion), orUnknown(info.ContainerRuntimeVersion),
	}
}

func orUnknown(s string) string {
	if s == "" {
		return "<unknown>"
	}
	return s
}

func nodeStatus(obj *corev1.Node) string {
	var parts []string
	for _, condition := range obj.Status.Conditions {
		if condition.Type != corev1.NodeReady {
			continue
		}
		if condition.Status == corev1.ConditionTrue {
			parts = []string{string(condition.Type)}
		} else {
			parts = []string{"Not" + string(condition.Type)}
		}
	}
	if len(parts) == 0 {
		parts = []string{"Unknown"}
	}
	if obj.Spec.Unschedulable {
		parts = append(parts, "SchedulingDisabled")
	}
	return strings.Join(parts, ",")
}

// nodeRoles reads both ways in which labels name a node's roles.
func nodeRoles(obj *corev1.Node) string {
	const prefix, single = "node-role.kubernetes.io/", "kubernetes.io/role"
	set := map[string]bool{}
	for key, value := range obj.Labels {
		if role, ok := strings.CutPrefix(key, prefix); ok && role != "" {
			set[role] = true
		} else if key == single && value != "" {
			set[value] = true
		}
	}
	roles := make([]string, 0, len(set))
	for role := range set {
		roles = append(roles, role)
	}
	sort.Strings(roles)
	return table.OrNone(strings.Join(roles, ","))
}

func nodeAddress(obj *corev1.Node, kind corev1.NodeAddressType) string {
	for _, address := range obj.Status.Addresses {
		if address.Type == kind {
			return address.Address
		}
	}
	return table.None
}
