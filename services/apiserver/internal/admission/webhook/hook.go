// Package webhook is the admission plugins MutatingAdmissionWebhook and
// ValidatingAdmissionWebhook: it asks the webhooks that are configured in the
// cluster about each write that they match.
package webhook

import (
	"cmp"
	"slices"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission/expression"
	"github.com/sampan-io/sampan/services/apiserver/internal/admission/intercept"
)

// defaultTimeout is that of a webhook which names none.
const defaultTimeout = 10 * time.Second

// hook is one webhook, prepared for matching and calling.
type hook struct {
	admissionregistrationv1.MutatingWebhook // of a validating one, all that it has

	configuration string
	uid           types.UID
	index         int // in its configuration
	criteria      *intercept.Criteria
	invalid       error // criteria that cannot be read
	conditions    intercept.Conditions
	timeout       time.Duration
	client        *client
	breaker       *breaker
}

// key names the webhook across rounds of one write.
type key struct {
	configuration, name string
	index               int
}

func (h *hook) key() key { return key{h.configuration, h.Name, h.index} }

// ignores says that a failed call does not refuse the write.
func (h *hook) ignores() bool {
	return h.FailurePolicy != nil && *h.FailurePolicy == admissionregistrationv1.Ignore
}

// quiet says that a dry run may reach the webhook.
func (h *hook) quiet() bool {
	return h.SideEffects != nil &&
		(*h.SideEffects == admissionregistrationv1.SideEffectClassNone || *h.SideEffects == admissionregistrationv1.SideEffectClassNoneOnDryRun)
}

// hooks are the webhooks of all configurations of one kind, in the order of their
// names. They are shared and not changed.
type hooks struct {
	all   []*hook
	known map[version][]*hook // by the configuration that they were made of
}

// version is a configuration in one of its states.
type version struct {
	uid        types.UID
	generation int64
}

// builder makes hooks of configurations.
type builder struct {
	environments *expression.Environments
	clients      *clients
	kind         string // of the configurations
}

// prepare takes over the hooks of configurations that have not changed, with
// their connections and the state of their breakers.
func (b *builder) prepare(objects [][]runtime.Object, last *hooks) *hooks {
	now := &hooks{known: map[version][]*hook{}}
	configurations := slices.Clone(objects[0])
	slices.SortFunc(configurations, func(x, y runtime.Object) int {
		return cmp.Compare(x.(metav1.Object).GetName(), y.(metav1.Object).GetName())
	})
	for _, obj := range configurations {
		meta := obj.(metav1.Object)
		v := version{meta.GetUID(), meta.GetGeneration()}
		var list []*hook
		if last != nil {
			list = last.known[v]
		}
		if list == nil {
			list = b.hooks(meta, webhooksOf(obj))
		}
		now.known[v] = list
		now.all = append(now.all, list...)
	}
	if last != nil {
		for v, list := range last.known {
			if now.known[v] == nil {
				retire(list)
			}
		}
	}
	return now
}

// retire lets go of what hooks hold that are no longer configured.
func retire(list []*hook) {
	for _, h := range list {
		h.breaker.drop()
		h.client.close()
	}
}

func webhooksOf(obj runtime.Object) []admissionregistrationv1.MutatingWebhook {
	switch c := obj.(type) {
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		return c.Webhooks
	case *admissionregistrationv1.ValidatingWebhookConfiguration:
		list := make([]admissionregistrationv1.MutatingWebhook, len(c.Webhooks))
		for i, w := range c.Webhooks {
			list[i] = admissionregistrationv1.MutatingWebhook{
				Name: w.Name, ClientConfig: w.ClientConfig, Rules: w.Rules, FailurePolicy: w.FailurePolicy, MatchPolicy: w.MatchPolicy,
				NamespaceSelector: w.NamespaceSelector, ObjectSelector: w.ObjectSelector, SideEffects: w.SideEffects,
				TimeoutSeconds: w.TimeoutSeconds, AdmissionReviewVersions: w.AdmissionReviewVersions, MatchConditions: w.MatchConditions,
			}
		}
		return list
	}
	return nil
}

func (b *builder) hooks(meta metav1.Object, webhooks []admissionregistrationv1.MutatingWebhook) []*hook {
	list := make([]*hook, len(webhooks))
	for i, w := range webhooks {
		h := &hook{MutatingWebhook: w, configuration: meta.GetName(), uid: meta.GetUID(), index: i, timeout: defaultTimeout}
		if w.TimeoutSeconds != nil {
			h.timeout = time.Duration(*w.TimeoutSeconds) * time.Second
		}
		h.criteria, h.invalid = intercept.NewWebhookCriteria(w.Rules, w.MatchPolicy, w.NamespaceSelector, w.ObjectSelector)
		h.conditions = intercept.CompileConditions(b.environments, w.MatchConditions, false)
		h.client = b.clients.of(&h.ClientConfig)
		h.breaker = newBreaker(h, b.kind)
		list[i] = h
	}
	return list
}
