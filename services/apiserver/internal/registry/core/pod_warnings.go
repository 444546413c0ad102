package core

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
)

// warnOfPod warns on creation only: updates are many and not made by people.
func warnOfPod(_ context.Context, pod, old *corev1.Pod) []string {
	if old != nil {
		return nil
	}
	var warnings []string
	if msgs := utilvalidation.IsDNS1123Label(pod.Name); len(msgs) != 0 {
		warnings = append(warnings, fmt.Sprintf("metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: %v", msgs))
	}
	return append(warnings, podspec.Warnings(&pod.ObjectMeta, &pod.Spec, nil)...)
}
