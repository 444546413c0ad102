package core

import (
	"context"
	"net/http"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
)

// PodDeps are what pods need of the rest of the server.
type PodDeps struct {
	State     func() registry.State // called when a request needs it
	Streaming Streaming             // nil leaves exec, attach, log and portforward out
	Proxying  Proxying              // nil leaves proxy out
}

// Pods are groups of containers on one node.
func Pods(d PodDeps) *registry.Resource {
	r := registry.Define(registry.Definition[*corev1.Pod]{
		GroupVersion: v1, Resource: "pods", Kind: "Pod", Singular: "pod", ShortNames: []string{"po"},
		Categories: []string{"all"}, Namespaced: true,
		New:           func() *corev1.Pod { return &corev1.Pod{} },
		NewList:       func() runtime.Object { return &corev1.PodList{} },
		KeyPrefix:     "/registry/pods",
		Fields:        podFields,
		Indexed:       []string{"spec.nodeName"},
		Strategy:      podBehaviour(),
		Columns:       podColumns(),
		Row:           podRow,
		RowConditions: podRowConditions,
	})
	r.Subresources = podSubresources(d)
	return r
}

func podFields(pod *corev1.Pod) fields.Set {
	ip := pod.Status.PodIP
	if ip == "" && len(pod.Status.PodIPs) > 0 {
		ip = pod.Status.PodIPs[0].IP
	}
	return fields.Set{
		"spec.nodeName":            pod.Spec.NodeName,
		"spec.restartPolicy":       string(pod.Spec.RestartPolicy),
		"spec.schedulerName":       pod.Spec.SchedulerName,
		"spec.serviceAccountName":  pod.Spec.ServiceAccountName,
		"spec.hostNetwork":         strconv.FormatBool(pod.Spec.HostNetwork),
		"status.phase":             string(pod.Status.Phase),
		"status.podIP":             ip,
		"status.nominatedNodeName": pod.Status.NominatedNodeName,
	}
}

func podSubresources(d PodDeps) []registry.Subresource {
	list := []registry.Subresource{
		podBinding(d.State),
		{Name: "ephemeralcontainers", Verbs: readWrite(), Update: registry.Erase(ephemeralContainersBehaviour())},
		podEviction(d.State),
		{Name: "resize", Verbs: readWrite(), Update: registry.Erase(resizeBehaviour())},
		{Name: "status", Verbs: readWrite(), Update: registry.Erase(podStatusBehaviour())},
	}
	if s := d.Streaming; s != nil {
		list = append(list,
			podStream("attach", "PodAttachOptions", func() runtime.Object { return &corev1.PodAttachOptions{} }, s.Attach),
			podStream("exec", "PodExecOptions", func() runtime.Object { return &corev1.PodExecOptions{} }, s.Exec),
			podStream("portforward", "PodPortForwardOptions", func() runtime.Object { return &corev1.PodPortForwardOptions{} }, s.PortForward),
			podLog(s),
		)
	}
	if d.Proxying != nil {
		list = append(list, proxySubresource("PodProxyOptions", func() runtime.Object { return &corev1.PodProxyOptions{} }, d.Proxying.PodProxy))
	}
	return list
}

func podStream(name, kind string, options func() runtime.Object, handler func(context.Context, string, string, string, runtime.Object) (http.Handler, error)) registry.Subresource {
	return registry.Subresource{
		Name: name, Kind: v1.WithKind(kind), Verbs: []string{"create", "get"},
		Connect: &registry.Connect{
			NewOptions: options, Methods: []string{http.MethodGet, http.MethodPost}, Handler: handler,
			Long: func(runtime.Object) bool { return true },
		},
	}
}

// podLog is a plain read; its options decide whether it follows.
func podLog(s Streaming) registry.Subresource {
	return registry.Subresource{
		Name: "log", Verbs: []string{"get"}, // discovery names the kind Pod
		Connect: &registry.Connect{
			NewOptions: func() runtime.Object { return &corev1.PodLogOptions{} },
			Methods:    []string{http.MethodGet},
			Handler:    s.Log,
			Long: func(options runtime.Object) bool {
				o, ok := options.(*corev1.PodLogOptions)
				return ok && o.Follow
			},
		},
	}
}

func podBehaviour() registry.Behaviour[*corev1.Pod] {
	return registry.Behaviour[*corev1.Pod]{
		Default:          podspec.DefaultPod,
		PrepareForCreate: preparePod,
		PrepareForUpdate: func(_ context.Context, pod, old *corev1.Pod) {
			pod.Status = old.Status
			podspec.DropDisabled(&pod.Spec, &old.Spec)
		},
		Validate: func(_ context.Context, pod *corev1.Pod) field.ErrorList {
			return podspec.ValidatePod(pod)
		},
		ValidateUpdate: func(_ context.Context, pod, old *corev1.Pod) field.ErrorList {
			return podspec.ValidatePodUpdate(pod, old)
		},
		Warnings:    warnOfPod,
		SpecOf:      func(pod *corev1.Pod) any { return &pod.Spec },
		GracePeriod: podGracePeriod,
		ResetFields: []string{"status"},
	}
}

// preparePod starts a pod's status, and writes label keys of affinity and
// spread terms into their selectors.
func preparePod(ctx context.Context, pod *corev1.Pod) {
	podspec.DropDisabled(&pod.Spec, nil)
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending, QOSClass: podspec.QOS(&pod.Spec)}
	if len(pod.Spec.SchedulingGates) > 0 {
		pod.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonSchedulingGated,
			Message: "Scheduling is blocked due to non-empty scheduling gates", LastTransitionTime: metav1.Now(),
		}}
	}
	podspec.MergeLabelKeys(pod)
	for _, warning := range podspec.SyncAppArmor(pod) {
		request.AddWarning(ctx, warning)
	}
}

// podGracePeriod waits as long as the client or the pod says, and not at all
// for a pod that runs nowhere or has ended.
func podGracePeriod(_ context.Context, pod *corev1.Pod, options *metav1.DeleteOptions) int64 {
	var seconds int64
	switch {
	case options != nil && options.GracePeriodSeconds != nil:
		seconds = *options.GracePeriodSeconds
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		seconds = *pod.Spec.TerminationGracePeriodSeconds
	}
	if pod.Spec.NodeName == "" || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return 0
	}
	if seconds < 0 {
		return 1
	}
	return seconds
}
