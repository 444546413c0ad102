// Package quota keeps what a namespace uses within its ResourceQuotas: each write
// is charged in the quotas' status before it is stored.
//
// A charge is a compare-and-set on the status of the very quota that was judged,
// so that usage never passes a limit, however many requests and API servers write
// at once. A charge whose object then is not stored is not taken back: the
// controller counts again once a quota has been quiet for a moment.
package quota

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/internal/quota"
)

const (
	// batchTimeout bounds how long one batch of requests is worked on.
	batchTimeout = 10 * time.Second
	// batchTries is how often a batch is judged anew because another API server, or
	// the controller, was faster.
	batchTries = 20
)

// Limiter charges writes. Make one with New; it is safe for concurrent use.
type Limiter struct {
	reader  registry.Reader
	writer  registry.Writer
	limited []Limited

	mu sync.Mutex
	// queues has those namespaces in which requests are waiting or worked on.
	queues map[string]*queue
}

// queue is the requests in one namespace. One of them leads: it judges all that
// wait, and writes each quota once for all of them.
type queue struct {
	led     bool
	waiting []*request
}

// request is one write that waits for its verdict.
type request struct {
	attributes *admission.Attributes
	evaluator  quota.Evaluator
	verdict    chan error    // has room for one
	lead       chan struct{} // has room for one
	settled    bool
}

// New charges through writer, and refuses what limited says must be covered by a
// quota and is not.
func New(reader registry.Reader, writer registry.Writer, limited []Limited) *Limiter {
	return &Limiter{reader: reader, writer: writer, limited: limited, queues: map[string]*queue{}}
}

// Charge charges a create or update in all quotas of its namespace that it matches,
// and refuses it with 403 when one would be exceeded.
func (l *Limiter) Charge(ctx context.Context, a *admission.Attributes) error {
	resource := a.Resource.GroupResource()
	if a.Namespace == "" || quota.Ignored(resource) || a.Operation == admission.Create && resource == corev1.Resource("namespaces") {
		return nil
	}
	evaluator := quota.For(resource)
	if !evaluator.Charges(a.Subresource, a.Object, a.OldObject) {
		return nil
	}
	if len(l.limited) == 0 {
		quotas, err := l.quotas(ctx, a.Namespace)
		if err != nil || len(quotas) == 0 {
			return err
		}
	}
	r := &request{attributes: a, evaluator: evaluator, verdict: make(chan error, 1), lead: make(chan struct{}, 1)}
	if l.enter(r) {
		l.work(ctx, a.Namespace)
	}
	for {
		select {
		case err := <-r.verdict:
			return err
		case <-r.lead:
			l.work(ctx, a.Namespace)
		case <-ctx.Done():
			l.leave(r)
			return apierrors.NewInternalError(fmt.Errorf("resource quota evaluation timed out: %w", ctx.Err()))
		}
	}
}

// enter queues a request, and says whether it leads.
func (l *Limiter) enter(r *request) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queues[r.attributes.Namespace]
	if q == nil {
		q = &queue{}
		l.queues[r.attributes.Namespace] = q
	}
	q.waiting = append(q.waiting, r)
	lead := !q.led
	q.led = true
	return lead
}

// leave takes a request out that nobody waits for any more. If the lead was just
// given to it, it passes it on.
func (l *Limiter) leave(r *request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queues[r.attributes.Namespace]
	if q == nil {
		return
	}
	for i, other := range q.waiting {
		if other == r {
			q.waiting = append(q.waiting[:i:i], q.waiting[i+1:]...)
			break
		}
	}
	select {
	case <-r.lead:
		l.pass(r.attributes.Namespace, q)
	default:
	}
}

// work judges all that wait, and then passes the lead on. Caller must lead.
func (l *Limiter) work(ctx context.Context, namespace string) {
	l.mu.Lock()
	q := l.queues[namespace]
	batch := q.waiting
	q.waiting = nil
	l.mu.Unlock()
	// The others in the batch must not end with the leader's request.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), batchTimeout)
	defer cancel()
	defer func() {
		for _, r := range batch {
			r.settle(apierrors.NewInternalError(errors.New("resource quota evaluation ended without a verdict")))
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.pass(namespace, q)
	}()
	l.judge(ctx, namespace, batch)
}

// pass gives the lead to the first that waits. Caller must hold mu and lead.
func (l *Limiter) pass(namespace string, q *queue) {
	if len(q.waiting) == 0 {
		delete(l.queues, namespace)
		return
	}
	q.waiting[0].lead <- struct{}{}
}

// settle gives a request its verdict; only the first counts.
func (r *request) settle(err error) {
	if !r.settled {
		r.settled = true
		r.verdict <- err
	}
}

func (l *Limiter) quotas(ctx context.Context, namespace string) ([]*corev1.ResourceQuota, error) {
	objects, err := l.reader.List(ctx, corev1.Resource("resourcequotas"), namespace)
	if err != nil {
		return nil, err
	}
	quotas := make([]*corev1.ResourceQuota, 0, len(objects))
	for _, obj := range objects {
		if q, ok := obj.(*corev1.ResourceQuota); ok {
			quotas = append(quotas, q)
		}
	}
	return quotas, nil
}

// judge settles a batch. It begins anew with the quotas that changed meanwhile;
// those that are written already stay charged.
func (l *Limiter) judge(ctx context.Context, namespace string, batch []*request) {
	written := map[string]bool{}
	for try := 0; ; try++ {
		quotas, err := l.quotas(ctx, namespace)
		if err != nil {
			settleAll(batch, err)
			return
		}
		running := newLedger(quotas, written)
		for _, r := range batch {
			if r.settled {
				continue
			}
			if err := l.evaluate(running, r); err != nil {
				r.settle(err)
			}
		}
		err = l.write(ctx, running, written)
		switch {
		case err == nil:
			settleAll(batch, nil)
			return
		case !errors.Is(err, errMoved) || try == batchTries || ctx.Err() != nil:
			settleAll(batch, apierrors.NewInternalError(fmt.Errorf("charging quota: %w", err)))
			return
		}
	}
}

func settleAll(batch []*request, err error) {
	for _, r := range batch {
		r.settle(err)
	}
}

// errMoved says that a quota is not any more what was judged.
var errMoved = errors.New("the quota changed meanwhile")

// write stores what was charged in the ledger, and notes in written what is.
func (l *Limiter) write(ctx context.Context, running *ledger, written map[string]bool) error {
	var moved error
	ctx = admission.Internal(ctx) // what a webhook says of charges must not hold up what is charged
	for i, judged := range running.quotas {
		if running.closed[i] || !running.changed[i] {
			continue
		}
		_, err := l.writer.Update(ctx, corev1.Resource("resourcequotas"), "status", judged.Namespace, judged.Name, false, func(obj runtime.Object) error {
			fresh, ok := obj.(*corev1.ResourceQuota)
			if !ok || fresh.UID != judged.UID || fresh.ResourceVersion != judged.ResourceVersion {
				return errMoved
			}
			fresh.Status.Used = quota.Add(running.used[i], nil)
			return nil
		})
		switch {
		case err == nil:
			written[judged.Name] = true
		case errors.Is(err, errMoved) || apierrors.IsConflict(err) || apierrors.IsNotFound(err):
			moved = errMoved
		default:
			return err
		}
	}
	return moved
}
