package podworker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/cri"
	"github.com/sampan-io/sampan/services/node-agent/internal/cri/fakecri"
	"github.com/sampan-io/sampan/services/node-agent/internal/criconfig"
	"github.com/sampan-io/sampan/services/node-agent/internal/objects"
	"github.com/sampan-io/sampan/services/node-agent/internal/podworker"
	"github.com/sampan-io/sampan/services/node-agent/internal/probes"
	"github.com/sampan-io/sampan/services/node-agent/internal/pulling"
	"github.com/sampan-io/sampan/services/node-agent/internal/status"
	"github.com/sampan-io/sampan/services/node-agent/internal/volumes"
)

// node is the workers with a fake runtime and a fake API.
type node struct {
	t       *testing.T
	root    string
	runtime *fakecri.Runtime
	api     kubernetes.Interface
	workers *podworker.Workers
	drainer podworker.Drainer // of workers that are started from now on
	refused *status.End       // what a resize is answered with
	end     func()

	mu     sync.Mutex
	events []string
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, root: t.TempDir(), runtime: fakecri.Start(t), api: fake.NewClientset()}
	n.runtime.AddImage("img:v1")
	n.start()
	t.Cleanup(func() { n.end() })
	return n
}

// Event implements podworker.Events.
func (n *node) Event(pod *corev1.Pod, container *corev1.Container, _ bool, reason, message string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	where := pod.Name
	if container != nil {
		where += "/" + container.Name
	}
	n.events = append(n.events, where+" "+reason+": "+message)
}

func (n *node) told(text string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.ContainsFunc(n.events, func(event string) bool { return strings.Contains(event, text) })
}

// ObservePodStart implements podworker.Observer.
func (*node) ObservePodStart(time.Duration) {}

// ObserveSync implements podworker.Observer.
func (*node) ObserveSync(string, time.Duration) {}

// ObserveRelist implements podworker.Observer.
func (*node) ObserveRelist(time.Duration) {}

// noCgroups stands for a machine without any.
type noCgroups struct{}

func (noCgroups) EnsurePod(*corev1.Pod) error { return nil }
func (noCgroups) Remove(types.UID) error      { return nil }

func (noCgroups) MemoryUsed(*corev1.Pod, string) int64 { return 0 }

type executor struct{ client *cri.Client }

func (e executor) Exec(ctx context.Context, id string, command []string, _ time.Duration) (*runtimeapi.ExecSyncResponse, error) {
	return e.client.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: command})
}

// Image implements pulling.Service.
func (e executor) Image(ctx context.Context, image string) (*runtimeapi.Image, error) {
	response, err := e.client.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: image}})
	return response.GetImage(), err
}

// Pull implements pulling.Service.
func (e executor) Pull(ctx context.Context, image string, _ *runtimeapi.AuthConfig, _ *runtimeapi.PodSandboxConfig) (string, error) {
	response, err := e.client.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: image}})
	return response.GetImageRef(), err
}

// start makes the workers, as a start of the agent does.
func (n *node) start() {
	n.t.Helper()
	client, err := cri.Dial(n.runtime.Socket, nil)
	if err != nil {
		n.t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	var workers *podworker.Workers
	store := objects.New(n.api, func(uid types.UID) { workers.Wake(uid) })
	vols := volumes.New(volumes.Config{
		Root: n.root, Objects: store, Allocatable: func() corev1.ResourceList { return nil }, Log: log,
		Failed: func(pod *corev1.Pod, volume string, err error) {
			n.Event(pod, nil, true, "FailedMount", volume+" "+err.Error())
		},
	})
	set := probes.New(probes.Config{
		Executor: executor{client}, Changed: func(uid types.UID) { workers.Wake(uid) },
		Unhealthy: func(pod *corev1.Pod, c *corev1.Container, reason, message string) {
			n.Event(pod, c, true, reason, message)
		},
	})
	publisher := status.NewPublisher(n.api, log)
	workers = podworker.New(podworker.Config{
		Drainer: n.drainer, Resizable: n.resizable,
		Runtime: client, RuntimeName: "fake", Volumes: vols, Objects: store, Probes: set, Status: publisher, Events: n, Observer: n, Log: log, Cgroups: noCgroups{},
		Node: criconfig.Node{
			HostIPs: []string{"192.0.2.1"}, LogsDir: filepath.Join(n.root, "logs"), ClusterDomain: "cluster.local",
			Allocatable: func() corev1.ResourceList { return nil },
		},
		Services: func() []*corev1.Service { return nil }, Puller: &pulling.Puller{Service: executor{client}, Secrets: store, Event: n.Event},
		Admit:   func(*corev1.Pod, []*corev1.Pod) *status.End { return nil },
		Handler: func(context.Context, string) (string, error) { return "", errors.New("no classes here") },
	})
	n.workers = workers
	ctx, cancel := context.WithCancel(context.Background())
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		_ = client.Watch(ctx, workers, log)
	}()
	n.end = func() {
		cancel()
		workers.Close()
		<-watching
		set.Close()
		vols.Close()
		store.Close()
		publisher.Close()
		_ = client.Close()
	}
}

