package podsource

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
)

// hashAnnotation tells of which version of its file a pod is.
const hashAnnotation = "kubernetes.io/config.hash"

// Mirrors shows static pods on the API server: each has an object there, which is
// made again when someone deletes it.
type Mirrors struct {
	Client kubernetes.Interface
	// Node is this node's object; nil while there is none.
	Node func() *corev1.Node
	// Seen is told which object shows a static pod; nil tells that none does.
	Seen func(uid types.UID, mirror *corev1.Pod)
	Log  *slog.Logger

	once    sync.Once
	queue   workqueue.TypedRateLimitingInterface[types.NamespacedName]
	mu      sync.Mutex
	static  map[types.NamespacedName]*corev1.Pod
	mirrors map[types.NamespacedName]*corev1.Pod
}

func (m *Mirrors) init() {
	m.once.Do(func() {
		m.queue = workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[types.NamespacedName]())
		m.static, m.mirrors = map[types.NamespacedName]*corev1.Pod{}, map[types.NamespacedName]*corev1.Pod{}
	})
}

func nameOf(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

// Add tells of a static pod.
func (m *Mirrors) Add(pod *corev1.Pod) {
	m.init()
	m.mu.Lock()
	m.static[nameOf(pod)] = pod
	m.mu.Unlock()
	m.queue.Add(nameOf(pod))
}

// Remove tells that a static pod is gone.
func (m *Mirrors) Remove(uid types.UID) {
	m.init()
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, pod := range m.static {
		if pod.UID == uid {
			delete(m.static, name)
			m.queue.Add(name)
		}
	}
}

// Observe tells of an object on the API server.
func (m *Mirrors) Observe(mirror *corev1.Pod, gone bool) {
	m.init()
	name := nameOf(mirror)
	m.mu.Lock()
	if gone {
		delete(m.mirrors, name)
	} else {
		m.mirrors[name] = mirror
	}
	m.mu.Unlock()
	m.queue.Add(name)
}

// Run keeps them until ctx ends.
func (m *Mirrors) Run(ctx context.Context) error {
	m.init()
	go func() {
		<-ctx.Done()
		m.queue.ShutDown()
	}()
	for {
		name, done := m.queue.Get()
		if done {
			return nil
		}
		if err := m.sync(ctx, name); err != nil && ctx.Err() == nil {
			m.Log.WarnContext(ctx, "Showing a static pod", "pod", name.String(), "err", err)
			m.queue.AddRateLimited(name)
		} else {
			m.queue.Forget(name)
		}
		m.queue.Done(name)
	}
}

func (m *Mirrors) sync(ctx context.Context, name types.NamespacedName) error {
	m.mu.Lock()
	static, mirror := m.static[name], m.mirrors[name]
	m.mu.Unlock()
	switch {
	case static == nil && mirror == nil:
		return nil
	case mirror != nil && (static == nil || mirror.DeletionTimestamp != nil || mirror.Annotations[mirrorAnnotation] != static.Annotations[hashAnnotation]):
		return m.delete(ctx, mirror)
	case mirror == nil:
		m.Seen(static.UID, nil)
		return m.create(ctx, static)
	}
	m.Seen(static.UID, mirror)
	return nil
}

func (m *Mirrors) delete(ctx context.Context, mirror *corev1.Pod) error {
	options := metav1.NewDeleteOptions(0)
	options.Preconditions = metav1.NewUIDPreconditions(string(mirror.UID))
	err := m.Client.CoreV1().Pods(mirror.Namespace).Delete(ctx, mirror.Name, *options)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("deleting the mirror: %w", err)
	}
	return nil
}

func (m *Mirrors) create(ctx context.Context, static *corev1.Pod) error {
	mirror := static.DeepCopy()
	mirror.UID = ""
	mirror.Annotations[mirrorAnnotation] = static.Annotations[hashAnnotation]
	node := m.Node()
	if node == nil {
		return fmt.Errorf("the node is not registered yet")
	}
	yes := true
	mirror.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID, Controller: &yes}}
	_, err := m.Client.CoreV1().Pods(mirror.Namespace).Create(ctx, mirror, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating the mirror: %w", err)
	}
	return nil
}
