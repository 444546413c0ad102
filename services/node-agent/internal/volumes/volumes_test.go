package volumes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func nothing(string) error { return nil }

func files(pairs ...string) fileSet {
	set := fileSet{}
	for i := 0; i < len(pairs); i += 2 {
		set[pairs[i]] = file{data: []byte(pairs[i+1]), mode: 0o644}
	}
	return set
}

func visible(t *testing.T, dir string) string {
	t.Helper()
	var out []string
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), "..") {
			continue
		}
		out = append(out, entry.Name())
	}
	return strings.Join(out, " ")
}

func TestAtomicWriterReplacesAll(t *testing.T) {
	dir := t.TempDir()
	w := atomicWriter{dir: dir, prepare: nothing}
	for _, step := range []struct {
		files fileSet
		names string
		read  map[string]string
	}{
		{files("a", "1", "sub/b", "2"), "a sub", map[string]string{"a": "1", "sub/b": "2"}},
		{files("a", "1", "sub/c", "3"), "a sub", map[string]string{"a": "1", "sub/c": "3"}},
		{files("z", "9"), "z", map[string]string{"z": "9"}},
		{fileSet{}, "", nil},
	} {
		if err := w.Write(step.files); err != nil {
			t.Fatal(err)
		}
		if got := visible(t, dir); got != step.names {
			t.Errorf("visible are %q, want %q", got, step.names)
		}
		for path, want := range step.read {
			if data, err := os.ReadFile(filepath.Join(dir, path)); err != nil || string(data) != want {
				t.Errorf("%s holds %q, %v; want %q", path, data, err, want)
			}
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		hidden := 0
		for _, entry := range entries {
			if strings.HasPrefix(entry.Name(), "..") {
				hidden++
			}
		}
		if hidden != 2 {
			t.Errorf("%d hidden entries, want the link and one directory", hidden)
		}
	}
}

func TestAtomicWriterLeavesEqualFilesAlone(t *testing.T) {
	dir := t.TempDir()
	w := atomicWriter{dir: dir, prepare: nothing}
	if err := w.Write(files("a", "1")); err != nil {
		t.Fatal(err)
	}
	before, err := os.Readlink(filepath.Join(dir, dataLink))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(files("a", "1")); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Readlink(filepath.Join(dir, dataLink)); err != nil || after != before {
		t.Errorf("the data moved from %s to %s, %v", before, after, err)
	}
}

func TestAtomicWriterRefusesPathsThatLeave(t *testing.T) {
	w := atomicWriter{dir: t.TempDir(), prepare: nothing}
	for _, path := range []string{"", "/etc/passwd", "../x", "a/../../x", "..data", "..hidden", strings.Repeat("x", 300)} {
		if err := w.Write(files(path, "x")); err == nil {
			t.Errorf("%q was written", path)
		}
	}
}

func TestAtomicWriterShowsOldOrNew(t *testing.T) {
	dir := t.TempDir()
	w := atomicWriter{dir: dir, prepare: nothing}
	version := func(n int) fileSet { return files("a", fmt.Sprint(n), "b", fmt.Sprint(n)) }
	if err := w.Write(version(0)); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 1; n < 200; n++ {
			if err := w.Write(version(n)); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for {
		select {
		case <-done:
			return
		default:
		}
		// Through one opened directory, as a careful reader does it.
		at, err := os.Open(filepath.Join(dir, dataLink))
		if errors.Is(err, os.ErrNotExist) {
			continue // the old files went between following the link and opening them
		}
		if err != nil {
			t.Fatal(err)
		}
		read := func(name string) string {
			fd, err := unix.Openat(int(at.Fd()), name, unix.O_RDONLY, 0)
			if err != nil {
				return ""
			}
			f := os.NewFile(uintptr(fd), name)
			defer func() { _ = f.Close() }()
			buf := make([]byte, 8)
			n, _ := f.Read(buf)
			return string(buf[:n])
		}
		a, b := read("a"), read("b")
		if a != "" && b != "" && a != b {
			t.Fatalf("a is of version %s, b of %s", a, b)
		}
		_ = at.Close()
	}
}

// fakeObjects can be changed while they are used.
type fakeObjects struct {
	mu   sync.Mutex
	maps map[string]map[string]string
}

func (f *fakeObjects) set(name string, data map[string]string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.maps[name] = data
}

func (f *fakeObjects) ConfigMap(_ context.Context, _, name string) (*corev1.ConfigMap, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	data, ok := f.maps[name]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmap"}, name)
	}
	return &corev1.ConfigMap{Data: data}, nil
}

func (f *fakeObjects) Secret(context.Context, string, string) (*corev1.Secret, error) {
	return nil, errors.New("no secrets here")
}

func newManager(t *testing.T, objects *fakeObjects, failed func(string, error)) *Manager {
	t.Helper()
	m := New(Config{
		Root: t.TempDir(), Objects: objects, Allocatable: func() corev1.ResourceList { return nil }, Log: slog.Default(),
		Failed: func(_ *corev1.Pod, volume string, err error) { failed(volume, err) },
	})
	t.Cleanup(m.Close)
	return m
}

func podWith(volumes ...corev1.Volume) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "uid", Name: "p", Namespace: "ns"}, Spec: corev1.PodSpec{Volumes: volumes}}
}