func (n *node) resizable(*corev1.Pod, []*corev1.Pod) *status.End {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.refused
}

// refuse sets what a resize is answered with.
func (n *node) refuse(end *status.End) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refused = end
}

// restart ends the workers and makes new ones, which are told of the same pods.
func (n *node) restart() {
	n.t.Helper()
	n.end()
	n.start()
	list, err := n.api.CoreV1().Pods("").List(n.t.Context(), metav1.ListOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	for i := range list.Items {
		n.workers.Update(&list.Items[i])
	}
}

func (n *node) create(name string, change func(pod *corev1.Pod)) *corev1.Pod {
	n.t.Helper()
	grace := int64(1)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID("uid-" + name)},
		Spec: corev1.PodSpec{
			NodeName: "node", RestartPolicy: corev1.RestartPolicyAlways, TerminationGracePeriodSeconds: &grace, DNSPolicy: corev1.DNSDefault,
			Containers: []corev1.Container{{Name: "main", Image: "img:v1", ImagePullPolicy: corev1.PullIfNotPresent}},
		},
	}
	if change != nil {
		change(pod)
	}
	created, err := n.api.CoreV1().Pods("ns").Create(n.t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	n.workers.Update(created)
	return created
}

// markDeleted is what the API server does first when a pod is to be deleted.
func (n *node) markDeleted(name string, grace int64) {
	n.t.Helper()
	pod := n.get(name)
	now := metav1.Now()
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &now, &grace
	n.workers.Update(pod)
}

func (n *node) get(name string) *corev1.Pod {
	n.t.Helper()
	pod, err := n.api.CoreV1().Pods("ns").Get(n.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	return pod
}

func (n *node) eventually(what string, condition func() bool) {
	n.t.Helper()
	for deadline := time.Now().Add(15 * time.Second); !condition(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			n.t.Fatalf("waited in vain for %s; the runtime has\n%sevents %q", what, n.runtime.Dump(), n.events)
		}
	}
}

func (n *node) awaitPhase(name string, phase corev1.PodPhase) {
	n.t.Helper()
	n.eventually(fmt.Sprintf("pod %s to be %s", name, phase), func() bool { return n.get(name).Status.Phase == phase })
}

