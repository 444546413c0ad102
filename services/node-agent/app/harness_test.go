package app_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
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
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/sampan-io/sampan/services/internal/pki"
	"github.com/sampan-io/sampan/services/internal/testenv"
	"github.com/sampan-io/sampan/services/node-agent/internal/namespaces"
	"github.com/sampan-io/sampan/services/node-agent/internal/network"
)

const (
	nodeName  = "worker"
	toolImage = "registry.test/tool:v1"
)

// site is an API server and a node agent, alone in a network namespace.
type site struct {
	t      *testing.T
	dir    string
	root   string // of the agent
	run    string
	ns     string // path of the network namespace
	cgroup string
	api    *testenv.APIServer
	client kubernetes.Interface
	flags  []string
	agent  *exec.Cmd
	others []*exec.Cmd // ended after the agent

	work chan func() error // to be run in the namespace
	done chan error
}

// newSite starts both and waits until the node is ready. They end with the test,
// and nothing may be left of them then.
func newSite(t *testing.T, flags ...string) *site {
	t.Helper()
	return newSiteIn(t, "", flags...)
}

// newSiteIn is newSite with the agent's directory given, which may be a file system
// of its own.
func newSiteIn(t *testing.T, root string, flags ...string) *site {
	t.Helper()
	s := newIdleSite(t, root, flags...)
	s.startAgent()
	s.waitReady()
	return s
}

