package ocispec

import (
	"fmt"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// defaultCapabilities are those of a container that asks for none, as container
// engines have agreed on.
func defaultCapabilities() []string {
	return []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID",
		"CAP_SETUID", "CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
	}
}

func (b *builder) capabilities() error {
	wanted, err := b.wantedCapabilities()
	if err != nil {
		return err
	}
	granted := b.c.Host.clampCapabilities(wanted)
	caps := &specs.LinuxCapabilities{Bounding: granted, Effective: granted, Permitted: granted}
	for _, name := range b.security.GetCapabilities().GetAddAmbientCapabilities() {
		name, err := capability(name)
		if err != nil {
			return err
		}
		if slices.Contains(granted, name) {
			caps.Ambient = append(caps.Ambient, name)
		}
	}
	caps.Inheritable = caps.Ambient // the kernel wants ambient ones inheritable; others must not be
	b.spec.Process.Capabilities = caps
	return nil
}

func (b *builder) wantedCapabilities() ([]string, error) {
	if b.privileged() {
		return allCapabilities(), nil
	}
	add, drop := b.security.GetCapabilities().GetAddCapabilities(), b.security.GetCapabilities().GetDropCapabilities()
	wanted := defaultCapabilities()
	if containsAll(add) {
		wanted = allCapabilities()
	}
	if containsAll(drop) {
		wanted = nil
	}
	for _, name := range add {
		if isAll(name) {
			continue
		}
		name, err := capability(name)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(wanted, name) {
			wanted = append(wanted, name)
		}
	}
	for _, name := range drop {
		if isAll(name) {
			continue
		}
		name, err := capability(name)
		if err != nil {
			return nil, err
		}
		wanted = slices.DeleteFunc(wanted, func(s string) bool { return s == name })
	}
	return wanted, nil
}

func isAll(name string) bool          { return strings.EqualFold(name, "ALL") }
func containsAll(names []string) bool { return slices.ContainsFunc(names, isAll) }

func capability(name string) (string, error) {
	upper := strings.ToUpper(name)
	if !strings.HasPrefix(upper, "CAP_") {
		upper = "CAP_" + upper
	}
	if !slices.Contains(allCapabilities(), upper) {
		return "", fmt.Errorf("unknown capability %q", name)
	}
	return upper, nil
}

// allCapabilities lists Linux's capabilities by their number.
func allCapabilities() []string {
	return []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID",
		"CAP_SETUID", "CAP_SETPCAP", "CAP_LINUX_IMMUTABLE", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_ADMIN",
		"CAP_NET_RAW", "CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_CHROOT",
		"CAP_SYS_PTRACE", "CAP_SYS_PACCT", "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_NICE", "CAP_SYS_RESOURCE",
		"CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD", "CAP_LEASE", "CAP_AUDIT_WRITE", "CAP_AUDIT_CONTROL",
		"CAP_SETFCAP", "CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG", "CAP_WAKE_ALARM", "CAP_BLOCK_SUSPEND",
		"CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF", "CAP_CHECKPOINT_RESTORE",
	}
}
