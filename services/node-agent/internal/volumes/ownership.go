package volumes

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

func fsGroup(pod *corev1.Pod) *int64 {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	return pod.Spec.SecurityContext.FSGroup
}

// own gives a tree to the group, with the rights to read it and, unless it is
// read-only, to write it; new files inherit the group.
func own(root string, group *int64, readOnly bool) error {
	if group == nil {
		return nil
	}
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.Type()&fs.ModeSymlink != 0 {
			return os.Lchown(path, -1, int(*group))
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if err := os.Lchown(path, -1, int(*group)); err != nil {
			return err
		}
		rights := fs.FileMode(0o660)
		if readOnly {
			rights = 0o440
		}
		if entry.IsDir() {
			rights |= 0o110 | fs.ModeSetgid
		}
		return os.Chmod(path, info.Mode()|rights)
	})
}

func splitPath(path string) []string { return strings.Split(path, "/") }
