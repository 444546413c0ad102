package plugins_test

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
)

func TestPodSecurityHoldsPodsToTheirNamespacesStandard(t *testing.T) {
	state := newState()
	labelled := func(name string, labels map[string]string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	}
	state.Put(corev1.Resource("namespaces"), labelled("strict", map[string]string{"pod-security.kubernetes.io/enforce": "baseline", "pod-security.kubernetes.io/warn": "restricted"}))
	chain := only(t, state, "PodSecurity")
	pod := func(namespace string, privileged bool) *corev1.Pod {
		return newPod(func(p *corev1.Pod) {
			p.Namespace = namespace
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: new(privileged)}
		})
	}
	ctx, warnings := request.WithWarnings(t.Context())
	if err := run(ctx, chain, write(admission.Create, "pods", pod("blue", true), nil)); err != nil {
		t.Errorf("a namespace without labels: %v", err)
	}
	assertRefused(t, run(ctx, chain, write(admission.Create, "pods", pod("strict", true), nil)),
		`violates PodSecurity "baseline:latest": privileged (container "a" must not set securityContext.privileged=true)`)
	if err := run(ctx, chain, write(admission.Create, "pods", pod("strict", false), nil)); err != nil {
		t.Error(err)
	}
	if list := warnings.List(); len(list) == 0 || !strings.Contains(list[len(list)-1], `would violate PodSecurity "restricted:latest"`) {
		t.Errorf("warnings %v", list)
	}
	// A controller's pods are refused when they come; it is warned before.
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "strict", Name: "d"}, Spec: appsv1.DeploymentSpec{Template: corev1.PodTemplateSpec{Spec: pod("", true).Spec}}}
	if err := run(ctx, chain, write(admission.Create, "deployments.apps", deployment, nil)); err != nil {
		t.Error(err)
	}
	err := run(ctx, chain, write(admission.Create, "namespaces", labelled("wrong", map[string]string{"pod-security.kubernetes.io/enforce": "lax"}), nil))
	if !apierrors.IsInvalid(err) {
		t.Errorf("an unknown level: %v", err)
	}
}

func TestPodSecurityWarnsOfPodsThatAreThere(t *testing.T) {
	state := newState()
	state.Put(corev1.Resource("pods"), newPod(func(p *corev1.Pod) { p.Spec.HostNetwork = true }))
	old := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "blue"}}
	namespace := old.DeepCopy()
	namespace.Labels = map[string]string{"pod-security.kubernetes.io/enforce": "baseline"}
	ctx, warnings := request.WithWarnings(t.Context())
	if err := run(ctx, only(t, state, "PodSecurity"), write(admission.Update, "namespaces", namespace, old)); err != nil {
		t.Fatal(err)
	}
	if list := warnings.List(); len(list) != 2 || !strings.Contains(list[1], "host namespaces") {
		t.Errorf("warnings %q", list)
	}
}
