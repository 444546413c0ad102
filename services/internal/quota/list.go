package quota

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func number(n int64) resource.Quantity { return *resource.NewQuantity(n, resource.DecimalSI) }

// Add is the sum of two lists.
func Add(a, b corev1.ResourceList) corev1.ResourceList {
	sum := corev1.ResourceList{}
	for name, value := range a {
		sum[name] = value.DeepCopy()
	}
	for name, value := range b {
		total := value.DeepCopy()
		if have, ok := sum[name]; ok {
			total = have
			total.Add(value)
		}
		sum[name] = total
	}
	return sum
}

// Growth is by how much after exceeds before, without what shrinks or stays.
func Growth(before, after corev1.ResourceList) corev1.ResourceList {
	growth := corev1.ResourceList{}
	for name, value := range after {
		more := value.DeepCopy()
		more.Sub(before[name])
		if more.Sign() > 0 {
			growth[name] = more
		}
	}
	return growth
}

// Only is the part of a list with the names of another.
func Only(list, names corev1.ResourceList) corev1.ResourceList {
	part := corev1.ResourceList{}
	for name, value := range list {
		if _, ok := names[name]; ok {
			part[name] = value
		}
	}
	return part
}

// Exceeded is the part of used that is more than hard allows; what hard does not
// name is unbounded.
func Exceeded(used, hard corev1.ResourceList) corev1.ResourceList {
	over := corev1.ResourceList{}
	for name, value := range used {
		if bound, ok := hard[name]; ok && value.Cmp(bound) > 0 {
			over[name] = value
		}
	}
	return over
}

// Equal says whether two lists have the same names with the same amounts.
func Equal(a, b corev1.ResourceList) bool {
	return maps.EqualFunc(a, b, func(x, y resource.Quantity) bool { return x.Cmp(y) == 0 })
}

// Format is a list for messages: "cpu=1,pods=2".
func Format(list corev1.ResourceList) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(list)) {
		value := list[name]
		parts = append(parts, fmt.Sprintf("%s=%s", name, value.String()))
	}
	return strings.Join(parts, ",")
}

// FormatNames is names for messages: "cpu,pods".
func FormatNames(names []corev1.ResourceName) string {
	var parts []string
	for _, name := range slices.Sorted(slices.Values(names)) {
		parts = append(parts, string(name))
	}
	return strings.Join(parts, ",")
}
