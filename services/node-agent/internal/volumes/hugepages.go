package volumes

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
)

// mountHugePages mounts a file system of pages of that size on the volume's directory,
// once, and tells whether it did. Without a size it is the only one that the pod asks for.
func mountHugePages(r *request, size string) (fresh bool, err error) {
	sizes := pageSizes(r.pod)
	switch {
	case size == "" && len(sizes) == 0:
		return false, fmt.Errorf("the medium HugePages needs a container that requests huge pages")
	case size == "" && len(sizes) > 1:
		return false, fmt.Errorf("the medium HugePages needs pages of one size; the pod requests %s", strings.Join(sets.List(sizes), " and "))
	case size == "":
		size, _ = sizes.PopAny()
	case !sizes.Has(size):
		return false, fmt.Errorf("no container of the pod requests huge pages of %s, which the medium names", size)
	}
	bytes, err := resource.ParseQuantity(size)
	if err != nil {
		return false, fmt.Errorf("the size of huge pages %q: %w", size, err)
	}
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return false, err
	}
	mounted, err := isMountPoint(r.dir)
	if err != nil || mounted {
		return false, err
	}
	options := fmt.Sprintf("pagesize=%d", bytes.Value())
	if limit := r.volume.EmptyDir.SizeLimit; limit != nil && limit.Sign() > 0 {
		options += fmt.Sprintf(",size=%d", limit.Value())
	}
	if err := unix.Mount("nodev", r.dir, "hugetlbfs", 0, options); err != nil {
		return false, fmt.Errorf("mounting huge pages of %s on %s: %w", size, r.dir, err)
	}
	return true, nil
}

// pageSizes are those of the huge pages that the pod's containers request.
func pageSizes(pod *corev1.Pod) sets.Set[string] {
	out := sets.New[string]()
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range list {
			for name, amount := range c.Resources.Requests {
				if size, huge := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix); huge && !amount.IsZero() {
					out.Insert(size)
				}
			}
		}
	}
	return out
}
