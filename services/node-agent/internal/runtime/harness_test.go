package runtime_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/cgroups"
	"github.com/sampan-io/sampan/services/node-agent/internal/network"
	"github.com/sampan-io/sampan/services/node-agent/internal/runtime"
)

// isolated marks the test process that has network and mount namespaces of its own, so
// that nothing that a test makes there outlives it or meets the host's.
const isolated = "SAMPAN_TEST_ISOLATED"

func TestMain(m *testing.M) {
	if config := os.Getenv(serverConfig); config != "" {
		os.Exit(runServer(config))
	}
	if os.Getuid() != 0 || os.Getenv(isolated) != "" {
		os.Exit(runIsolated(m))
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), isolated+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS}
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func runIsolated(m *testing.M) int {
	if os.Getuid() == 0 {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			fmt.Fprintln(os.Stderr, "making mounts private:", err)
			return 1
		}
		if err := network.LoopbackUp(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	defer func() {
		_ = os.Remove(filepath.Join(os.TempDir(), fmt.Sprintf("sampan-test-image-%d.tar", os.Getpid())))
	}()
	return m.Run()
}

// tools finds what the runtime drives, or skips the test.
func tools(t testing.TB) (runc, conmon, cni string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: containers, mounts and namespaces")
	}
	bin := binDir(t)
	runc = filepath.Join(bin, "runc")
	if _, err := os.Stat(runc); err != nil {
		if runc, err = exec.LookPath("runc"); err != nil {
			t.Skip("needs runc: run scripts/build-runc.sh")
		}
	}
	cni = filepath.Join(bin, "cni")
	if _, err := os.Stat(filepath.Join(cni, "bridge")); err != nil {
		t.Skip("needs the CNI plugins: run scripts/build-cni.sh")
	}
	conmon, err := exec.LookPath("conmon")
	if err != nil {
		t.Skip("needs conmon: apt-get install conmon")
	}
	return runc, conmon, cni
}

// binDir is the repository's, which SAMPAN_BIN overrides.
func binDir(t testing.TB) string {
	t.Helper()
	if dir := os.Getenv("SAMPAN_BIN"); dir != "" {
		return dir
	}
	dir, err := filepath.Abs("../../../../bin")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

const image = "registry.test/tool:v1"

// node is one runtime with its directories.
type node struct {
	*runtime.Server
	t      testing.TB
	cfg    runtime.Config
	cancel context.CancelFunc
	ended  chan error
}

// newNode starts a runtime that has the test image and a pod network of its own.
func newNode(t testing.TB) *node {
	t.Helper()
	n := &node{t: t, cfg: newConfig(t)}
	n.start()
	t.Cleanup(n.destroy)
	if _, err := n.Images().Import(t.Context(), testArchive(t)); err != nil {
		t.Fatal(err)
	}
	return n
}

func newConfig(t testing.TB) runtime.Config {
	t.Helper()
	runc, conmon, cni := tools(t)
	dir := t.TempDir()
	// The root of a pod with its own user namespace has to come through.
	if err := os.Chmod(filepath.Dir(dir), 0o711); err != nil {
		t.Fatal(err)
	}
	conf := filepath.Join(dir, "cni-conf")
	bridge := network.BridgeConfig{
		Bridge: "cni-test0", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.77.0.0/24")}, DataDir: filepath.Join(dir, "cni-data"),
	}
	if err := network.WriteBridgeConfig(conf, bridge); err != nil {
		t.Fatal(err)
	}
	return runtime.Config{
		Root: filepath.Join(dir, "root"), Run: filepath.Join(dir, "run"), Runc: runc, Conmon: conmon,
		Network:      network.Config{PluginDirs: []string{cni}, ConfDir: conf},
		CgroupParent: fmt.Sprintf("/sampan-test-%d", os.Getpid()),
		PIDsLimit:    200,
		Pause:        pauseProgram(t),
		Log:          slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func pauseProgram(t testing.TB) string {
	path := filepath.Join(binDir(t), "pause")
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

func (n *node) start() {
	n.t.Helper()
	server, err := runtime.New(n.cfg)
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	n.Server, n.cancel, n.ended = server, cancel, make(chan error, 1)
	go func(ended chan error) { ended <- server.Run(ctx) }(n.ended)
}

// stop ends the runtime, not its containers.
func (n *node) stop() {
	n.t.Helper()
	if n.ended == nil {
		return
	}
	n.cancel()
	if err := <-n.ended; err != nil {
		n.t.Errorf("running the runtime: %v", err)
	}
	n.ended = nil
}

// destroy removes all sandboxes and checks that nothing is left of them.
func (n *node) destroy() {
	n.t.Helper()
	ctx := context.Background()
	list, err := n.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		n.t.Error(err)
	}
	for _, sandbox := range list.GetItems() {
		if _, err := n.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sandbox.GetId()}); err != nil {
			n.t.Errorf("removing sandbox %s: %v", sandbox.GetId(), err)
		}
	}
	n.stop()
	assertNothingLeft(n.t, n.cfg)
	if err := cgroups.Detect().Remove(n.cfg.CgroupParent); err != nil {
		n.t.Error(err)
	}
}

// assertNothingLeft looks for mounts, processes, addresses and files of containers.
func assertNothingLeft(t testing.TB, cfg runtime.Config) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, cfg.Run) || strings.Contains(line, cfg.Root) {
			t.Errorf("a mount is left: %s", line)
		}
	}
	pids, err := cgroups.Detect().PIDs(cfg.CgroupParent)
	if err != nil || len(pids) > 0 {
		t.Errorf("processes are left: %v %v", pids, err)
	}
	for _, dir := range []string{"run/containers", "run/sandboxes", "run/runc", "run/exits", "run/exec", "root/containers", "root/sandboxes", "root/writable"} {
		entries, err := os.ReadDir(filepath.Join(filepath.Dir(cfg.Root), dir))
		if err != nil {
			t.Error(err)
		}
		for _, entry := range entries {
			t.Errorf("%s/%s is left", dir, entry.Name())
		}
	}
	eventually(t, "the end of all monitors", func() bool { return !processWith(t, cfg.Run) })
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if link.Type() == "veth" {
			t.Errorf("interface %s is left", link.Attrs().Name)
		}
	}
	addresses, err := filepath.Glob(filepath.Join(filepath.Dir(cfg.Root), "cni-data", "*", "10.*"))
	if err != nil || len(addresses) > 0 {
		t.Errorf("addresses are left: %v %v", addresses, err)
	}
}

