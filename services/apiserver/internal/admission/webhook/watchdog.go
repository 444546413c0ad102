package webhook

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// watchdog probes the webhooks that are not waited for, and tells of them.
type watchdog struct {
	log     *slog.Logger
	writer  registry.Writer
	metrics *Metrics

	mu    sync.Mutex
	open  map[*breaker]bool
	news  chan struct{}
	notes []change
}

// change is one change of a breaker that is to be told of.
type change struct {
	breaker *breaker
	open    bool
}

// maxNotes bounds the changes that wait to be told.
const maxNotes = 100

func newWatchdog(log *slog.Logger, writer registry.Writer, metrics *Metrics) *watchdog {
	return &watchdog{log: log, writer: writer, metrics: metrics, open: map[*breaker]bool{}, news: make(chan struct{}, 1)}
}

// opened takes note of a breaker that opened, if it did.
func (w *watchdog) opened(b *breaker, did bool) {
	if did {
		w.changed(b, true)
	}
}

// closed takes note of a breaker that closed, if it did.
func (w *watchdog) closed(b *breaker, did bool) {
	if did {
		w.changed(b, false)
	}
}

func (w *watchdog) changed(b *breaker, open bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if open {
		w.open[b] = true
		w.metrics.opened.WithLabelValues(b.hook.Name, b.label()).Inc()
		w.metrics.open.WithLabelValues(b.hook.Name, b.label()).Set(1)
	} else {
		delete(w.open, b)
		w.metrics.open.WithLabelValues(b.hook.Name, b.label()).Set(0)
	}
	if len(w.notes) < maxNotes {
		w.notes = append(w.notes, change{b, open})
	}
	select {
	case w.news <- struct{}{}:
	default:
	}
}

// label is the type of the webhook in metrics.
func (b *breaker) label() string {
	if b.kind == "MutatingWebhookConfiguration" {
		return "admit"
	}
	return "validating"
}

// Run probes open breakers every second and records events, until ctx ends.
func (w *Webhooks) Run(ctx context.Context) {
	var probes sync.WaitGroup
	defer probes.Wait()
	ticker := time.NewTicker(probeEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.watchdog.news:
			w.watchdog.tell(ctx)
		case <-ticker.C:
			for _, b := range w.watchdog.waiting() {
				probes.Go(func() { w.watchdog.closed(b, b.probeOnce(ctx)) })
			}
		}
	}
}

// waiting are the open breakers; those of webhooks that are gone are forgotten.
func (w *watchdog) waiting() []*breaker {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []*breaker
	for b := range w.open {
		if b.isOpen() {
			list = append(list, b)
			continue
		}
		delete(w.open, b)
		w.metrics.open.DeleteLabelValues(b.hook.Name, b.label())
	}
	return list
}

// tell records what has changed.
func (w *watchdog) tell(ctx context.Context) {
	w.mu.Lock()
	notes := w.notes
	w.notes = nil
	w.mu.Unlock()
	for _, n := range notes {
		event := eventOf(n.breaker, n.open)
		w.log.Warn("Webhook's circuit breaker changed", "configuration", n.breaker.hook.configuration, "webhook", n.breaker.hook.Name, "open", n.open)
		if _, err := w.writer.Create(admission.Internal(ctx), corev1.Resource("events"), event); err != nil && ctx.Err() == nil {
			w.log.Error("Recording an event about a webhook", "webhook", n.breaker.hook.Name, "err", err)
		}
	}
}

func eventOf(b *breaker, open bool) *corev1.Event {
	now := metav1.Now()
	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: b.hook.configuration + ".", Namespace: metav1.NamespaceDefault},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "admissionregistration.k8s.io/v1", Kind: b.kind, Name: b.hook.configuration, UID: b.hook.uid,
		},
		Type: corev1.EventTypeNormal, Reason: "WebhookCircuitClosed",
		Message:        fmt.Sprintf("webhook %q answers again", b.hook.Name),
		Source:         corev1.EventSource{Component: "apiserver"},
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
	if open {
		policy := "fail"
		if b.hook.ignores() {
			policy = "are admitted without it"
		}
		event.Type, event.Reason = corev1.EventTypeWarning, "WebhookCircuitOpen"
		event.Message = fmt.Sprintf("webhook %q did not answer in time %d times in a row; until it does, requests that match it %s at once instead of after %s", b.hook.Name, maxTimeouts, policy, b.hook.timeout)
	}
	return event
}
