package ocispec

import (
	"errors"
	"fmt"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (b *builder) resources() error {
	resources, err := Resources(b.linux.GetResources(), b.c.Host)
	if err != nil {
		return err
	}
	if b.c.PIDsLimit > 0 && resources.Pids == nil {
		limit := b.c.PIDsLimit
		resources.Pids = &specs.LinuxPids{Limit: &limit}
	}
	resources.Devices = b.spec.Linux.Resources.Devices
	b.spec.Linux.Resources = resources
	return nil
}

// Resources turns the CRI's limits into OCI's. What is not set stays as it is.
func Resources(r *runtimeapi.LinuxContainerResources, host Host) (*specs.LinuxResources, error) {
	out := &specs.LinuxResources{}
	if r == nil {
		return out, nil
	}
	out.CPU = cpu(r)
	out.Memory = memory(r, host)
	for _, limit := range r.GetHugepageLimits() {
		out.HugepageLimits = append(out.HugepageLimits, specs.LinuxHugepageLimit{Pagesize: limit.GetPageSize(), Limit: limit.GetLimit()})
	}
	if len(r.GetUnified()) > 0 {
		if !host.UnifiedCgroups {
			return nil, errors.New("unified cgroup settings need cgroup v2, and this host has v1")
		}
		out.Unified = r.GetUnified()
	}
	if m := r.GetMemoryLimitInBytes(); m < 0 {
		return nil, fmt.Errorf("memory limit %d is negative", m)
	}
	return out, nil
}

func cpu(r *runtimeapi.LinuxContainerResources) *specs.LinuxCPU {
	cpu := &specs.LinuxCPU{Cpus: r.GetCpusetCpus(), Mems: r.GetCpusetMems()}
	if v := uint64(r.GetCpuShares()); v != 0 {
		cpu.Shares = &v
	}
	if v := r.GetCpuQuota(); v != 0 {
		cpu.Quota = &v
	}
	if v := uint64(r.GetCpuPeriod()); v != 0 {
		cpu.Period = &v
	}
	return cpu
}

func memory(r *runtimeapi.LinuxContainerResources, host Host) *specs.LinuxMemory {
	limit := r.GetMemoryLimitInBytes()
	if limit == 0 {
		return nil
	}
	memory := &specs.LinuxMemory{Limit: &limit}
	if swap := r.GetMemorySwapLimitInBytes(); swap != 0 && host.SwapAccounting {
		memory.Swap = &swap
	}
	return memory
}
