package intercept_test

import (
	"context"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/admission/intercept"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/statetest"
)

// kinds has one resource in two versions.
type kinds struct{}

func (kinds) Equivalents(resource schema.GroupVersionResource, _ string) []intercept.Target {
	if resource.Group != "autoscaling" || resource.Version != "v2" {
		return nil
	}
	v1 := schema.GroupVersion{Group: "autoscaling", Version: "v1"}
	return []intercept.Target{{Resource: v1.WithResource(resource.Resource), Kind: v1.WithKind("HorizontalPodAutoscaler")}}
}

func (kinds) Convert(_ context.Context, obj runtime.Object, _, _ schema.GroupVersionResource) (runtime.Object, error) {
	return obj, nil
}

func write(operation admission.Operation, group, version, resource, subresource, namespace string) *admission.Attributes {
	return &admission.Attributes{
		Operation: operation, Resource: schema.GroupVersionResource{Group: group, Version: version, Resource: resource}, Subresource: subresource,
		Namespace: namespace, Name: "web",
	}
}

func TestCriteria(t *testing.T) {
	pod := write(admission.Create, "", "v1", "pods", "", "default")
	namespace := write(admission.Create, "", "v1", "namespaces", "", "web")
	node := write(admission.Update, "", "v1", "nodes", "status", "")
	scaler := write(admission.Create, "autoscaling", "v2", "horizontalpodautoscalers", "", "default")
	labelled := func(a *admission.Attributes, labels map[string]string) *admission.Attributes {
		copied := *a
		copied.Object = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: labels}}
		return &copied
	}
	const any = "operations: ['*'], apiGroups: ['*'], apiVersions: ['*'], resources: "
	cases := []struct {
		name, match string
		write       *admission.Attributes
		want        bool
	}{
		{"everything", "resourceRules: [{" + any + "['*/*']}]", node, true},
		{"all resources are no subresources", "resourceRules: [{" + any + "['*']}]", node, false},
		{"all subresources of one", "resourceRules: [{" + any + "['nodes/*']}]", node, true},
		{"one subresource of all", "resourceRules: [{" + any + "['*/status']}]", node, true},
		{"another subresource", "resourceRules: [{" + any + "['nodes/proxy']}]", node, false},
		{"another operation", "resourceRules: [{operations: [CREATE], apiGroups: [''], apiVersions: [v1], resources: [nodes/status]}]", node, false},
		{"another group", "resourceRules: [{operations: ['*'], apiGroups: [apps], apiVersions: [v1], resources: [pods]}]", pod, false},
		{"namespaced", "resourceRules: [{" + any + "['*'], scope: Namespaced}]", pod, true},
		{"namespaces are of the cluster", "resourceRules: [{" + any + "['*'], scope: Namespaced}]", namespace, false},
		{"of the cluster", "resourceRules: [{" + any + "['*'], scope: Cluster}]", namespace, true},
		{"by name", "resourceRules: [{" + any + "[pods], resourceNames: [api, web]}]", pod, true},
		{"another name", "resourceRules: [{" + any + "[pods], resourceNames: [api]}]", pod, false},
		{"excluded", "resourceRules: [{" + any + "['*']}]\nexcludeResourceRules: [{" + any + "[pods]}]", pod, false},
		{"no rules", "{}", pod, true},
		{"namespace's labels", "namespaceSelector: {matchLabels: {team: a}}", pod, true},
		{"other labels of the namespace", "namespaceSelector: {matchLabels: {team: b}}", pod, false},
		{"a resource of the cluster is in no namespace", "namespaceSelector: {matchLabels: {team: b}}", node, true},
		{"object's labels", "objectSelector: {matchLabels: {a: b}}", labelled(pod, map[string]string{"a": "b"}), true},
		{"other labels of the object", "objectSelector: {matchLabels: {a: b}}", labelled(pod, nil), false},
		{"no object", "objectSelector: {matchLabels: {a: b}}", pod, false},
		{"a new namespace's own labels", "namespaceSelector: {matchLabels: {a: b}}", labelled(namespace, map[string]string{"a": "b"}), true},
		{"equivalent", "matchPolicy: Equivalent\nresourceRules: [{operations: ['*'], apiGroups: [autoscaling], apiVersions: [v1], resources: ['*']}]", scaler, true},
		{"exact", "matchPolicy: Exact\nresourceRules: [{operations: ['*'], apiGroups: [autoscaling], apiVersions: [v1], resources: ['*']}]", scaler, false},
	}
	state := statetest.New()
	state.Put(corev1.Resource("namespaces"), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{"team": "a"}}})
	source := intercept.Source{Reader: state, Kinds: kinds{}}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var match admissionregistrationv1.MatchResources
			if err := yaml.UnmarshalStrict([]byte(c.match), &match); err != nil {
				t.Fatal(err)
			}
			criteria, err := intercept.NewCriteria(&match)
			if err != nil {
				t.Fatal(err)
			}
			_, got, err := source.Request(c.write).Match(context.Background(), criteria)
			if err != nil || got != c.want {
				t.Errorf("matches %t, %v; want %t", got, err, c.want)
			}
		})
	}
}

func TestUnknownNamespaceIsAnErrorOnlyForWhatMatches(t *testing.T) {
	source := intercept.Source{Reader: statetest.New(), Kinds: kinds{}}
	rules := func(resource string) admissionregistrationv1.MatchResources {
		return admissionregistrationv1.MatchResources{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
			ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
				Operations: []admissionregistrationv1.OperationType{"*"},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{resource}},
			}}},
		}
	}
	for resource, fails := range map[string]bool{"pods": true, "secrets": false} {
		match := rules(resource)
		criteria, err := intercept.NewCriteria(&match)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok, err := source.Request(write(admission.Create, "", "v1", "pods", "", "gone")).Match(t.Context(), criteria); ok || (err != nil) != fails {
			t.Errorf("%s: %t, %v", resource, ok, err)
		}
	}
}
