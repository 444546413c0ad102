package status

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes"
)

// Publisher writes pods' statuses to the API server: of each pod the newest, in
// order, and no pod waits for another.
type Publisher struct {
	client kubernetes.Interface
	log    *slog.Logger

	mu      sync.Mutex
	pods    map[types.UID]*published
	running sync.WaitGroup
	base    context.Context
	stop    context.CancelFunc
}

type published struct {
	// base is the pod as it is on the API server, as far as is known.
	base *corev1.Pod
	// next waits to be written; nil is nothing.
	next    *corev1.PodStatus
	last    *corev1.PodStatus // what was to be written last
	busy    bool
	idle    chan struct{} // closed when nothing is left to write
	deleted bool
}

// NewPublisher makes one; Close ends it.
func NewPublisher(client kubernetes.Interface, log *slog.Logger) *Publisher {
	base, stop := context.WithCancel(context.Background())
	return &Publisher{client: client, log: log, pods: map[types.UID]*published{}, base: base, stop: stop}
}

// Close ends writing and waits for what is under way.
func (p *Publisher) Close() {
	p.stop()
	p.running.Wait()
}

// Seen tells of the pod as the API server has it.
func (p *Publisher) Seen(pod *corev1.Pod) { p.SeenAs(pod.UID, pod) }

// SeenAs tells of the object on the API server that shows a pod of this node whose
// UID is another one: a static pod's mirror. Nil tells that there is none.
func (p *Publisher) SeenAs(uid types.UID, object *corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	entry := p.entry(uid)
	switch {
	case object == nil:
		entry.base = nil
	case entry.base == nil || entry.base.UID != object.UID:
		entry.base = object
		if entry.next == nil {
			entry.next = entry.last
		}
		p.launch(entry)
	case newer(object, entry.base):
		entry.base = object
	}
}

// newer compares resource versions, which are integers.
func newer(a, b *corev1.Pod) bool {
	if len(a.ResourceVersion) != len(b.ResourceVersion) {
		return len(a.ResourceVersion) > len(b.ResourceVersion)
	}
	return a.ResourceVersion >= b.ResourceVersion
}

// Known is the pod's status as it is on the API server or is about to be.
func (p *Publisher) Known(uid types.UID) (corev1.PodStatus, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	entry, known := p.pods[uid]
	if !known {
		return corev1.PodStatus{}, false
	}
	if entry.next != nil {
		return *entry.next, true
	}
	if entry.base != nil {
		return entry.base.Status, true
	}
	return corev1.PodStatus{}, false
}

// Forget drops a pod that is gone from the API server.
func (p *Publisher) Forget(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if entry, known := p.pods[uid]; known {
		entry.deleted, entry.next = true, nil
		delete(p.pods, uid)
	}
}

// entry finds or makes one. Caller must hold mu.
func (p *Publisher) entry(uid types.UID) *published {
	entry, known := p.pods[uid]
	if !known {
		entry = &published{idle: make(chan struct{})}
		close(entry.idle)
		p.pods[uid] = entry
	}
	return entry
}

// Publish writes the status soon, once the pod's object has been seen. A status
// that is not written yet is replaced.
func (p *Publisher) Publish(pod *corev1.Pod, status corev1.PodStatus) {
	p.mu.Lock()
	defer p.mu.Unlock()
	entry := p.entry(pod.UID)
	entry.next, entry.last = &status, &status
	p.launch(entry)
}

// launch begins writing what is next, if there is something and somewhere to write
// it. Caller must hold mu.
func (p *Publisher) launch(entry *published) {
	if entry.busy || entry.next == nil || entry.base == nil {
		return
	}
	status := *entry.next
	if equality.Semantic.DeepEqual(normalize(entry.base.Status), normalize(merge(entry.base, &status))) {
		entry.next = nil
		return
	}
	entry.busy, entry.idle = true, make(chan struct{})
	p.running.Go(func() { p.write(entry) })
}

// normalize drops what is lost on the way through the API server: parts of seconds.
func normalize(status corev1.PodStatus) corev1.PodStatus {
	data, err := json.Marshal(status)
	if err != nil {
		return status
	}
	var out corev1.PodStatus
	if json.Unmarshal(data, &out) != nil {
		return status
	}
	return out
}

// write sends what is next until nothing is.
func (p *Publisher) write(entry *published) {
	const firstPause, maxPause = 50 * time.Millisecond, 10 * time.Second
	pause := firstPause
	for {
		next, base := p.take(entry)
		if next == nil {
			return
		}
		written, err := p.patch(base, next)
		if !p.settle(entry, next, written, err) {
			pause = firstPause
			continue
		}
		p.log.Warn("Writing a pod's status", "pod", base.Namespace+"/"+base.Name, "err", err)
		select {
		case <-time.After(pause):
			pause = min(2*pause, maxPause)
		case <-p.base.Done():
		}
	}
}