func configMapVolume(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}}
}

func TestMountWaitsForWhatIsMissingAndFollowsChanges(t *testing.T) {
	objects := &fakeObjects{maps: map[string]map[string]string{}}
	missing := make(chan error, 16)
	m := newManager(t, objects, func(_ string, err error) { missing <- err })
	pod := podWith(configMapVolume("c"))
	mounted := make(chan map[string]Mounted, 1)
	go func() {
		volumes, err := m.Mount(t.Context(), pod)
		if err != nil {
			t.Error(err)
		}
		mounted <- volumes
	}()
	if err := <-missing; err.Error() != `configmap "c" not found` {
		t.Errorf("error %q", err)
	}
	objects.set("c", map[string]string{"k": "one"})
	m.Changed(pod.UID)
	volume := (<-mounted)["c"]
	if !volume.ReadOnly {
		t.Error("a config map's volume is not read-only")
	}
	objects.set("c", map[string]string{"k": "two"})
	m.Changed(pod.UID)
	path := filepath.Join(volume.HostPath, "k")
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		data, err := os.ReadFile(path)
		if err == nil && string(data) == "two" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the file holds %q, %v", data, err)
		}
	}
	if err := m.Remove(t.Context(), pod.UID); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(m.PodDir(pod.UID)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the pod's directory is left: %v", err)
	}
}

func TestMountEndsWithItsContext(t *testing.T) {
	m := newManager(t, &fakeObjects{}, func(string, error) {})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := m.Mount(ctx, podWith(configMapVolume("absent"))); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
}

func TestMountRefusesOtherKindsByName(t *testing.T) {
	told := make(chan error, 4)
	m := newManager(t, &fakeObjects{}, func(_ string, err error) { told <- err })
	for name, source := range map[string]corev1.VolumeSource{
		"nfs":     {NFS: &corev1.NFSVolumeSource{}},
		"iscsi":   {ISCSI: &corev1.ISCSIVolumeSource{}},
		"gitRepo": {GitRepo: &corev1.GitRepoVolumeSource{}},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _, _ = m.Mount(ctx, podWith(corev1.Volume{Name: "v", VolumeSource: source})) }()
		if err, want := <-told, "volumes of kind "+name+" are not supported by this node"; err.Error() != want {
			t.Errorf("error %q, want %q", err, want)
		}
		cancel()
	}
}