func (n *node) awaitGone(name string) {
	n.t.Helper()
	n.eventually("pod "+name+" to be gone", func() bool {
		_, err := n.api.CoreV1().Pods("ns").Get(n.t.Context(), name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

func otherImage(image string) func(pod *corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.Containers[0].Image = image }
}

func TestHungPullStallsNoOtherPodAndEndsWithItsOwn(t *testing.T) {
	n := newNode(t)
	n.runtime.Fail("PullImage", func(any) (error, bool) { return nil, true })
	n.create("hangs", otherImage("slow:v1"))
	n.eventually("the pull", func() bool { return n.runtime.Calls("PullImage") > 0 })
	n.create("runs", nil)
	n.awaitPhase("runs", corev1.PodRunning)
	n.markDeleted("hangs", 1)
	n.awaitGone("hangs")
}

func TestHungSandboxStallsNoOtherPodAndEndsWithItsOwn(t *testing.T) {
	n := newNode(t)
	n.runtime.Fail("RunPodSandbox", func(request any) (error, bool) {
		return nil, request.(*runtimeapi.RunPodSandboxRequest).GetConfig().GetMetadata().GetName() == "hangs"
	})
	n.create("hangs", nil)
	n.eventually("the sandbox", func() bool { return n.runtime.Calls("RunPodSandbox") > 0 })
	n.create("runs", nil)
	n.awaitPhase("runs", corev1.PodRunning)
	n.markDeleted("hangs", 1)
	n.awaitGone("hangs")
}

func TestMissingVolumeStallsNoOtherPod(t *testing.T) {
	n := newNode(t)
	n.create("waits", func(pod *corev1.Pod) {
		pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "s", Path: "/"}}}}
	})
	n.eventually("the event", func() bool {
		return n.told("waits FailedMount: v volumes of kind nfs are not supported by this node")
	})
	n.create("runs", nil)
	n.awaitPhase("runs", corev1.PodRunning)
	n.markDeleted("waits", 1)
	n.awaitGone("waits")
}

func TestRuntimeErrorsAreToldAndTriedAgain(t *testing.T) {
	n := newNode(t)
	var mu sync.Mutex
	failures := 2
	n.runtime.Fail("RunPodSandbox", func(any) (error, bool) {
		mu.Lock()
		defer mu.Unlock()
		if failures--; failures >= 0 {
			return errors.New("no network today"), false
		}
		return nil, false
	})
	n.create("late", nil)
	n.awaitPhase("late", corev1.PodRunning)
	if !n.told("late FailedCreatePodSandBox: Failed to create pod sandbox: no network today") {
		t.Errorf("events %q", n.events)
	}
}

func TestCreateErrorIsShown(t *testing.T) {
	n := newNode(t)
	n.runtime.Fail("CreateContainer", func(any) (error, bool) { return errors.New("bad device"), false })
	n.create("bad", nil)
	n.eventually("the reason", func() bool {
		statuses := n.get("bad").Status.ContainerStatuses
		return len(statuses) == 1 && statuses[0].State.Waiting != nil && statuses[0].State.Waiting.Reason == "CreateContainerError" && statuses[0].State.Waiting.Message == "bad device"
	})
}

func TestRuntimeWithoutEventsIsListed(t *testing.T) {
	n := newNode(t)
	n.end()
	n.runtime.WithoutEvents()
	n.start()
	n.create("once", func(pod *corev1.Pod) { pod.Spec.RestartPolicy = corev1.RestartPolicyNever })
	n.awaitPhase("once", corev1.PodRunning)
	if !n.runtime.Exit("once", "main", 3) {
		t.Fatal("nothing runs")
	}
	n.awaitPhase("once", corev1.PodFailed)
}

func TestRestartedWorkersAdoptWhatRuns(t *testing.T) {
	n := newNode(t)
	n.create("stays", nil)
	n.awaitPhase("stays", corev1.PodRunning)
	before := n.get("stays").Status
	created := n.runtime.Calls("CreateContainer")
	n.end()
	// While nobody looks a container ends.
	n.start()
	n.create("ends", func(pod *corev1.Pod) { pod.Spec.RestartPolicy = corev1.RestartPolicyNever })
	n.awaitPhase("ends", corev1.PodRunning)
	n.end()
	if !n.runtime.Exit("ends", "main", 5) {
		t.Fatal("nothing runs")
	}
	n.start()
	for _, name := range []string{"stays", "ends"} {
		n.workers.Update(n.get(name))
	}
	n.awaitPhase("ends", corev1.PodFailed)
	if end := n.get("ends").Status.ContainerStatuses[0].State.Terminated; end == nil || end.ExitCode != 5 {
		t.Errorf("the exit code: %+v", end)
	}
	after := n.get("stays").Status
	if n.runtime.Calls("CreateContainer") != created+1 || before.ContainerStatuses[0].ContainerID != after.ContainerStatuses[0].ContainerID {
		t.Errorf("before %+v, after %+v", before.ContainerStatuses, after.ContainerStatuses)
	}
}