// take is what is to be written now; without anything the entry becomes idle.
func (p *Publisher) take(entry *published) (*corev1.PodStatus, *corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := entry.next
	if next == nil || entry.base == nil || entry.deleted || p.base.Err() != nil {
		entry.busy = false
		close(entry.idle)
		return nil, nil
	}
	entry.next = nil
	return next, entry.base
}

// settle keeps what was written, or puts it back when it should be tried again.
func (p *Publisher) settle(entry *published, next *corev1.PodStatus, written *corev1.Pod, err error) (retry bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err == nil:
		if written != nil && entry.base != nil && entry.base.UID == written.UID && newer(written, entry.base) {
			entry.base = written
		}
		return false
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		return false // the pod is gone, or another one has its name
	}
	if entry.next == nil {
		entry.next = next
	}
	return true
}

// patch sends the difference. Conditions of others are left as they are.
func (p *Publisher) patch(base *corev1.Pod, status *corev1.PodStatus) (*corev1.Pod, error) {
	data, unchanged, err := statusPatch(base, status)
	if err != nil || unchanged {
		return nil, err
	}
	const patience = 30 * time.Second
	ctx, cancel := context.WithTimeout(p.base, patience)
	defer cancel()
	written, err := p.client.CoreV1().Pods(base.Namespace).Patch(ctx, base.Name, types.StrategicMergePatchType, data, metav1.PatchOptions{}, "status")
	if err != nil {
		return nil, fmt.Errorf("patching status of pod %s/%s: %w", base.Namespace, base.Name, err)
	}
	return written, nil
}

func merge(base *corev1.Pod, status *corev1.PodStatus) corev1.PodStatus {
	merged := *status
	merged.Conditions = mergeConditions(base.Status.Conditions, status.Conditions)
	return merged
}

func statusPatch(base *corev1.Pod, status *corev1.PodStatus) (data []byte, unchanged bool, err error) {
	merged := merge(base, status)
	before, err := json.Marshal(corev1.Pod{Status: base.Status})
	if err != nil {
		return nil, false, err
	}
	after, err := json.Marshal(corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: base.UID}, Status: merged})
	if err != nil {
		return nil, false, err
	}
	data, err = strategicpatch.CreateTwoWayMergePatch(before, after, corev1.Pod{})
	if err != nil {
		return nil, false, fmt.Errorf("making status patch: %w", err)
	}
	return data, string(data) == fmt.Sprintf(`{"metadata":{"uid":%q}}`, base.UID), nil
}

// mergeConditions takes our conditions from ours and the others from theirs, in
// the order of theirs, so that equal conditions make no difference.
func mergeConditions(theirs, ours []corev1.PodCondition) []corev1.PodCondition {
	var merged []corev1.PodCondition
	for _, condition := range theirs {
		at := indexOf(ours, condition.Type)
		if at >= 0 && Owned(condition.Type) {
			condition = ours[at]
		}
		if at < 0 && passing(condition.Type) {
			continue
		}
		merged = append(merged, condition)
	}
	for _, condition := range ours {
		if indexOf(theirs, condition.Type) < 0 {
			merged = append(merged, condition)
		}
	}
	return merged
}

// passing are the conditions that are there only while they are true.
func passing(condition corev1.PodConditionType) bool {
	return condition == corev1.PodResizePending || condition == corev1.PodResizeInProgress || condition == corev1.AllContainersRestarting
}

func indexOf(list []corev1.PodCondition, kind corev1.PodConditionType) int {
	return slices.IndexFunc(list, func(c corev1.PodCondition) bool { return c.Type == kind })
}

// Flush waits until the pod's newest status has been written, or ctx ends.
func (p *Publisher) Flush(ctx context.Context, uid types.UID) error {
	p.mu.Lock()
	entry, known := p.pods[uid]
	if !known {
		p.mu.Unlock()
		return nil
	}
	idle := entry.idle
	p.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Delete ends the pod's object, after its last status has been written. A pod
// that is gone, or is another by now, is no error.
func (p *Publisher) Delete(ctx context.Context, pod *corev1.Pod) error {
	if err := p.Flush(ctx, pod.UID); err != nil {
		return err
	}
	options := metav1.NewDeleteOptions(0)
	options.Preconditions = metav1.NewUIDPreconditions(string(pod.UID))
	err := p.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, *options)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("deleting pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