// processWith tells whether a process has the path in its arguments.
func processWith(t testing.TB, path string) bool {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if data, err := os.ReadFile(file); err == nil && strings.Contains(string(data), path+"/") {
			return true
		}
	}
	return false
}

// testArchive is a docker archive of the test image, made once a run.
func testArchive(t testing.TB) string {
	t.Helper()
	path := filepath.Join(os.TempDir(), fmt.Sprintf("sampan-test-image-%d.tar", os.Getpid()))
	if _, err := os.Stat(path); err == nil {
		return path
	}
	tag, err := name.NewTag(image)
	if err != nil {
		t.Fatal(err)
	}
	if err := tarball.WriteToFile(path, tag, testImage(t)); err != nil {
		t.Fatal(err)
	}
	return path
}

func testImage(t testing.TB) v1.Image {
	t.Helper()
	return newImage(t, []tarEntry{
		{name: "tool", mode: 0o755, data: toolBinary(t)},
		{name: "etc/passwd", mode: 0o644, data: []byte("root:x:0:0:root:/root:/bin/sh\nalice:x:1001:1002::/home/alice:/bin/sh\n")},
		{name: "etc/group", mode: 0o644, data: []byte("root:x:0:\nalice:x:1002:\nextra:x:1500:alice\n")},
	})
}

type tarEntry struct {
	name string
	mode int64
	data []byte
	kind byte
	link string
}

func newImage(t testing.TB, entries []tarEntry) v1.Image {
	t.Helper()
	data := tarOf(t, entries)
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }, tarball.WithCompressionLevel(gzip.BestSpeed))
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	img, err = mutate.Config(img, v1.Config{Entrypoint: []string{"/tool"}, Cmd: []string{"forever"}, Env: []string{"FROM_IMAGE=yes"}})
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func tarOf(t testing.TB, entries []tarEntry) []byte {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, entry := range entries {
		kind := entry.kind
		if kind == 0 {
			kind = tar.TypeReg
		}
		header := &tar.Header{Name: entry.name, Mode: entry.mode, Size: int64(len(entry.data)), Typeflag: kind, Linkname: entry.link}
		if err := tw.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write(entry.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// toolBinary builds the image's program.
func toolBinary(t testing.TB) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tool")
	cmd := exec.Command("go", "build", "-ldflags", "-s -w", "-o", path, "./testdata/tool")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building the test image's program: %v\n%s", err, out)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// deadline is how long a test waits for what must come.
const deadline = 20 * time.Second

// eventually waits for a condition that only files or foreign processes tell.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	end := time.Now().Add(deadline)
	for !condition() {
		if time.Now().After(end) {
			t.Fatalf("timed out waiting for %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
