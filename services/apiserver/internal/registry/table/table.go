// Package table has what the kinds' printed columns have in common: column
// definitions and the formats of their cells.
package table

import (
	"fmt"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// None is what a cell without a value shows.
const None = "<none>"

// Name is the column of the object's name, always the first but for events.
func Name() metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{
		Name: "Name", Type: "string", Format: "name", Description: metav1.ObjectMeta{}.SwaggerDoc()["name"],
	}
}

// Age is the column of the time since creation.
func Age() metav1.TableColumnDefinition {
	return String("Age", metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"])
}

// String is a column of text.
func String(name, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: "string", Description: description}
}

// Integer is a column of int64 cells.
func Integer(name, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: "integer", Description: description}
}

// Boolean is a column of bool cells.
func Boolean(name, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: "boolean", Description: description}
}

// Wide is a column that only -o wide shows.
func Wide(c metav1.TableColumnDefinition) metav1.TableColumnDefinition {
	c.Priority = 1
	return c
}

// OrNone is s, or <none> when it is empty.
func OrNone(s string) string {
	if s == "" {
		return None
	}
	return s
}

// Labels are labels as a sorted list of key=value, or <none>.
func Labels(labels map[string]string) string {
	if len(labels) == 0 {
		return None
	}
	pairs := make([]string, 0, len(labels))
	for key, value := range labels {
		pairs = append(pairs, key+"="+value)
	}
	sort.Strings(pairs)
	return strings.Join(pairs, ",")
}

// Selector is a label selector in its string form; an empty one shows <none>,
// and one that cannot be parsed <error>.
func Selector(selector *metav1.LabelSelector) string { return metav1.FormatLabelSelector(selector) }

// Containers are the names and the images of containers, each joined by commas.
func Containers(containers []corev1.Container) (names, images string) {
	n := make([]string, 0, len(containers))
	i := make([]string, 0, len(containers))
	for k := range containers {
		n = append(n, containers[k].Name)
		i = append(i, containers[k].Image)
	}
	return strings.Join(n, ","), strings.Join(i, ",")
}

// ContainerColumns are the two wide columns of Containers.
func ContainerColumns() []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		Wide(String("Containers", "Names of each container in the template.")),
		Wide(String("Images", "Images referenced by each container in the template.")),
	}
}

// Fraction is "part/whole".
func Fraction(part, whole int32) string { return fmt.Sprintf("%d/%d", part, whole) }

// Value is what p points to, or the zero value.
func Value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}
