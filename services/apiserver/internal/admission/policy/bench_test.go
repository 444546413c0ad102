package policy_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/admission/expression"
	"github.com/sampan-io/sampan/services/apiserver/internal/admission/intercept"
	"github.com/sampan-io/sampan/services/apiserver/internal/admission/policy"
	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/apiserver/internal/authz"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/statetest"
)

// configured is a fixed configuration.
type configured struct{ *statetest.State }

func (configured) Changed(schema.GroupResource) int64 { return 1 }

// noKinds serves nothing.
type noKinds struct{}

func (noKinds) Kind(schema.GroupVersionKind) (policy.Kind, bool) { return nil, false }
func (noKinds) Equivalents(schema.GroupVersionResource, string) []intercept.Target {
	return nil
}
func (noKinds) Convert(_ context.Context, obj runtime.Object, _, _ schema.GroupVersionResource) (runtime.Object, error) {
	return obj, nil
}

func BenchmarkHundredPolicies(b *testing.B) {
	state := configured{statetest.New()}
	state.Put(corev1.Resource("namespaces"), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	for i := range 100 {
		parts := strings.Split(validating(fmt.Sprintf("p%d", i), fmt.Sprintf(`  validations:
  - {expression: "!has(object.metadata.labels) || object.metadata.labels.size() < %d"}
  - {expression: "object.data.all(k, k.size() < 64)"}`, i+5)), "\n---\n")
		p := decode[struct {
			metav1.TypeMeta
			admissionregistrationv1.ValidatingAdmissionPolicy
		}](b, parts[0]).ValidatingAdmissionPolicy
		p.UID = types.UID(p.Name)
		state.Put(schema.GroupResource{Group: "admissionregistration.k8s.io", Resource: "validatingadmissionpolicies"}, &p)
		binding := decode[admissionregistrationv1.ValidatingAdmissionPolicyBinding](b, parts[1])
		state.Put(schema.GroupResource{Group: "admissionregistration.k8s.io", Resource: "validatingadmissionpolicybindings"}, binding)
	}
	plugin := policy.NewValidating(policy.Config{
		Configuration: state, Source: intercept.Source{Reader: state, Kinds: noKinds{}, Authorizer: authz.Union{}},
		Environments: expression.NewEnvironments(), Kinds: noKinds{}, Metrics: policy.NewMetrics(intercept.NewConditionMetrics()),
	})
	cm := &corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "default"}, Data: map[string]string{"key": "value"},
	}
	run := func() error {
		return plugin.Validate(context.Background(), &admission.Attributes{
			Operation: admission.Create, Kind: corev1.SchemeGroupVersion.WithKind("ConfigMap"), Resource: corev1.SchemeGroupVersion.WithResource("configmaps"),
			Namespace: "default", Name: "a", Object: cm, User: &authn.User{Name: "jane"}, Options: &metav1.CreateOptions{},
		})
	}
	if err := run(); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := run(); err != nil {
			b.Fatal(err)
		}
	}
}
