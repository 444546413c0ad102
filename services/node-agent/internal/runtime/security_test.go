package runtime_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func security(fn func(*runtimeapi.LinuxContainerSecurityContext)) func(*runtimeapi.ContainerConfig) {
	return func(config *runtimeapi.ContainerConfig) { fn(config.GetLinux().GetSecurityContext()) }
}

// output runs a container to its end and returns what it wrote.
func (p *pod) output(args []string, edit ...func(*runtimeapi.ContainerConfig)) string {
	p.n.t.Helper()
	c := p.run(args, edit...)
	c.exited()
	var b strings.Builder
	for line := range strings.Lines(c.logText()) {
		if fields := strings.SplitN(line, " ", 4); len(fields) == 4 {
			b.WriteString(fields[3])
		}
	}
	if _, err := p.n.RemoveContainer(p.n.t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: c.id}); err != nil {
		p.n.t.Fatal(err)
	}
	if err := os.Remove(c.log); err != nil {
		p.n.t.Fatal(err)
	}
	return b.String()
}

func TestUserComesFromTheContextTheImageAndItsAccounts(t *testing.T) {
	n := newNode(t)
	p := n.runPod("users")
	tests := map[string]struct {
		edit func(*runtimeapi.LinuxContainerSecurityContext)
		want string
	}{
		"nothing said":       {func(*runtimeapi.LinuxContainerSecurityContext) {}, "0 0 [0]\n"},
		"name":               {func(s *runtimeapi.LinuxContainerSecurityContext) { s.RunAsUsername = "alice" }, "1001 1002 [1002 1500]\n"},
		"number of the file": {func(s *runtimeapi.LinuxContainerSecurityContext) { s.RunAsUser = &runtimeapi.Int64Value{Value: 1001} }, "1001 1002 [1002 1500]\n"},
		"number of no one":   {func(s *runtimeapi.LinuxContainerSecurityContext) { s.RunAsUser = &runtimeapi.Int64Value{Value: 4242} }, "4242 0 [0]\n"},
		"group and more groups": {func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.RunAsUser, s.RunAsGroup = &runtimeapi.Int64Value{Value: 1001}, &runtimeapi.Int64Value{Value: 3000}
			s.SupplementalGroups = []int64{7}
		}, "1001 3000 [7 1500 3000]\n"},
		"strict groups": {func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.RunAsUser, s.SupplementalGroups = &runtimeapi.Int64Value{Value: 1001}, []int64{7}
			s.SupplementalGroupsPolicy = runtimeapi.SupplementalGroupsPolicy_Strict
		}, "1001 1002 [7 1002]\n"},
	}
	for name, test := range tests {
		if got := p.output([]string{"id"}, security(test.edit)); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
	_, err := p.tryCreate([]string{"id"}, security(func(s *runtimeapi.LinuxContainerSecurityContext) { s.RunAsUsername = "nobody-here" }))
	if err == nil {
		t.Error("an unknown user was accepted")
	}
}

func TestCapabilitiesAreWhatIsAskedForAndHeld(t *testing.T) {
	n := newNode(t)
	p := n.runPod("caps")
	read := func(edit func(*runtimeapi.LinuxContainerSecurityContext)) string {
		return field(p.output([]string{"read", "/proc/self/status"}, security(edit)), "CapEff:")
	}
	if got := read(func(*runtimeapi.LinuxContainerSecurityContext) {}); got != "00000000a80425fb" {
		t.Errorf("default capabilities %s", got)
	}
	if got := read(func(s *runtimeapi.LinuxContainerSecurityContext) {
		s.Capabilities = &runtimeapi.Capability{DropCapabilities: []string{"ALL"}, AddCapabilities: []string{"NET_BIND_SERVICE"}}
	}); got != "0000000000000400" {
		t.Errorf("one capability %s", got)
	}
	own := field(mustRead(t, "/proc/self/status"), "CapEff:")
	if got := read(func(s *runtimeapi.LinuxContainerSecurityContext) { s.Privileged = true }); got != own {
		t.Errorf("privileged capabilities %s, ours are %s", got, own)
	}
	_, err := p.tryCreate([]string{"id"}, security(func(s *runtimeapi.LinuxContainerSecurityContext) {
		s.Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"NOT_A_CAP"}}
	}))
	if err == nil {
		t.Error("an unknown capability was accepted")
	}
}

