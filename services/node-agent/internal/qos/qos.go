// Package qos keeps the control groups that pods are in: one for each quality of
// service class and one for each pod, as the kubelet's cgroupfs driver has them.
//
//	<root>/kubepods                     guaranteed pods are right below
//	<root>/kubepods/burstable/pod<uid>
//	<root>/kubepods/besteffort/pod<uid>
package qos

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/sampan-io/sampan/services/node-agent/internal/cgroups"
)

// Limits of the kernel and the conversions of the kubelet.
const (
	MinShares      = 2
	MaxShares      = 262144
	SharesPerCPU   = 1024
	QuotaPeriod    = 100000 // microseconds
	MinQuotaPeriod = 1000
)

// Tree is the control groups below one root.
type Tree struct {
	Root      string // "/sampan/node-1"
	Hierarchy cgroups.Hierarchy
	PIDsLimit int64 // of a pod; 0 or less is none
	CFSQuota  bool  // whether CPU limits are enforced
}

func (t Tree) top() string { return path.Join("/", t.Root, "kubepods") }

// Top is the group of all pods.
func (t Tree) Top() string { return t.top() }

// classDir is where pods of a class are.
func (t Tree) classDir(class corev1.PodQOSClass) string {
	switch class {
	case corev1.PodQOSBurstable:
		return path.Join(t.top(), "burstable")
	case corev1.PodQOSBestEffort:
		return path.Join(t.top(), "besteffort")
	}
	return t.top()
}

// Pod is the group of a pod.
func (t Tree) Pod(pod *corev1.Pod) string {
	return path.Join(t.classDir(Class(pod)), "pod"+string(pod.UID))
}

// Ensure makes the groups of the classes.
func (t Tree) Ensure() error {
	for _, group := range []string{t.top(), t.classDir(corev1.PodQOSBurstable), t.classDir(corev1.PodQOSBestEffort)} {
		if err := t.create(group); err != nil {
			return err
		}
	}
	return t.set(t.classDir(corev1.PodQOSBestEffort), limits{shares: MinShares})
}

// EnsurePod makes the pod's group and sets what it may use.
func (t Tree) EnsurePod(pod *corev1.Pod) error {
	group := t.Pod(pod)
	if err := t.create(group); err != nil {
		return err
	}
	return t.set(group, t.podLimits(pod))
}

// MemoryUsed is what a container of the pod has, in bytes; 0 if that is not known.
func (t Tree) MemoryUsed(pod *corev1.Pod, containerID string) int64 {
	used, err := t.Hierarchy.Stats(path.Join(t.Pod(pod), containerID))
	if err != nil {
		return 0
	}
	return int64(used.MemoryWorkingSet)
}

// LimitPods holds all pods together to an amount of memory.
func (t Tree) LimitPods(most corev1.ResourceList) error {
	return t.set(t.top(), limits{memory: most.Memory().Value()})
}

// LimitGroup holds a group that must be there already to what is reserved for it.
func (t Tree) LimitGroup(group string, most corev1.ResourceList) error {
	if !t.exists(group) {
		return fmt.Errorf("the control group %s is not there", group)
	}
	l := limits{memory: most.Memory().Value(), pids: most.Name("pid", resource.DecimalSI).Value()}
	if cpu := most.Cpu().MilliValue(); cpu > 0 {
		l.shares = Shares(cpu)
	}
	return t.set(group, l)
}

// Remove kills what is left in the pod's group, whatever its class, and removes it.
func (t Tree) Remove(uid types.UID) error {
	var errs []error
	for _, class := range []corev1.PodQOSClass{corev1.PodQOSGuaranteed, corev1.PodQOSBurstable, corev1.PodQOSBestEffort} {
		group := path.Join(t.classDir(class), "pod"+string(uid))
		if !t.exists(group) {
			continue
		}
		if err := t.Hierarchy.Kill(group); err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, t.Hierarchy.Remove(group))
	}
	return errors.Join(errs...)
}

func (t Tree) exists(group string) bool {
	for _, controller := range t.controllers() {
		if _, err := os.Stat(t.Hierarchy.Path(controller, group)); err == nil {
			return true
		}
	}
	return false
}

// Pods are the pods that have a group.
func (t Tree) Pods() ([]types.UID, error) {
	seen := map[types.UID]struct{}{}
	for _, class := range []corev1.PodQOSClass{corev1.PodQOSGuaranteed, corev1.PodQOSBurstable, corev1.PodQOSBestEffort} {
		for _, controller := range t.controllers() {
			entries, err := os.ReadDir(t.Hierarchy.Path(controller, t.classDir(class)))
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return nil, fmt.Errorf("listing pods' control groups: %w", err)
			}
			for _, entry := range entries {
				if uid, ours := strings.CutPrefix(entry.Name(), "pod"); ours && entry.IsDir() {
					seen[types.UID(uid)] = struct{}{}
				}
			}
		}
	}
	uids := make([]types.UID, 0, len(seen))
	for uid := range seen {
		uids = append(uids, uid)
	}
	return uids, nil
}

