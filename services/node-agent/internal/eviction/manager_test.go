package eviction_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/node-agent/internal/eviction"
	"github.com/sampan-io/sampan/services/node-agent/internal/status"
)

const mebi = 1 << 20

func podOf(name string, priority int32, memoryRequest string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{
		Priority: &priority, Containers: []corev1.Container{{Name: "main"}}, TerminationGracePeriodSeconds: ptr.To[int64](30),
	}}
	if memoryRequest != "" {
		pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memoryRequest)}
	}
	return pod
}

func memoryUsage(pod *corev1.Pod, mebibytes int64) eviction.Usage {
	return eviction.Usage{Pod: pod, Memory: mebibytes * mebi, Containers: []eviction.ContainerUsage{{Name: "main", Memory: mebibytes * mebi}}}
}

func TestRankIsUpstreams(t *testing.T) {
	pods := []eviction.Usage{
		memoryUsage(podOf("within-low", -5, "200Mi"), 100),
		memoryUsage(podOf("above-high", 1000, "10Mi"), 500),
		memoryUsage(podOf("above-little", 0, "50Mi"), 60),
		memoryUsage(podOf("above-much", 0, "50Mi"), 300),
		memoryUsage(podOf("best-effort", 0, ""), 100),
		memoryUsage(podOf("within", 0, "200Mi"), 199),
	}
	var got []string
	for _, usage := range eviction.Rank(pods, corev1.ResourceMemory) {
		got = append(got, usage.Pod.Name)
	}
	want := []string{"above-much", "best-effort", "above-little", "above-high", "within-low", "within"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for i := range pods {
		pods[i].PIDs = int64(10 * i)
	}
	got = nil
	for _, usage := range eviction.Rank(pods, "pids") {
		got = append(got, usage.Pod.Name)
	}
	if want := []string{"within-low", "within", "best-effort", "above-much", "above-little", "above-high"}; !slices.Equal(got, want) {
		t.Errorf("by processes: got %v, want %v", got, want)
	}
}

// short is a node that runs short of what a test says.
type short struct {
	fakePods
	seen    map[eviction.Signal]eviction.Observation
	usage   []eviction.Usage
	runs    map[types.UID]bool
	freed   int
	changed int
	manager *eviction.Manager
}

func (s *short) Runs(uid types.UID) bool { return s.runs[uid] }

func newShort(t *testing.T, settings eviction.Settings) *short {
	t.Helper()
	thresholds, err := settings.Parse()
	if err != nil {
		t.Fatal(err)
	}
	s := &short{fakePods: fakePods{evicted: map[types.UID]status.End{}}, seen: map[eviction.Signal]eviction.Observation{}, runs: map[types.UID]bool{}}
	s.manager = eviction.New(eviction.Config{
		Thresholds: thresholds, Every: time.Second, Transition: time.Minute, MaxGrace: 7,
		Observe: func() map[eviction.Signal]eviction.Observation { return s.seen },
		Usage:   func(context.Context) []eviction.Usage { return s.usage },
		Pods:    s, Reclaim: func(context.Context, eviction.Signal) { s.freed++ }, Changed: func() { s.changed++ },
		Evicted: func(*corev1.Pod, eviction.Signal, string) {}, Log: slog.New(slog.DiscardHandler),
	})
	return s
}

func (s *short) names() string {
	var names []string
	for uid := range s.evicted {
		names = append(names, string(uid))
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func TestMemoryPressureEndsOnePodAtATime(t *testing.T) {
	s := newShort(t, eviction.Settings{Hard: map[string]string{"memory.available": "100Mi"}})
	s.usage = []eviction.Usage{
		memoryUsage(podOf("hog", 0, "10Mi"), 300), memoryUsage(podOf("small", 0, "10Mi"), 20),
		memoryUsage(podOf("critical", 2000000000, ""), 900),
	}
	for _, usage := range s.usage {
		s.runs[usage.Pod.UID] = true
	}
	now := time.Now()
	s.seen[eviction.MemoryAvailable] = eviction.Observation{Available: 101 * mebi, Capacity: 1000 * mebi}
	if s.manager.Sync(t.Context(), now); s.names() != "" || len(s.manager.Conditions()) > 0 {
		t.Fatalf("evicted %s without need", s.names())
	}
	s.seen[eviction.MemoryAvailable] = eviction.Observation{Available: 50 * mebi, Capacity: 1000 * mebi}
	s.manager.Sync(t.Context(), now)
	s.manager.Sync(t.Context(), now.Add(time.Second)) // the hog still runs
	if s.names() != "hog" || s.changed != 1 {
		t.Fatalf("evicted %q, conditions changed %d times", s.names(), s.changed)
	}
	want := "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. Container main was using 300Mi, request is 10Mi, has larger consumption of memory. "
	if end := s.evicted["hog"]; end.Message != want || end.Reason != "Evicted" || end.Grace != 1 || end.Disruption != "TerminationByKubelet" {
		t.Errorf("end %+v", end)
	}
	if got := s.manager.Conditions(); !slices.Equal(got, []corev1.NodeConditionType{corev1.NodeMemoryPressure}) {
		t.Errorf("conditions %v", got)
	}
	bestEffort, burstable, tolerant := podOf("new", 0, ""), podOf("new", 0, "1Mi"), podOf("new", 0, "")
	tolerant.Spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists}}
	if end := s.manager.Admit(bestEffort); end == nil || end.Message != "The node had condition: [MemoryPressure]. " {
		t.Errorf("a best-effort pod: %+v", end)
	}
	for _, pod := range []*corev1.Pod{burstable, tolerant, podOf("new", 2000000000, "")} {
		if end := s.manager.Admit(pod); end != nil {
			t.Errorf("refused: %+v", end)
		}
	}
	delete(s.runs, "hog")
	s.usage = s.usage[1:]
	s.manager.Sync(t.Context(), now.Add(2*time.Second))
	delete(s.runs, "small")
	s.usage = s.usage[1:]
	s.manager.Sync(t.Context(), now.Add(3*time.Second))
	if s.names() != "hog small" {
		t.Errorf("evicted %q", s.names())
	}
	s.seen[eviction.MemoryAvailable] = eviction.Observation{Available: 500 * mebi, Capacity: 1000 * mebi}
	s.manager.Sync(t.Context(), now.Add(2*time.Minute))
	if s.changed != 2 {
		t.Errorf("conditions changed %d times", s.changed)
	}
}

func TestSoftThresholdWaitsForItsGracePeriod(t *testing.T) {
	s := newShort(t, eviction.Settings{Soft: map[string]string{"memory.available": "10%"}, SoftGrace: map[string]string{"memory.available": "30s"}})
	s.usage = []eviction.Usage{memoryUsage(podOf("hog", 0, ""), 300)}
	s.seen[eviction.MemoryAvailable] = eviction.Observation{Available: 99 * mebi, Capacity: 1000 * mebi}
	now := time.Now()
	s.manager.Sync(t.Context(), now)
	s.manager.Sync(t.Context(), now.Add(29*time.Second))
	if s.names() != "" {
		t.Fatalf("evicted %s too early", s.names())
	}
	s.manager.Sync(t.Context(), now.Add(30*time.Second))
	if end := s.evicted["hog"]; end.Grace != 7 {
		t.Errorf("end %+v", end)
	}
}

func TestDisksAreClearedBeforePodsGo(t *testing.T) {
	for _, signal := range []eviction.Signal{eviction.NodeFsAvailable, eviction.NodeFsInodesFree, eviction.ImageFsAvailable, eviction.ImageFsInodesFree} {
		s := newShort(t, eviction.Settings{Hard: map[string]string{string(signal): "10%"}, MinReclaim: map[string]string{string(signal): "5%"}})
		writer, reader := podOf("writer", 0, ""), podOf("reader", 0, "")
		s.usage = []eviction.Usage{{Pod: reader, Disk: mebi, Inodes: 10}, {Pod: writer, Disk: 90 * mebi, Inodes: 9000}}
		s.seen[signal] = eviction.Observation{Available: 5000, Capacity: 100000}
		s.manager.Sync(t.Context(), time.Now())
		if s.freed != 1 || s.names() != "writer" {
			t.Errorf("%s: freed %d times, evicted %q", signal, s.freed, s.names())
		}
		if got := s.manager.Conditions(); !slices.Equal(got, []corev1.NodeConditionType{corev1.NodeDiskPressure}) {
			t.Errorf("%s: conditions %v", signal, got)
		}
		if s.manager.Admit(podOf("new", 0, "1Mi")) == nil {
			t.Errorf("%s: a pod was admitted under disk pressure", signal)
		}
	}
}

func TestProcessesRunShort(t *testing.T) {
	s := newShort(t, eviction.Settings{Hard: map[string]string{"pid.available": "1000"}})
	s.usage = []eviction.Usage{{Pod: podOf("few", 0, ""), PIDs: 3}, {Pod: podOf("bomb", 0, ""), PIDs: 4000}}
	s.seen[eviction.PIDAvailable] = eviction.Observation{Available: 900, Capacity: 5000}
	s.manager.Sync(t.Context(), time.Now())
	if s.names() != "bomb" || !strings.HasPrefix(s.evicted["bomb"].Message, "The node was low on resource: pids. ") {
		t.Errorf("evicted %+v", s.evicted)
	}
}

func TestSettingsAreChecked(t *testing.T) {
	for _, bad := range []eviction.Settings{
		{Hard: map[string]string{"memory.free": "1Mi"}}, {Hard: map[string]string{"memory.available": "-5%"}}, {Hard: map[string]string{"memory.available": "much"}},
		{Hard: map[string]string{"memory.available": "101%"}}, {Soft: map[string]string{"memory.available": "1Gi"}},
		{Soft: map[string]string{"memory.available": "1Gi"}, SoftGrace: map[string]string{"memory.available": "soon"}},
		{Hard: map[string]string{"memory.available": "1Gi"}, MinReclaim: map[string]string{"memory.available": "x"}},
	} {
		if _, err := bad.Parse(); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
	thresholds, err := eviction.Settings{Hard: map[string]string{"memory.available": "1Gi", "nodefs.available": "0%", "imagefs.available": "100%"}}.Parse()
	if err != nil || len(thresholds) != 1 {
		t.Errorf("got %v, %v", thresholds, err)
	}
	pairs, err := eviction.ParsePairs("memory.available<1Gi, nodefs.available<10%", "<")
	if err != nil || pairs["memory.available"] != "1Gi" || pairs["nodefs.available"] != "10%" {
		t.Errorf("got %v, %v", pairs, err)
	}
	if _, err := eviction.ParsePairs("memory.available", "<"); err == nil {
		t.Error("a signal without a value was taken")
	}
}

func TestMachineIsObserved(t *testing.T) {
	dir := t.TempDir()
	seen := eviction.Machine{Root: dir, Images: dir, Memory: func() (int64, int64, error) { return 100, 30, nil }}.Observe()
	if seen[eviction.MemoryAvailable] != (eviction.Observation{Available: 70, Capacity: 100}) {
		t.Errorf("memory %+v", seen[eviction.MemoryAvailable])
	}
	for _, signal := range []eviction.Signal{eviction.NodeFsAvailable, eviction.ImageFsAvailable, eviction.PIDAvailable} {
		if o := seen[signal]; o.Available <= 0 || o.Capacity < o.Available {
			t.Errorf("%s: %+v", signal, o)
		}
	}
}