func field(text, name string) string {
	for line := range strings.Lines(text) {
		if rest, found := strings.CutPrefix(line, name); found {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

func mustRead(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestRuntimeDefaultSeccompDeniesAlgSockets(t *testing.T) {
	n := newNode(t)
	p := n.runPod("seccomp")
	for family, want := range map[string]string{
		"38": "operation not permitted\n", // AF_ALG
		"40": "operation not permitted\n", // AF_VSOCK
		"1":  "<nil>\n",                   // AF_UNIX
	} {
		if got := p.output([]string{"socket", family}); got != want {
			t.Errorf("family %s: %q", family, got)
		}
	}
	if got := field(p.output([]string{"read", "/proc/self/status"}), "Seccomp:"); got != "2" {
		t.Errorf("seccomp mode %s", got)
	}
	empty := filepath.Join(t.TempDir(), "empty.json")
	if err := os.WriteFile(empty, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := p.tryCreate([]string{"id"}, security(func(s *runtimeapi.LinuxContainerSecurityContext) {
		s.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: empty}
	}))
	if err == nil {
		t.Error("an empty seccomp profile was accepted")
	}
}

func TestMaskedAndReadOnlyPathsAreEnforced(t *testing.T) {
	n := newNode(t)
	p := n.runPod("paths")
	c := p.run([]string{"forever"}, security(func(s *runtimeapi.LinuxContainerSecurityContext) {
		s.MaskedPaths, s.ReadonlyPaths = []string{"/proc/kcore", "/proc/keys"}, []string{"/proc/sys"}
		s.ReadonlyRootfs, s.NoNewPrivs = true, true
	}))
	if got := c.mustExec("/tool", "read", "/proc/keys"); got != "" {
		t.Errorf("a masked file has %q", got)
	}
	for _, path := range []string{"/proc/sys/kernel/domainname", "/new-file", "/etc/resolv.conf"} {
		resp, err := c.exec(10, "/tool", "write", path, "x")
		if err != nil || resp.GetExitCode() == 0 {
			t.Errorf("writing %s: code %d, %v", path, resp.GetExitCode(), err)
		}
	}
	if got := field(c.mustExec("/tool", "read", "/proc/self/status"), "NoNewPrivs:"); got != "1" {
		t.Errorf("no_new_privs %s", got)
	}
	c.mustExec("/tool", "write", "/dev/shm/file", "x")
}

func TestWorkingDirectoryOfADescriptorIsHarmless(t *testing.T) {
	n := newNode(t)
	p := n.runPod("cwd")
	for _, dir := range []string{"/proc/self/fd/7", "/proc/self/fd/8", "/proc/self/fd/9"} {
		c, err := p.tryCreate([]string{"read", "../../../../etc/hostname"}, func(config *runtimeapi.ContainerConfig) {
			config.WorkingDir, config.Metadata.Name = dir, "main"+filepath.Base(dir)
		})
		if err != nil {
			continue // refused
		}
		c.start()
		c.exited()
		if strings.Contains(c.logText(), strings.TrimSpace(mustRead(t, "/etc/hostname"))) {
			t.Errorf("working directory %s leads to the host", dir)
		}
	}
}

func TestPIDsLimitHoldsOffAForkBomb(t *testing.T) {
	n := newNode(t)
	p := n.runPod("bomb")
	c := p.run([]string{"bomb"})
	c.logged("could not fork")
	assertContains(t, c.logText(), "resource temporarily unavailable")
}

func TestMountsPropagateAndRecursiveReadOnly(t *testing.T) {
	n := newNode(t)
	p := n.runPod("mounts")
	host := t.TempDir()
	inner := filepath.Join(host, "inner")
	if err := os.Mkdir(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", inner, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(inner, unix.MNT_DETACH) })
	mount := func(edit func(*runtimeapi.Mount)) func(*runtimeapi.ContainerConfig) {
		return func(config *runtimeapi.ContainerConfig) {
			m := &runtimeapi.Mount{HostPath: host, ContainerPath: "/data"}
			edit(m)
			config.Mounts = append(config.Mounts, m)
			config.Metadata.Name = "main" + m.String()
		}
	}
	rw := p.run([]string{"forever"}, mount(func(*runtimeapi.Mount) {}))
	rw.mustExec("/tool", "write", "/data/inner/file", "x")
	ro := p.run([]string{"forever"}, mount(func(m *runtimeapi.Mount) { m.Readonly, m.RecursiveReadOnly = true, true }))
	for _, path := range []string{"/data/file", "/data/inner/file"} {
		if resp, err := ro.exec(10, "/tool", "write", path, "x"); err != nil || resp.GetExitCode() == 0 {
			t.Errorf("%s could be written: %v", path, err)
		}
	}
	_, err := p.tryCreate([]string{"forever"}, mount(func(m *runtimeapi.Mount) { m.Propagation = runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL }))
	if err == nil || !strings.Contains(err.Error(), "not a shared mount") {
		t.Errorf("bidirectional on a private mount: %v", err)
	}
}
