package eviction_test

import (
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
func (f *fakePods) Evict(uid types.UID, end status.End) { f.evicted[uid] = end }

func podWithLimit(uid types.UID, limit string) *corev1.Pod {
	quantity := resource.MustParse(limit)
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{
		{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &quantity}}},
	}}}
}

func TestVolumeOverItsLimitEvictsItsPodAlone(t *testing.T) {
	root := t.TempDir()
	for uid, bytes := range map[string]int{"big": 300 << 10, "small": 1 << 10} {
		dir := filepath.Join(root, uid, "sub")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "file"), make([]byte, bytes), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	pods := &fakePods{pods: []*corev1.Pod{podWithLimit("big", "100Ki"), podWithLimit("small", "100Ki"), podWithLimit("absent", "100Ki")}, evicted: map[types.UID]status.End{}}
	watch := &eviction.VolumeWatch{
		Pods: pods, Dir: func(uid types.UID, _ string) string { return filepath.Join(root, string(uid)) },
		Evicted: func(*corev1.Pod, string) {}, Log: slog.New(slog.DiscardHandler),
	}
	watch.Check(t.Context())
	if len(pods.evicted) != 1 || pods.evicted["big"].Message != `Usage of EmptyDir volume "v" exceeds the limit "100Ki". ` || pods.evicted["big"].Reason != "Evicted" {
		t.Errorf("evicted %+v", pods.evicted)
	}
}
