// Package ocispec turns what the kubelet asks for in the CRI's terms into the OCI
// runtime specification of a container.
package ocispec

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Container is all that a specification is made of.
type Container struct {
	ID       string
	Config   *runtimeapi.ContainerConfig
	Hostname string
	Image    v1.Config
	// RootFS is where the root file system is mounted; /etc/passwd and /etc/group
	// are read there.
	RootFS     string
	CgroupPath string
	Namespaces Namespaces
	// Mounts are those of the runtime itself, such as /etc/resolv.conf; one that the
	// kubelet asks for at the same path replaces it.
	Mounts []specs.Mount
	// PIDsLimit is the default for the container; 0 or less is no limit.
	PIDsLimit int64
	Host      Host
}

// Namespaces are paths of namespaces to join. An empty path of Network, IPC and UTS
// means the host's; an empty PID is a new one, unless HostPID is set.
type Namespaces struct {
	Network, IPC, UTS, PID string
	HostPID                bool
	User                   string // empty is the host's
}

// Build makes the specification. The error is the caller's to mend: it names what
// the container asks for that cannot be.
func Build(c Container) (*specs.Spec, error) {
	b := builder{
		c:        c,
		linux:    c.Config.GetLinux(),
		security: c.Config.GetLinux().GetSecurityContext(),
		spec: &specs.Spec{
			Version: specs.Version,
			Root:    &specs.Root{Path: c.RootFS},
			Process: &specs.Process{Terminal: c.Config.GetTty()},
			Linux:   &specs.Linux{CgroupsPath: c.CgroupPath, Resources: &specs.LinuxResources{}},
		},
	}
	steps := []func() error{
		b.process, b.user, b.capabilities, b.namespaces, b.mounts, b.devices, b.paths, b.resources, b.seccomp, b.apparmor,
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return b.spec, nil
}

type builder struct {
	c        Container
	linux    *runtimeapi.LinuxContainerConfig
	security *runtimeapi.LinuxContainerSecurityContext
	spec     *specs.Spec
}

func (b *builder) privileged() bool { return b.security.GetPrivileged() }

func (b *builder) process() error {
	p := b.spec.Process
	p.Args = b.args()
	if len(p.Args) == 0 {
		return errors.New("no command specified: neither the container nor the image has one")
	}
	p.Cwd = b.c.Config.GetWorkingDir()
	if p.Cwd == "" {
		p.Cwd = b.c.Image.WorkingDir
	}
	if p.Cwd == "" {
		p.Cwd = "/"
	}
	if !strings.HasPrefix(p.Cwd, "/") {
		return fmt.Errorf("working directory %q is not absolute", p.Cwd)
	}
	p.Env = b.env()
	p.NoNewPrivileges = b.security.GetNoNewPrivs()
	b.spec.Root.Readonly = b.security.GetReadonlyRootfs()
	score := b.c.Host.clampOOMScore(int(b.linux.GetResources().GetOomScoreAdj()))
	p.OOMScoreAdj = &score
	return nil
}

// args follows Docker's rule: a command of the container's own drops the image's
// arguments too.
func (b *builder) args() []string {
	entrypoint, args := b.c.Config.GetCommand(), b.c.Config.GetArgs()
	if len(entrypoint) == 0 {
		entrypoint = b.c.Image.Entrypoint
		if len(args) == 0 {
			args = b.c.Image.Cmd
		}
	}
	return slices.Concat(entrypoint, args)
}

func (b *builder) env() []string {
	env := environment{}
	env.add("PATH=" + defaultPath)
	env.add("HOSTNAME=" + b.c.Hostname)
	if b.c.Config.GetTty() {
		env.add("TERM=xterm")
	}
	for _, entry := range b.c.Image.Env {
		env.add(entry)
	}
	for _, entry := range b.c.Config.GetEnvs() {
		env.add(entry.GetKey() + "=" + string(entry.GetValue()))
	}
	return env.entries
}

// environment keeps the order of first mention and the value of the last.
type environment struct {
	entries []string
	index   map[string]int
}

func (e *environment) add(entry string) {
	key, _, _ := strings.Cut(entry, "=")
	if e.index == nil {
		e.index = map[string]int{}
	}
	if i, ok := e.index[key]; ok {
		e.entries[i] = entry
		return
	}
	e.index[key] = len(e.entries)
	e.entries = append(e.entries, entry)
}

func (b *builder) namespaces() error {
	ns := b.c.Namespaces
	list := []specs.LinuxNamespace{{Type: specs.MountNamespace}}
	join := func(kind specs.LinuxNamespaceType, path string) {
		if path != "" {
			list = append(list, specs.LinuxNamespace{Type: kind, Path: path})
		}
	}
	join(specs.NetworkNamespace, ns.Network)
	join(specs.IPCNamespace, ns.IPC)
	join(specs.UTSNamespace, ns.UTS)
	join(specs.UserNamespace, ns.User)
	if !ns.HostPID {
		list = append(list, specs.LinuxNamespace{Type: specs.PIDNamespace, Path: ns.PID})
	}
	if b.c.Host.UnifiedCgroups && !b.privileged() {
		list = append(list, specs.LinuxNamespace{Type: specs.CgroupNamespace})
	}
	b.spec.Linux.Namespaces = list
	return nil
}

// paths hides and protects what of /proc and /sys a container must not touch.
func (b *builder) paths() error {
	if b.privileged() {
		return nil
	}
	b.spec.Linux.MaskedPaths = b.security.GetMaskedPaths()
	b.spec.Linux.ReadonlyPaths = b.security.GetReadonlyPaths()
	if b.security == nil {
		b.spec.Linux.MaskedPaths = DefaultMaskedPaths()
		b.spec.Linux.ReadonlyPaths = DefaultReadonlyPaths()
	}
	return nil
}

// DefaultMaskedPaths are hidden from a container that says nothing of them.
func DefaultMaskedPaths() []string {
	return []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
		"/sys/devices/virtual/powercap",
	}
}

// DefaultReadonlyPaths are read-only for a container that says nothing of them.
func DefaultReadonlyPaths() []string {
	return []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
}

func (b *builder) apparmor() error {
	if b.privileged() {
		return nil
	}
	profile := b.security.GetApparmor()
	if profile.GetProfileType() != runtimeapi.SecurityProfile_Localhost {
		return nil
	}
	if !b.c.Host.AppArmor {
		return fmt.Errorf("AppArmor profile %q: AppArmor is not enabled on the host", profile.GetLocalhostRef())
	}
	b.spec.Process.ApparmorProfile = profile.GetLocalhostRef()
	return nil
}