// LimitsSwap tells whether groups of version 2 have a limit on swap here.
func (t Tree) LimitsSwap() bool {
	_, err := os.Stat(filepath.Join(t.Hierarchy.Path("", t.classDir(corev1.PodQOSGuaranteed)), "memory.swap.max"))
	return err == nil
}

// controllers are those of version 1 that limits are set in.
func (t Tree) controllers() []string {
	if t.Hierarchy.Unified() {
		return []string{""}
	}
	return []string{"cpu", "memory", "pids"}
}

func (t Tree) create(group string) error {
	if t.Hierarchy.Unified() {
		return t.createUnified(group)
	}
	for _, controller := range t.controllers() {
		if err := os.MkdirAll(t.Hierarchy.Path(controller, group), 0o755); err != nil {
			return fmt.Errorf("making control group %s: %w", group, err)
		}
	}
	return nil
}

// createUnified hands the controllers down at each step of the way.
func (t Tree) createUnified(group string) error {
	at := "/"
	for _, part := range strings.Split(strings.Trim(group, "/"), "/") {
		if err := t.delegate(at); err != nil {
			return err
		}
		at = path.Join(at, part)
		if err := os.Mkdir(t.Hierarchy.Path("", at), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("making control group %s: %w", group, err)
		}
	}
	return nil
}

func (t Tree) delegate(group string) error {
	dir := t.Hierarchy.Path("", group)
	available, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("reading controllers of %s: %w", group, err)
	}
	for _, controller := range strings.Fields(string(available)) {
		switch controller {
		case "cpu", "memory", "pids", "cpuset", "io", "hugetlb":
			if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+controller), 0); err != nil {
				return fmt.Errorf("enabling controller %s in %s: %w", controller, group, err)
			}
		}
	}
	return nil
}

// limits are what a group may use; 0 leaves a resource as it is.
type limits struct {
	shares int64
	quota  int64 // microseconds per QuotaPeriod
	memory int64 // bytes
	pids   int64
}

// podLimits are the sums over the pod's containers. CPU and memory are limited
// only where each container is.
func (t Tree) podLimits(pod *corev1.Pod) limits {
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	most := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})
	out := limits{shares: Shares(requests.Cpu().MilliValue()), pids: t.PIDsLimit}
	if Class(pod) == corev1.PodQOSBestEffort {
		out.shares = MinShares
	}
	if t.CFSQuota && limited(pod, corev1.ResourceCPU) {
		out.quota = Quota(most.Cpu().MilliValue())
	}
	if limited(pod, corev1.ResourceMemory) {
		out.memory = most.Memory().Value()
	}
	return out
}

func limited(pod *corev1.Pod, name corev1.ResourceName) bool {
	if pod.Spec.Resources != nil {
		if limit, set := pod.Spec.Resources.Limits[name]; set && !limit.IsZero() {
			return true
		}
	}
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for _, c := range list {
			if limit := c.Resources.Limits[name]; limit.IsZero() {
				return false
			}
		}
	}
	return true
}

func (t Tree) set(group string, l limits) error {
	if t.Hierarchy.Unified() {
		return t.setUnified(group, l)
	}
	values := []struct {
		controller, file string
		value            int64
	}{
		{"cpu", "cpu.shares", l.shares},
		{"cpu", "cpu.cfs_period_us", period(l.quota)},
		{"cpu", "cpu.cfs_quota_us", l.quota},
		{"memory", "memory.limit_in_bytes", l.memory},
		{"pids", "pids.max", l.pids},
	}
	for _, v := range values {
		if v.value <= 0 {
			continue
		}
		file := filepath.Join(t.Hierarchy.Path(v.controller, group), v.file)
		if err := os.WriteFile(file, []byte(strconv.FormatInt(v.value, 10)), 0); err != nil {
			return fmt.Errorf("limiting %s: %w", group, err)
		}
	}
	return nil
}

func period(quota int64) int64 {
	if quota <= 0 {
		return 0
	}
	return QuotaPeriod
}

func (t Tree) setUnified(group string, l limits) error {
	values := map[string]string{}
	if l.shares > 0 {
		values["cpu.weight"] = strconv.FormatInt(Weight(l.shares), 10)
	}
	if l.quota > 0 {
		values["cpu.max"] = fmt.Sprintf("%d %d", l.quota, QuotaPeriod)
	}
	if l.memory > 0 {
		values["memory.max"] = strconv.FormatInt(l.memory, 10)
	}
	if l.pids > 0 {
		values["pids.max"] = strconv.FormatInt(l.pids, 10)
	}
	for file, value := range values {
		if err := os.WriteFile(filepath.Join(t.Hierarchy.Path("", group), file), []byte(value), 0); err != nil {
			return fmt.Errorf("limiting %s: %w", group, err)
		}
	}
	return nil
}
