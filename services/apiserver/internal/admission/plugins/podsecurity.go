package plugins

import (
	"context"
	"errors"
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	podsecurity "k8s.io/pod-security-admission/admission"
	admissionapi "k8s.io/pod-security-admission/admission/api"
	"k8s.io/pod-security-admission/admission/api/load"
	psapi "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/metrics"
	"k8s.io/pod-security-admission/policy"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
)

// podSecurity holds pods to the Pod Security Standard that their namespace's
// labels name (pod-security.kubernetes.io/enforce and its siblings). Namespaces
// without labels are privileged.
type podSecurity struct {
	plugin
	rules *podsecurity.Admission
}

func newPodSecurity(config Config) admission.Plugin {
	rules, err := newPodSecurityRules(config.State, config.Configurations.PodSecurity)
	if err != nil {
		panic("plugins: PodSecurity: " + err.Error()) // what was read was checked; defaults agree with each other
	}
	return &podSecurity{plugin{"PodSecurity", []admission.Operation{admission.Create, admission.Update}}, rules}
}

func newPodSecurityRules(reader registry.Reader, configuration *admissionapi.PodSecurityConfiguration) (*podsecurity.Admission, error) {
	if configuration == nil {
		var err error
		if configuration, err = load.LoadFromData(nil); err != nil {
			return nil, err
		}
	}
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		return nil, err
	}
	stored := storedPods{reader}
	rules := &podsecurity.Admission{
		Configuration: configuration, Evaluator: evaluator, Metrics: uncounted{}, PodSpecExtractor: podsecurity.DefaultPodSpecExtractor{},
		NamespaceGetter: stored, PodLister: stored,
	}
	if err := rules.CompleteConfiguration(); err != nil {
		return nil, err
	}
	return rules, rules.ValidateConfiguration()
}

// Validate implements admission.Validator.
func (p *podSecurity) Validate(ctx context.Context, a *admission.Attributes) error {
	resource := a.Resource.GroupResource()
	if resource != corev1.Resource("namespaces") && !p.rules.PodSpecExtractor.HasPodSpec(resource) {
		return nil
	}
	record := &psapi.AttributesRecord{
		Name: a.Name, Namespace: a.Namespace, Kind: a.Kind, Resource: a.Resource, Subresource: a.Subresource,
		Operation: admissionv1.Operation(a.Operation), Object: a.Object, OldObject: a.OldObject,
	}
	if a.User != nil {
		record.Username = a.User.Name
	}
	answer := p.rules.Validate(ctx, record)
	for _, warning := range answer.Warnings {
		request.AddWarning(ctx, warning)
	}
	if answer.Allowed {
		return nil
	}
	refusal := apierrors.NewForbidden(resource, a.Name, errors.New("Not allowed by PodSecurity")) //nolint:staticcheck // upstream's message
	if result := answer.Result; result != nil && result.Message != "" {
		refusal.ErrStatus.Message = result.Message
		if result.Reason != "" {
			refusal.ErrStatus.Reason, refusal.ErrStatus.Code = result.Reason, result.Code
		}
		if result.Details != nil {
			refusal.ErrStatus.Details = result.Details
		}
	}
	return refusal
}

// storedPods reads namespaces and pods for the rules.
type storedPods struct{ reader registry.Reader }

func (s storedPods) GetNamespace(ctx context.Context, name string) (*corev1.Namespace, error) {
	obj, err := s.reader.Get(ctx, corev1.Resource("namespaces"), "", name)
	return as[*corev1.Namespace](obj, err)
}

func (s storedPods) ListPods(ctx context.Context, namespace string) ([]*corev1.Pod, error) {
	return listOf[*corev1.Pod](ctx, s.reader, corev1.Resource("pods"), namespace)
}

func as[T runtime.Object](obj runtime.Object, err error) (T, error) {
	typed, ok := obj.(T)
	if err == nil && !ok {
		err = fmt.Errorf("unexpected type %T", obj)
	}
	return typed, err
}

// uncounted keeps no count of evaluations.
type uncounted struct{}

func (uncounted) RecordEvaluation(metrics.Decision, psapi.LevelVersion, metrics.Mode, psapi.Attributes) {
}
func (uncounted) RecordExemption(psapi.Attributes)   {}
func (uncounted) RecordError(bool, psapi.Attributes) {}

func readPodSecurity(c *Configurations, data []byte, _ string) error {
	configuration, err := load.LoadFromData(data)
	if err != nil {
		return err
	}
	if _, err := newPodSecurityRules(nil, configuration); err != nil {
		return err
	}
	c.PodSecurity = configuration
	return nil
}