func TestHostPathTypes(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path string
		kind corev1.HostPathType
		fail bool
	}{
		{dir, corev1.HostPathUnset, false}, {dir, corev1.HostPathDirectory, false}, {plain, corev1.HostPathDirectory, true},
		{plain, corev1.HostPathFile, false}, {dir, corev1.HostPathFile, true}, {filepath.Join(dir, "new"), corev1.HostPathDirectoryOrCreate, false},
		{filepath.Join(dir, "newfile"), corev1.HostPathFileOrCreate, false}, {filepath.Join(dir, "absent"), corev1.HostPathFile, true},
		{plain, corev1.HostPathSocket, true}, {"/dev/null", corev1.HostPathCharDev, false}, {"/dev/null", corev1.HostPathBlockDev, true}, {plain, "Odd", true},
	} {
		if err := checkHostPath(c.path, c.kind); (err != nil) != c.fail {
			t.Errorf("%s as %q: %v", c.path, c.kind, err)
		}
	}
}

func requireRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts")
	}
}

func TestSubPathNeverLeavesTheVolume(t *testing.T) {
	requireRoot(t)
	m := newManager(t, &fakeObjects{}, func(string, error) {})
	volume, outside := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"abs": outside, "up": "../../../../../../" + outside, "inside": "dir"} {
		if err := os.Symlink(target, filepath.Join(volume, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(volume, "dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Remove(context.Background(), "uid") })
	for index, sub := range []string{"abs", "abs/secret", "up/secret", "../x", "/etc", "dir/../../x"} {
		if path, err := m.SubPath("uid", "v", "c", index, volume, sub); err == nil {
			t.Errorf("%q was mounted at %s", sub, path)
		}
	}
	for index, sub := range []string{"dir", "inside", "made/on/the/way"} {
		if _, err := m.SubPath("uid", "v", "d", index, volume, sub); err != nil {
			t.Errorf("%q: %v", sub, err)
		}
	}
}

// A container swaps a directory for a link while the path is made.
func TestSubPathHoldsWhileLinksAreSwapped(t *testing.T) {
	requireRoot(t)
	m := newManager(t, &fakeObjects{}, func(string, error) {})
	volume, outside := t.TempDir(), t.TempDir()
	stop := make(chan struct{})
	var swapping sync.WaitGroup
	swapping.Go(func() {
		target, link := filepath.Join(volume, "x"), filepath.Join(volume, "link")
		for {
			select {
			case <-stop:
				return
			default:
			}
			_ = os.Mkdir(target, 0o755)
			_ = os.Symlink(outside, link)
			_ = unix.Renameat2(unix.AT_FDCWD, link, unix.AT_FDCWD, target, unix.RENAME_EXCHANGE)
			_ = os.RemoveAll(link)
			_ = os.Remove(target)
		}
	})
	t.Cleanup(func() { _ = m.Remove(context.Background(), "uid") })
	for range 300 {
		path, err := m.SubPath("uid", "v", "c", 0, volume, "x/made")
		if err != nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(path, "mark"), nil, 0o644); err != nil {
			continue // it was removed meanwhile
		}
	}
	close(stop)
	swapping.Wait()
	entries, err := os.ReadDir(outside)
	if err != nil || len(entries) > 0 {
		t.Errorf("outside of the volume there is %v, %v", entries, err)
	}
}

func TestMemoryVolumesAreLimitedAndGoAway(t *testing.T) {
	requireRoot(t)
	m := newManager(t, &fakeObjects{}, func(name string, err error) { t.Errorf("%s: %v", name, err) })
	limit := newQuantity("1Mi")
	group := int64(4321)
	pod := podWith(corev1.Volume{Name: "mem", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: limit}}})
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
	volumes, err := m.Mount(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	path := volumes["mem"].HostPath
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil || stat.Gid != uint32(group) || stat.Mode&unix.S_ISGID == 0 {
		t.Errorf("group %d, mode %o, %v", stat.Gid, stat.Mode, err)
	}
	if err := os.WriteFile(filepath.Join(path, "big"), make([]byte, 2<<20), 0o644); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("writing more than the limit: %v", err)
	}
	if err := m.Remove(t.Context(), pod.UID); err != nil {
		t.Fatal(err)
	}
	if mounted, err := isMountPoint(path); err != nil || mounted {
		t.Errorf("still mounted: %v %v", mounted, err)
	}
}

func newQuantity(text string) *resource.Quantity {
	q := resource.MustParse(text)
	return &q
}