// newIdleSite is newSiteIn without an agent.
func newIdleSite(t *testing.T, root string, flags ...string) *site {
	t.Helper()
	if _, err := testenv.Bin(); err != nil {
		t.Skip(err)
	}
	if _, err := exec.LookPath("conmon"); err != nil {
		t.Skip("needs conmon: apt-get install conmon")
	}
	s := &site{t: t, dir: t.TempDir(), run: fmt.Sprintf("/run/sampan-agent-%d-%d", os.Getpid(), time.Now().UnixNano()%100000)}
	s.cgroup = "/" + filepath.Base(s.run)
	if s.root = root; root == "" {
		s.root = filepath.Join(s.dir, "node")
	}
	s.flags = flags
	pins := filepath.Join(s.run, "ns")
	if err := os.MkdirAll(pins, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := namespaces.Create(pins, []namespaces.Kind{namespaces.Network}, network.LoopbackUp); err != nil {
		t.Fatal(err)
	}
	s.ns = filepath.Join(pins, string(namespaces.Network))
	t.Cleanup(s.destroy)
	s.startAPI()
	s.offerImage()
	s.credentials()
	return s
}

// inside runs fn on a thread in the namespace that lives as long as the test:
// programs that are to end with their parent end with its thread.
func (s *site) inside(fn func() error) {
	s.t.Helper()
	if s.work == nil {
		s.work = make(chan func() error)
		s.done = make(chan error)
		go func() {
			_ = namespaces.Do(s.ns, namespaces.Network, func() error {
				for fn := range s.work {
					s.done <- fn()
				}
				return nil
			})
		}()
	}
	s.work <- fn
	if err := <-s.done; err != nil {
		s.t.Fatal(err)
	}
}

// dial connects to what listens in the namespace.
func (s *site) dial(ctx context.Context, network, address string) (net.Conn, error) {
	var conn net.Conn
	err := namespaces.Do(s.ns, namespaces.Network, func() error {
		var err error
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

func (s *site) startAPI() {
	s.t.Helper()
	data := filepath.Join(s.dir, "data")
	if err := os.MkdirAll(data, 0o700); err != nil {
		s.t.Fatal(err)
	}
	file := func(name string) string { return filepath.Join(s.dir, name) }
	api, err := testenv.NewAPIServer(s.dir, data, "--authorization-mode=Node,RBAC", "--kubelet-preferred-address-types=InternalIP",
		"--kubelet-client-certificate="+file("kubelet-client.crt"), "--kubelet-client-key="+file("kubelet-client.key"))
	if err != nil {
		s.t.Fatal(err)
	}
	authority, err := pki.LoadAuthority(file("ca.crt"), file("ca.key"))
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := authority.Ensure(file("kubelet-client.crt"), file("kubelet-client.key"), pki.Request{CommonName: "kube-apiserver-kubelet-client", Client: true}); err != nil {
		s.t.Fatal(err)
	}
	api.Config.Dial = s.dial
	if api.Client, err = kubernetes.NewForConfig(api.Config); err != nil {
		s.t.Fatal(err)
	}
	s.api, s.client = api, api.Client
	s.inside(func() error { return api.Start(s.t.Context()) })
	ctx := s.t.Context()
	// What the controllers would make.
	for _, namespace := range []string{metav1.NamespaceDefault} {
		_, err := s.client.CoreV1().ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
		if err != nil {
			s.t.Fatal(err)
		}
		_, err = s.client.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "kube-root-ca.crt"}, Data: map[string]string{"ca.crt": "authority"},
		}, metav1.CreateOptions{})
		if err != nil {
			s.t.Fatal(err)
		}
	}
}

// kubectl runs the real kubectl as the administrator.
func (s *site) kubectl(args ...string) (string, error) {
	s.t.Helper()
	bin, _ := testenv.Bin()
	cmd := exec.Command(filepath.Join(bin, "kubectl"), append([]string{"--kubeconfig=" + filepath.Join(s.dir, "admin.kubeconfig")}, args...)...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	var err error
	s.inside(func() error {
		if err = cmd.Run(); err != nil {
			err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, errOut.String())
		}
		return nil
	})
	return out.String(), err
}

// credentials makes the agent's identity, and the administrator's.
func (s *site) credentials() {
	s.t.Helper()
	authority, err := pki.LoadAuthority(filepath.Join(s.dir, "ca.crt"), filepath.Join(s.dir, "ca.key"))
	if err != nil {
		s.t.Fatal(err)
	}
	pair, err := authority.Issue(pki.Request{CommonName: "system:node:" + nodeName, Organizations: []string{"system:nodes"}, Client: true})
	if err != nil {
		s.t.Fatal(err)
	}
	admin := &pki.KeyPair{Certificate: s.api.Config.CertData, Key: s.api.Config.KeyData}
	for user, pair := range map[string]*pki.KeyPair{"agent": pair, "admin": admin} {
		config := pki.Kubeconfig{Server: s.api.Config.Host, Cluster: "test", User: user, AuthorityFile: filepath.Join(s.dir, "ca.crt"), KeyPair: pair}
		if err := config.Write(filepath.Join(s.dir, user+".kubeconfig")); err != nil {
			s.t.Fatal(err)
		}
	}
}

// startAgent runs the agent's program.
func (s *site) startAgent() {
	s.t.Helper()
	log, err := os.OpenFile(filepath.Join(s.dir, "agent.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	args := append([]string{
		"--kubeconfig=" + filepath.Join(s.dir, "agent.kubeconfig"), "--hostname-override=" + nodeName, "--node-ip=127.0.0.1",
		"--root-dir=" + s.root, "--run-dir=" + s.run, "--cgroup-root=" + s.cgroup, "--client-ca-file=" + filepath.Join(s.dir, "ca.crt"),
		"--cluster-dns=10.96.0.10", "--container-log-max-size=64Ki", "--container-log-max-files=3",
		"--eviction-hard=memory.available<50Mi", // how full the machine's disk is does not matter here
	}, s.flags...)
	bin, _ := testenv.Bin()
	s.agent = exec.Command(filepath.Join(bin, "node-agent"), args...)
	s.agent.Stdout, s.agent.Stderr = log, log
	s.agent.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	s.inside(s.agent.Start)
}

// kill ends the agent with SIGKILL.
func (s *site) kill() {
	s.t.Helper()
	if err := s.agent.Process.Kill(); err != nil {
		s.t.Fatal(err)
	}
	_ = s.agent.Wait()
}

func (s *site) waitReady() {
	s.t.Helper()
	s.waitNode()
	s.eventually("the image to be imported", func() error {
		if !strings.Contains(s.log(), toolImage) {
			return errors.New("the agent has not told of it")
		}
		return nil
	})
}

// waitNode waits until the node is registered and ready.
func (s *site) waitNode() {
	s.t.Helper()
	ctx := s.t.Context()
	s.eventually("the node to be registered", func() error {
		_, err := s.client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
		return err
	})
	patch := []byte(`{"spec":{"podCIDR":"10.99.0.0/24","podCIDRs":["10.99.0.0/24"]}}`)
	if _, err := s.client.CoreV1().Nodes().Patch(ctx, nodeName, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		s.t.Fatal(err)
	}
	s.eventually("the node to be ready", func() error {
		node, err := s.client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("conditions %+v", node.Status.Conditions)
	})
}

// eventually waits for a condition and shows the agent's log when it never comes.
func (s *site) eventually(what string, condition func() error) {
	s.t.Helper()
	s.within(30*time.Second, what, condition)
}

func (s *site) within(limit time.Duration, what string, condition func() error) {
	s.t.Helper()
	deadline := time.Now().Add(limit)
	for {
		err := condition()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("waiting for %s: %v\n%s", what, err, s.log())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (s *site) log() string {
	data, _ := os.ReadFile(filepath.Join(s.dir, "agent.log"))
	return string(data[max(0, len(data)-6000):])
}

// apply creates a pod from YAML, bound to the node.
func (s *site) apply(text string) *corev1.Pod {
	s.t.Helper()
	pod := &corev1.Pod{}
	if err := yaml.UnmarshalStrict([]byte(text), pod); err != nil {
		s.t.Fatal(err)
	}
	pod.Spec.NodeName = nodeName
	created, err := s.client.CoreV1().Pods(metav1.NamespaceDefault).Create(s.t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatalf("creating pod %s: %v", pod.Name, err)
	}
	return created
}

func (s *site) pod(name string) (*corev1.Pod, error) {
	return s.client.CoreV1().Pods(metav1.NamespaceDefault).Get(s.t.Context(), name, metav1.GetOptions{})
}

// until waits for the pod to be as wanted, and returns it.
func (s *site) until(name, what string, wanted func(pod *corev1.Pod) bool) *corev1.Pod {
	s.t.Helper()
	var last *corev1.Pod
	s.eventually("pod "+name+" "+what, func() error {
		pod, err := s.pod(name)
		if err != nil {
			return err
		}
		last = pod
		if wanted(pod) {
			return nil
		}
		text, _ := yaml.Marshal(pod.Status)
		return fmt.Errorf("status:\n%s", text)
	})
	return last
}

func (s *site) remove(name string) {
	s.t.Helper()
	if err := s.client.CoreV1().Pods(metav1.NamespaceDefault).Delete(s.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) gone(name string) {
	s.t.Helper()
	s.eventually("pod "+name+" to be gone", func() error {
		pod, err := s.pod(name)
		if err != nil {
			return nil
		}
		return fmt.Errorf("its phase is %s, it is to be deleted at %v", pod.Status.Phase, pod.DeletionTimestamp)
	})
}

// logs reads a container's log through the API server and the agent.
func (s *site) logs(pod string, options corev1.PodLogOptions) string {
	s.t.Helper()
	var stream io.ReadCloser
	s.eventually("logs of "+pod, func() error { // an agent that was just started may not serve yet
		var err error
		stream, err = s.client.CoreV1().Pods(metav1.NamespaceDefault).GetLogs(pod, &options).Stream(s.t.Context())
		if err != nil && strings.Contains(err.Error(), "connection refused") {
			return err
		}
		if err != nil {
			s.t.Fatalf("logs of %s: %v\n%s", pod, err, s.log())
		}
		return nil
	})
	defer func() { _ = stream.Close() }()
	data, err := io.ReadAll(stream)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(data)
}

// logged waits until a running container has written what is wanted; ready says
// nothing about what it has printed.
func (s *site) logged(pod string, options corev1.PodLogOptions, wanted func(log string) bool) string {
	s.t.Helper()
	var log string
	s.eventually("the log of "+pod, func() error {
		if log = s.logs(pod, options); !wanted(log) {
			return fmt.Errorf("it is %q", log)
		}
		return nil
	})
	return log
}

// events are the reasons and messages of what the pod was told.
func (s *site) events(pod string) []string {
	s.t.Helper()
	list, err := s.client.CoreV1().Events(metav1.NamespaceDefault).List(s.t.Context(), metav1.ListOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	var out []string
	for _, event := range list.Items {
		if event.InvolvedObject.Name == pod {
			out = append(out, event.Reason+": "+event.Message)
		}
	}
	return out
}

func running(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning }

func ready(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// destroy deletes all pods, ends both programs, and checks that nothing is left.
func (s *site) destroy() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if s.agent != nil && s.agent.ProcessState == nil {
		zero := int64(0)
		pods, err := s.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
		if err == nil {
			for _, pod := range pods.Items {
				_ = s.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &zero})
			}
		}
		s.assertNothingLeft()
		_ = s.agent.Process.Signal(syscall.SIGTERM)
		_ = s.agent.Wait()
	}
	for _, program := range s.others {
		if program.ProcessState == nil {
			_ = program.Process.Signal(syscall.SIGTERM)
			_ = program.Wait()
		}
	}
	if s.api != nil {
		s.api.Kill()
	}
	if s.t.Failed() {
		s.t.Logf("the agent's log:\n%s", s.log())
	}
	groups, _ := filepath.Glob("/sys/fs/cgroup/*" + s.cgroup) // the pattern is fine
	for _, group := range append(groups, "/sys/fs/cgroup"+s.cgroup) {
		removeGroups(group)
	}
	_ = unix.Unmount(s.ns, unix.MNT_DETACH)
	_ = os.RemoveAll(s.run)
}

func removeGroups(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, entry := range entries {
		if entry.IsDir() {
			removeGroups(filepath.Join(dir, entry.Name()))
		}
	}
	_ = os.Remove(dir)
}

// assertNothingLeft waits until no pod has left anything on the node.
func (s *site) assertNothingLeft() {
	s.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		left := s.leftovers()
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			s.t.Errorf("left after all pods were deleted:\n%s\n%s", strings.Join(left, "\n"), s.log())
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (s *site) leftovers() []string {
	var left []string
	for _, pattern := range []string{
		filepath.Join(s.root, "pods", "*"), filepath.Join(s.root, "logs", "*"), filepath.Join(s.root, "sandboxes", "*"),
		filepath.Join(s.root, "containers", "*"), filepath.Join(s.root, "writable", "*"), filepath.Join(s.root, "cni-data", "*", "10.*"),
		filepath.Join(s.run, "containers", "*"), filepath.Join(s.run, "sandboxes", "*"),
		"/sys/fs/cgroup/*" + s.cgroup + "/kubepods/*/pod*", "/sys/fs/cgroup/*" + s.cgroup + "/kubepods/pod*",
	} {
		found, _ := filepath.Glob(pattern)
		left = append(left, found...)
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, s.dir+"/") {
			left = append(left, line)
		}
	}
	return left
}

// offerImage puts the test image where the agent imports it from.
func (s *site) offerImage() {
	s.t.Helper()
	dir := filepath.Join(s.root, "images", "import")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		s.t.Fatal(err)
	}
	tag, err := name.NewTag(toolImage)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := tarball.WriteToFile(filepath.Join(dir, "tool.tar"), tag, newToolImage(s.t)); err != nil {
		s.t.Fatal(err)
	}
}

func newToolImage(t *testing.T) v1.Image {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "tool")
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", binary, ".")
	build.Dir = "../internal/runtime/testdata/tool"
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the test program: %v\n%s", err, out)
	}
	program, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for _, entry := range []struct {
		name string
		mode int64
		data []byte
	}{{"tool", 0o755, program}, {"etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/sh\n")}} {
		if err := w.WriteHeader(&tar.Header{Name: entry.name, Mode: entry.mode, Size: int64(len(entry.data))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(entry.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	made, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	image, err := mutate.AppendLayers(empty.Image, made)
	if err != nil {
		t.Fatal(err)
	}
	image, err = mutate.Config(image, v1.Config{Entrypoint: []string{"/tool"}, Cmd: []string{"forever"}})
	if err != nil {
		t.Fatal(err)
	}
	return image
}
