package eviction_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sampan-io/sampan/services/node-agent/internal/eviction"
	"github.com/sampan-io/sampan/services/node-agent/internal/status"
)

type fakePods struct {
	pods    []*corev1.Pod
	evicted map[types.UID]status.End
}

func (f *fakePods) Pods() []*corev1.Pod                 { return f.pods }
func (f *fakePods) Runs(types.UID) bool                 { return false }
func (f *fakePods) Evict(uid types.UID, end status.End) { f.evicted[uid] = end }

func podWithLimit(uid types.UID, limit string) *corev1.Pod {
	quantity := resource.MustParse(limit)
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{
		{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &quantity}}},
	}}}
}

// fakeDisk has volumes in a folder, and sizes of containers by pod.
type fakeDisk struct {
	root       string
	containers map[types.UID]int64
}

func (d fakeDisk) EmptyDir(uid types.UID, _ string) string { return filepath.Join(d.root, string(uid)) }

func (d fakeDisk) Container(_ context.Context, pod *corev1.Pod, _ string) int64 {
	return d.containers[pod.UID]
}

func TestPodsOverTheirLimitsOfLocalStorageGoAlone(t *testing.T) {
	disk := fakeDisk{root: t.TempDir(), containers: map[types.UID]int64{"writes": 300 << 10, "both": 80 << 10, "modest": 20 << 10}}
	for uid, bytes := range map[string]int{"big": 300 << 10, "small": 1 << 10, "both": 80 << 10} {
		dir := filepath.Join(disk.root, uid, "sub")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "file"), make([]byte, bytes), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	limited := func(uid types.UID) *corev1.Pod {
		pod := podWithLimit(uid, "1Mi")
		pod.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("128Ki")},
		}}}
		return pod
	}
	pods := &fakePods{evicted: map[types.UID]status.End{}, pods: []*corev1.Pod{
		podWithLimit("big", "100Ki"), podWithLimit("small", "100Ki"), podWithLimit("absent", "100Ki"), limited("writes"), limited("both"), limited("modest"),
	}}
	watch := &eviction.LocalStorage{Pods: pods, Disk: disk, Evicted: func(*corev1.Pod, eviction.Signal, string) {}, Log: slog.New(slog.DiscardHandler)}
	watch.Check(t.Context())
	want := map[types.UID]string{
		"big":    `Usage of EmptyDir volume "v" exceeds the limit "100Ki". `,
		"writes": "Pod ephemeral local storage usage exceeds the total limit of containers 128Ki. ",
		"both":   "Pod ephemeral local storage usage exceeds the total limit of containers 128Ki. ",
	}
	for uid, message := range want {
		if end := pods.evicted[uid]; end.Message != message || end.Reason != "Evicted" {
			t.Errorf("%s: %+v", uid, end)
		}
	}
	if len(pods.evicted) != len(want) {
		t.Errorf("evicted %+v", pods.evicted)
	}
}
