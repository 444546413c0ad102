package volumes

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func hugePod(medium corev1.StorageMedium, requests ...corev1.ResourceName) *corev1.Pod {
	pod := podWith(corev1.Volume{Name: "huge", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: medium}}})
	list := corev1.ResourceList{}
	for _, name := range requests {
		list[name] = resource.MustParse("2Mi")
	}
	pod.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: list}}}
	return pod
}

func TestHugePagesAreMountedBySize(t *testing.T) {
	requireRoot(t)
	const sizes = "/sys/kernel/mm/hugepages/hugepages-2048kB"
	if found, err := filepath.Glob(sizes); err != nil || len(found) == 0 {
		t.Skip("needs a kernel with huge pages of 2 MiB")
	}
	m := newManager(t, &fakeObjects{}, func(name string, err error) { t.Errorf("%s: %v", name, err) })
	for _, medium := range []corev1.StorageMedium{corev1.StorageMediumHugePages, "HugePages-2Mi"} {
		pod := hugePod(medium, "hugepages-2Mi")
		for range 2 { // the second time it is there already
			volumes, err := m.Mount(t.Context(), pod)
			if err != nil {
				t.Fatal(err)
			}
			var fs unix.Statfs_t
			if err := unix.Statfs(volumes["huge"].HostPath, &fs); err != nil || fs.Type != unix.HUGETLBFS_MAGIC || fs.Bsize != 2<<20 {
				t.Errorf("%s: file system %x with blocks of %d, %v", medium, fs.Type, fs.Bsize, err)
			}
		}
		if err := m.Remove(t.Context(), pod.UID); err != nil {
			t.Fatal(err)
		}
	}
}

func TestHugePagesThatThePodDoesNotAskForAreRefused(t *testing.T) {
	for _, c := range []struct {
		pod  *corev1.Pod
		want string
	}{
		{hugePod(corev1.StorageMediumHugePages), "needs a container that requests huge pages"},
		{hugePod(corev1.StorageMediumHugePages, "hugepages-1Gi", "hugepages-2Mi"), "pages of one size; the pod requests 1Gi and 2Mi"},
		{hugePod("HugePages-1Gi", "hugepages-2Mi"), "no container of the pod requests huge pages of 1Gi"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		failure := make(chan error, 1)
		m := newManager(t, &fakeObjects{}, func(_ string, err error) {
			select {
			case failure <- err:
			default:
			}
			cancel() // else it is tried again for as long as the pod is there
		})
		if _, err := m.Mount(ctx, c.pod); err == nil {
			t.Fatalf("it was mounted, want %q", c.want)
		}
		if err := <-failure; !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q", err, c.want)
		}
	}
}
