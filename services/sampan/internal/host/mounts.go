package host

import (
	"errors"
	"fmt"
	"os"
	"sort"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sampan-io/sampan/services/sampan/internal/cluster"
)

// EnsureShared makes the nodes' folder a mount that shares what is mounted
// below it, as pods with mount propagation need.
func EnsureShared(layout cluster.Layout) error {
	dir := layout.Nodes()
	points, err := mountsBelow(dir)
	if err != nil {
		return err
	}
	if len(points) == 0 || points[len(points)-1] != dir {
		if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mounting %s on itself: %w", dir, err)
		}
	}
	if err := unix.Mount("", dir, "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("sharing mounts of %s: %w", dir, err)
	}
	return nil
}

// RemoveMounts unmounts everything below the cluster's folders.
func RemoveMounts(layout cluster.Layout) error {
	var problems []error
	for _, dir := range []string{layout.Nodes(), cluster.RunRoot} {
		points, err := mountsBelow(dir)
		if err != nil {
			return err
		}
		for _, point := range points {
			if err := unix.Unmount(point, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
				problems = append(problems, fmt.Errorf("unmounting %s: %w", point, err))
			}
		}
	}
	if err := os.RemoveAll(cluster.RunRoot); err != nil {
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// mountsBelow are the mount points at and below dir, the deepest first.
func mountsBelow(dir string) ([]string, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("reading mounts: %w", err)
	}
	var points []string
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		point := unescape(fields[4])
		if point == dir || strings.HasPrefix(point, dir+"/") {
			points = append(points, point)
		}
	}
	sort.SliceStable(points, func(i, j int) bool { return len(points[i]) > len(points[j]) })
	return points, nil
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
