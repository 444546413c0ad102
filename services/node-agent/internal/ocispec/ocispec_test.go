package ocispec_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/ocispec"
)

func build(t *testing.T, edit func(*ocispec.Container)) *specs.Spec {
	t.Helper()
	c := container(t)
	edit(&c)
	spec, err := ocispec.Build(c)
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

func container(t *testing.T) ocispec.Container {
	t.Helper()
	return ocispec.Container{
		ID: "id", RootFS: t.TempDir(), CgroupPath: "/pods/id", Hostname: "pod",
		Config: &runtimeapi.ContainerConfig{Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{}}},
		Image:  v1.Config{Entrypoint: []string{"/app"}, Cmd: []string{"serve"}, Env: []string{"A=image", "PATH=/bin"}, WorkingDir: "/srv"},
		Host:   ocispec.Host{Capabilities: []string{"CAP_CHOWN", "CAP_KILL", "CAP_NET_ADMIN"}},
	}
}

func TestArgumentsComeFromTheContainerThenTheImage(t *testing.T) {
	for name, test := range map[string]struct{ command, args, want []string }{
		"nothing": {nil, nil, []string{"/app", "serve"}},
		"args":    {nil, []string{"x"}, []string{"/app", "x"}},
		"command": {[]string{"/sh"}, nil, []string{"/sh"}},
		"both":    {[]string{"/sh"}, []string{"-c"}, []string{"/sh", "-c"}},
	} {
		spec := build(t, func(c *ocispec.Container) { c.Config.Command, c.Config.Args = test.command, test.args })
		if !slices.Equal(spec.Process.Args, test.want) {
			t.Errorf("%s: %v, want %v", name, spec.Process.Args, test.want)
		}
	}
	c := container(t)
	c.Image = v1.Config{}
	if _, err := ocispec.Build(c); err == nil {
		t.Error("a container without a command was accepted")
	}
}

func TestEnvironmentOfTheContainerWins(t *testing.T) {
	spec := build(t, func(c *ocispec.Container) {
		c.Config.Envs = []*runtimeapi.KeyValue{{Key: "A", Value: []byte("own=1")}, {Key: "B", Value: []byte("2")}}
	})
	for _, want := range []string{"A=own=1", "B=2", "PATH=/bin", "HOSTNAME=pod"} {
		if !slices.Contains(spec.Process.Env, want) {
			t.Errorf("%s is not in %v", want, spec.Process.Env)
		}
	}
	if slices.Contains(spec.Process.Env, "A=image") {
		t.Error("the image's value is there too")
	}
}

func TestWhatTheHostDoesNotAllowIsCutDownAndSaid(t *testing.T) {
	var said []string
	spec := build(t, func(c *ocispec.Container) {
		c.Host.LowestOOMScore = -100
		c.Host.Say = func(what string) { said = append(said, what) }
		c.Config.Linux.Resources = &runtimeapi.LinuxContainerResources{OomScoreAdj: -997}
		c.Config.Linux.SecurityContext.Capabilities = &runtimeapi.Capability{DropCapabilities: []string{"all"}, AddCapabilities: []string{"kill", "SYS_ADMIN"}}
	})
	if *spec.Process.OOMScoreAdj != -100 {
		t.Errorf("oom_score_adj %d", *spec.Process.OOMScoreAdj)
	}
	if want := []string{"CAP_KILL"}; !slices.Equal(spec.Process.Capabilities.Bounding, want) || len(spec.Process.Capabilities.Inheritable) != 0 {
		t.Errorf("capabilities %+v", spec.Process.Capabilities)
	}
	if text := strings.Join(said, "; "); !strings.Contains(text, "CAP_SYS_ADMIN") || !strings.Contains(text, "oom_score_adj") {
		t.Errorf("said %q", text)
	}
}

