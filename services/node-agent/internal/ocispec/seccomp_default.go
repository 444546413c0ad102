package ocispec

import (
	_ "embed"
	"runtime"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

//go:embed seccomp_default.txt
var defaultSyscalls string

const always = "always"

// DefaultSeccomp is the profile RuntimeDefault for a process with these
// capabilities in its bounding set.
func DefaultSeccomp(capabilities []string) *specs.LinuxSeccomp {
	var names []string
	for section, syscalls := range seccompSections() {
		if section == always || slices.Contains(capabilities, section) {
			names = append(names, syscalls...)
		}
	}
	slices.Sort(names)
	profile := &specs.LinuxSeccomp{
		DefaultAction: specs.ActErrno,
		Architectures: architectures(),
		Syscalls:      []specs.LinuxSyscall{{Names: slices.Compact(names), Action: specs.ActAllow}},
	}
	profile.Syscalls = append(profile.Syscalls, personalityRules()...)
	profile.Syscalls = append(profile.Syscalls, socketRules()...)
	if !slices.Contains(capabilities, "CAP_SYS_ADMIN") {
		profile.Syscalls = append(profile.Syscalls, cloneRules()...)
	}
	return profile
}

func seccompSections() map[string][]string {
	sections := map[string][]string{}
	section := ""
	for line := range strings.Lines(defaultSyscalls) {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || line[0] == '#':
		case line[0] == '[':
			section = strings.Trim(line, "[]")
		default:
			sections[section] = append(sections[section], strings.Fields(line)...)
		}
	}
	return sections
}

// architectures are those of programs that the machine can run. The x32 ABI is left
// out: hardly a kernel has it, and each architecture costs a container's start
// milliseconds in which the filter is compiled.
func architectures() []specs.Arch {
	switch runtime.GOARCH {
	case "amd64":
		return []specs.Arch{specs.ArchX86_64, specs.ArchX86}
	case "arm64":
		return []specs.Arch{specs.ArchAARCH64, specs.ArchARM}
	}
	return nil
}

// masked allows the call when an argument has the value in the bits of the mask.
func masked(name string, index uint, mask, value uint64) specs.LinuxSyscall {
	return specs.LinuxSyscall{
		Names:  []string{name},
		Action: specs.ActAllow,
		Args:   []specs.LinuxSeccompArg{{Index: index, Value: mask, ValueTwo: value, Op: specs.OpMaskedEqual}},
	}
}

// socketRules allow every address family but AF_ALG (38), whose parsers in the
// kernel have been a way out of containers, and AF_VSOCK (40), which reaches the
// host of a virtual machine past all network policy. The kernel looks at the low
// 32 bits of the argument only, and so must the rules.
func socketRules() []specs.LinuxSyscall {
	var rules []specs.LinuxSyscall
	for _, family := range []struct{ mask, value uint64 }{
		{0xffffffe0, 0},  // 0 to 31
		{0xfffffffc, 32}, // 32 to 35
		{0xfffffffe, 36}, // 36 and 37
		{0xffffffff, 39},
		{0xffffffff, 41},
		{0xfffffffe, 42}, // 42 and 43
		{0xfffffffc, 44}, // 44 to 47
	} {
		rules = append(rules, masked("socket", 0, family.mask, family.value))
	}
	return rules
}

// personalityRules allow the personalities of ordinary programs.
func personalityRules() []specs.LinuxSyscall {
	var rules []specs.LinuxSyscall
	for _, persona := range []uint64{0x0, 0x0008, 0x20000, 0x20008, 0xffffffff} {
		rules = append(rules, specs.LinuxSyscall{
			Names:  []string{"personality"},
			Action: specs.ActAllow,
			Args:   []specs.LinuxSeccompArg{{Index: 0, Value: persona, Op: specs.OpEqualTo}},
		})
	}
	return rules
}

// cloneRules allow new processes and threads but no new namespaces. The flags of
// clone3 are in memory, out of a filter's sight; ENOSYS makes libraries use clone.
func cloneRules() []specs.LinuxSyscall {
	const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER |
		unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP
	enosys := uint(unix.ENOSYS)
	return []specs.LinuxSyscall{
		masked("clone", 0, namespaces, 0),
		{Names: []string{"clone3"}, Action: specs.ActErrno, ErrnoRet: &enosys},
	}
}