func TestHalfStartedContainerIsMadeAnew(t *testing.T) {
	n := newNode(t)
	n.runtime.Fail("StartContainer", func(any) (error, bool) { return nil, true })
	n.create("half", nil)
	n.eventually("the start", func() bool { return n.runtime.Calls("StartContainer") > 0 })
	n.runtime.Fail("StartContainer", nil)
	n.restart()
	n.awaitPhase("half", corev1.PodRunning)
	if got := n.get("half").Status.ContainerStatuses[0]; got.RestartCount != 0 {
		t.Errorf("restart count %d", got.RestartCount)
	}
	if strings.Count(n.runtime.Dump(), "container ") != 1 {
		t.Errorf("the runtime has\n%s", n.runtime.Dump())
	}
}

func TestOrphansAreStoppedAndRemoved(t *testing.T) {
	n := newNode(t)
	pod := n.create("orphan", nil)
	n.awaitPhase("orphan", corev1.PodRunning)
	n.end()
	n.start()
	n.workers.Orphan(pod.UID, types.NamespacedName{Namespace: "ns", Name: "orphan"})
	n.eventually("the runtime to be empty", func() bool { return n.runtime.Dump() == "" })
	n.eventually("its directories to go", func() bool {
		left, _ := filepath.Glob(filepath.Join(n.root, "pods", "*"))
		logs, _ := filepath.Glob(filepath.Join(n.root, "logs", "*"))
		return len(left)+len(logs) == 0
	})
}

func TestShorterGracePeriodCounts(t *testing.T) {
	n := newNode(t)
	n.create("stubborn", nil)
	n.awaitPhase("stubborn", corev1.PodRunning)
	n.runtime.Fail("StopContainer", func(request any) (error, bool) {
		return nil, request.(*runtimeapi.StopContainerRequest).GetTimeout() > 5
	})
	n.markDeleted("stubborn", 60)
	n.eventually("the stop", func() bool { return n.runtime.Calls("StopContainer") > 0 })
	n.markDeleted("stubborn", 2)
	n.awaitGone("stubborn")
	n.mu.Lock()
	defer n.mu.Unlock()
	kills := 0
	for _, event := range n.events {
		if strings.Contains(event, "Killing") {
			kills++
		}
	}
	if kills != 1 {
		t.Errorf("told %d times of one stop: %q", kills, n.events)
	}
}

func TestEvictedPodFails(t *testing.T) {
	n := newNode(t)
	pod := n.create("heavy", nil)
	n.awaitPhase("heavy", corev1.PodRunning)
	n.workers.Evict(pod.UID, status.End{Reason: status.ReasonEvicted, Message: "the disk is full"})
	n.awaitPhase("heavy", corev1.PodFailed)
	if got := n.get("heavy").Status; got.Reason != "Evicted" || got.Message != "the disk is full" {
		t.Errorf("reason %q, message %q", got.Reason, got.Message)
	}
}

func TestPodGivesItsDirectoriesBack(t *testing.T) {
	n := newNode(t)
	n.create("short", func(pod *corev1.Pod) {
		pod.Spec.RestartPolicy = corev1.RestartPolicyNever
		pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	})
	n.awaitPhase("short", corev1.PodRunning)
	volume := filepath.Join(n.root, "pods", "uid-short", "volumes", "kubernetes.io~empty-dir", "v")
	if _, err := os.Stat(volume); err != nil {
		t.Fatal(err)
	}
	n.runtime.Exit("short", "main", 0)
	n.awaitPhase("short", corev1.PodSucceeded)
	n.eventually("the volume to go", func() bool {
		_, err := os.Stat(volume)
		return errors.Is(err, os.ErrNotExist)
	})
	n.markDeleted("short", 1)
	n.awaitGone("short")
	if dump := n.runtime.Dump(); dump != "" {
		t.Errorf("the runtime has\n%s", dump)
	}
}