func TestMountsGoFromTheRootDown(t *testing.T) {
	host := t.TempDir()
	spec := build(t, func(c *ocispec.Container) {
		c.Mounts = []specs.Mount{{Destination: "/etc/hosts", Source: "runtime"}, {Destination: "/etc/hostname", Source: "runtime"}}
		for _, path := range []string{"/data/sub/deep", "/data", "/etc/hosts", "/data/sub"} {
			c.Config.Mounts = append(c.Config.Mounts, &runtimeapi.Mount{HostPath: host, ContainerPath: path})
		}
	})
	var order []string
	for _, mount := range spec.Mounts {
		if strings.HasPrefix(mount.Destination, "/data") {
			order = append(order, mount.Destination)
		}
		if mount.Destination == "/etc/hosts" && mount.Source != host {
			t.Errorf("the runtime's own /etc/hosts stayed")
		}
	}
	if want := []string{"/data", "/data/sub", "/data/sub/deep"}; !slices.Equal(order, want) {
		t.Errorf("order %v", order)
	}
	if !slices.ContainsFunc(spec.Mounts, func(m specs.Mount) bool { return m.Destination == "/etc/hostname" }) {
		t.Error("the runtime's /etc/hostname is missing")
	}
}

func TestAccountFilesAreReadInsideTheRootOnly(t *testing.T) {
	c := container(t)
	if err := os.MkdirAll(filepath.Join(c.RootFS, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(t.TempDir(), "passwd")
	if err := os.WriteFile(secret, []byte("intruder:x:0:0::/:/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, filepath.Join(c.RootFS, "etc/passwd")); err != nil {
		t.Fatal(err)
	}
	c.Config.Linux.SecurityContext.RunAsUsername = "intruder"
	if _, err := ocispec.Build(c); err == nil {
		t.Error("an account of the host was found through a link")
	}
}

func TestRelativeWorkingDirectoryIsRefused(t *testing.T) {
	c := container(t)
	c.Config.WorkingDir = "../.."
	if _, err := ocispec.Build(c); err == nil {
		t.Error("a relative working directory was accepted")
	}
}

func TestDefaultSeccompFollowsCapabilities(t *testing.T) {
	allows := func(profile *specs.LinuxSeccomp, name string) bool {
		return slices.ContainsFunc(profile.Syscalls, func(s specs.LinuxSyscall) bool {
			return s.Action == specs.ActAllow && len(s.Args) == 0 && slices.Contains(s.Names, name)
		})
	}
	plain, admin := ocispec.DefaultSeccomp(nil), ocispec.DefaultSeccomp([]string{"CAP_SYS_ADMIN"})
	for _, name := range []string{"read", "openat2", "futex_waitv", "clock_adjtime"} {
		if !allows(plain, name) {
			t.Errorf("%s is denied", name)
		}
	}
	for _, name := range []string{"mount", "bpf", "keyctl", "io_uring_setup", "socket", "socketcall", "unshare", "userfaultfd", "kexec_load"} {
		if allows(plain, name) {
			t.Errorf("%s is allowed", name)
		}
	}
	if !allows(admin, "mount") || !allows(admin, "clone3") {
		t.Error("CAP_SYS_ADMIN does not allow mount and clone3")
	}
}

func TestLocalSeccompProfilesThatConfineNothingAreRefused(t *testing.T) {
	for name, test := range map[string]struct{ text, err string }{
		"empty":   {"", "unexpected end"},
		"nothing": {"{}", "it is empty: defaultAction is missing"},
		"half":    {`{"defaultAction": "SCMP_ACT`, "unexpected end"},
		"whole":   {`{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_ALLOW"}]}`, ""},
	} {
		path := filepath.Join(t.TempDir(), "profile.json")
		if err := os.WriteFile(path, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		c := container(t)
		c.Config.Linux.SecurityContext.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: path}
		spec, err := ocispec.Build(c)
		switch {
		case test.err != "":
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%s: %v, want %q", name, err, test.err)
			}
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case spec.Linux.Seccomp == nil || spec.Linux.Seccomp.DefaultAction != specs.ActErrno:
			t.Errorf("%s: the profile is %+v", name, spec.Linux.Seccomp)
		}
	}
}
