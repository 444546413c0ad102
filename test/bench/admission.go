package main

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// policyCount is how many policies a request passes.
const policyCount = 100

// benchAdmission measures what two webhooks on loopback, a mutating and a
// validating one, and 100 validating policies add to the creation of a ConfigMap.
// The webhooks are reached under the host's own address.
func benchAdmission(ctx context.Context, b *bench) error {
	hooks := httptest.NewTLSServer(http.HandlerFunc(allow))
	defer hooks.Close()
	metrics, err := ownConnection(b.config)
	if err != nil {
		return err
	}
	defer metrics.CloseIdleConnections()
	creations := func(how string) (latencies []time.Duration, err error) {
		count := 2200 / b.scale // those that warm up included
		err = b.withServerCPU(ctx, metrics, how, count, func(int) error {
			latencies, err = b.creations(ctx, how)
			return err
		})
		return latencies, err
	}
	plain, err := creations("without webhooks and policies")
	if err != nil {
		return err
	}
	cases := []struct {
		name    string
		set     func(context.Context, *httptest.Server) error
		clear   func(context.Context)
		measure string
	}{
		{"webhooks", b.configureWebhooks, b.removeWebhooks, "through two webhooks on loopback"},
		{"policies", b.configurePolicies, b.removePolicies, fmt.Sprintf("through %d policies", policyCount)},
	}
	for _, c := range cases {
		if err := c.set(ctx, hooks); err != nil {
			c.clear(context.WithoutCancel(ctx))
			return err
		}
		latencies, err := creations(c.measure)
		c.clear(context.WithoutCancel(ctx))
		if err != nil {
			return err
		}
		fmt.Printf("%s add p50 %s\n", c.name, (median(latencies) - median(plain)).Round(time.Microsecond))
	}
	return nil
}

func median(latencies []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(latencies))
	return sorted[len(sorted)/2]
}

// creations creates ConfigMaps one after the other, after a warm-up.
func (b *bench) creations(ctx context.Context, how string) ([]time.Duration, error) {
	client, err := ownConnection(b.config)
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	count, warm := 2000/b.scale, 200/b.scale
	stamp := time.Now().UnixNano()
	var latencies []time.Duration
	var began time.Time
	var cpu time.Duration
	for i := range warm + count {
		if i == warm {
			began, cpu = time.Now(), cpuTime()
		}
		body := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a%d-%d"},"data":{"key":"value"}}`, stamp, i)
		start := time.Now()
		if err := post(ctx, client, b.config.Host+"/api/v1/namespaces/"+b.namespace+"/configmaps", body); err != nil {
			return nil, err
		}
		if i >= warm {
			latencies = append(latencies, time.Since(start))
		}
	}
	report("create small ConfigMap, "+how, count, time.Since(began), cpuTime()-cpu, latencies)
	return latencies, nil
}

// allow admits every request.
func allow(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var review admissionv1.AdmissionReview
	if err == nil {
		err = json.Unmarshal(body, &review)
	}
	if err != nil || review.Request == nil {
		http.Error(w, "no review", http.StatusBadRequest)
		return
	}
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	review.Request = nil
	_ = json.NewEncoder(w).Encode(review)
}

func (b *bench) configureWebhooks(ctx context.Context, hooks *httptest.Server) error {
	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hooks.Certificate().Raw})
	url, none := hooks.URL, admissionregistrationv1.SideEffectClassNone
	client := admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: bundle}
	rules := []admissionregistrationv1.RuleWithOperations{{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
	}}
	meta := metav1.ObjectMeta{Name: b.namespace}
	r := b.client.AdmissionregistrationV1()
	if _, err := r.MutatingWebhookConfigurations().Create(ctx, &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: meta, Webhooks: []admissionregistrationv1.MutatingWebhook{
		{Name: "mutating.bench.example.com", ClientConfig: client, Rules: rules, SideEffects: &none, AdmissionReviewVersions: []string{"v1"}},
	}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err := r.ValidatingWebhookConfigurations().Create(ctx, &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: meta, Webhooks: []admissionregistrationv1.ValidatingWebhook{
		{Name: "validating.bench.example.com", ClientConfig: client, Rules: rules, SideEffects: &none, AdmissionReviewVersions: []string{"v1"}},
	}}, metav1.CreateOptions{})
	return err
}

func (b *bench) removeWebhooks(ctx context.Context) {
	r := b.client.AdmissionregistrationV1()
	_ = r.MutatingWebhookConfigurations().Delete(ctx, b.namespace, metav1.DeleteOptions{})
	_ = r.ValidatingWebhookConfigurations().Delete(ctx, b.namespace, metav1.DeleteOptions{})
}

func (b *bench) configurePolicies(ctx context.Context, _ *httptest.Server) error {
	r := b.client.AdmissionregistrationV1()
	for i := range policyCount {
		meta := metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", b.namespace, i), Labels: map[string]string{"bench": b.namespace}}
		policy := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: meta, Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionregistrationv1.RuleWithOperations{
					Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
					Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
				},
			}}},
			Validations: []admissionregistrationv1.Validation{
				{Expression: fmt.Sprintf("!has(object.metadata.labels) || object.metadata.labels.size() < %d", i+5)},
				{Expression: "object.data.all(k, k.size() < 64)"},
			},
		}}
		if _, err := r.ValidatingAdmissionPolicies().Create(ctx, policy, metav1.CreateOptions{}); err != nil {
			return err
		}
		binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: meta, Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: meta.Name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		}}
		if _, err := r.ValidatingAdmissionPolicyBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) removePolicies(ctx context.Context) {
	r := b.client.AdmissionregistrationV1()
	mine := metav1.ListOptions{LabelSelector: "bench=" + b.namespace}
	_ = r.ValidatingAdmissionPolicyBindings().DeleteCollection(ctx, metav1.DeleteOptions{}, mine)
	_ = r.ValidatingAdmissionPolicies().DeleteCollection(ctx, metav1.DeleteOptions{}, mine)
}
