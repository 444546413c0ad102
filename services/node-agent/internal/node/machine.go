package node

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sampan-io/sampan/services/internal/component"
)

// Machine is what does not change while this program runs.
type Machine struct {
	CPUs   int64
	Memory int64 // bytes
	// HugePages are the bytes of each size of huge pages, by the resource's name.
	HugePages map[corev1.ResourceName]int64
	Info      corev1.NodeSystemInfo
}

// ReadMachine asks the kernel.
func ReadMachine() (Machine, error) {
	values, err := memoryInfo()
	if err != nil {
		return Machine{}, err
	}
	if values["MemTotal"] == 0 {
		return Machine{}, errors.New("the kernel does not tell how much memory there is")
	}
	huge, err := HugePages("/sys")
	if err != nil {
		return Machine{}, err
	}
	swap := values["SwapTotal"]
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return Machine{}, fmt.Errorf("asking the kernel for its name: %w", err)
	}
	machineID := firstLine("/etc/machine-id")
	system := firstLine("/sys/class/dmi/id/product_uuid")
	if system == "" {
		system = machineID
	}
	return Machine{
		CPUs: int64(runtime.NumCPU()), Memory: values["MemTotal"], HugePages: huge,
		Info: corev1.NodeSystemInfo{
			Swap:      &corev1.NodeSwapStatus{Capacity: &swap},
			MachineID: machineID, SystemUUID: system, BootID: firstLine("/proc/sys/kernel/random/boot_id"),
			KernelVersion: unix.ByteSliceToString(name.Release[:]), OSImage: osImage(),
			KubeletVersion: component.Version().GitVersion, OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH,
		},
	}, nil
}

func firstLine(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(data), "\n")
	return strings.TrimSpace(line)
}

func osImage() string {
	data, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "Linux"
	}
	for line := range strings.Lines(string(data)) {
		if value, found := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); found {
			return strings.Trim(value, `"'`)
		}
	}
	return "Linux"
}

// HugePages are the pages that the kernel has set aside, in bytes, by the name of their
// size's resource; sys is /sys.
func HugePages(sys string) (map[corev1.ResourceName]int64, error) {
	dirs, err := filepath.Glob(filepath.Join(sys, "kernel", "mm", "hugepages", "hugepages-*kB"))
	if err != nil {
		return nil, err
	}
	out := map[corev1.ResourceName]int64{}
	for _, dir := range dirs {
		size, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(dir), "hugepages-"), "kB"), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("reading huge pages: %s: %w", dir, err)
		}
		count, err := strconv.ParseInt(firstLine(filepath.Join(dir, "nr_hugepages")), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("reading huge pages: %s: %w", dir, err)
		}
		bytes := size << 10
		name := resource.NewQuantity(bytes, resource.BinarySI).String()
		out[corev1.ResourceName(corev1.ResourceHugePagesPrefix+name)] = bytes * count
	}
	return out, nil
}

// memoryInfo reads /proc/meminfo in bytes.
func memoryInfo() (map[string]int64, error) {
	file, err := os.Open("/proc/meminfo")
	if err != nil {
		return nil, fmt.Errorf("reading memory: %w", err)
	}
	defer func() { _ = file.Close() }()
	values := map[string]int64{}
	scanner := bufio.NewScanner(file)
	for scanner.Scan() {
		key, rest, _ := strings.Cut(scanner.Text(), ":")
		number, unit, _ := strings.Cut(strings.TrimSpace(rest), " ")
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			continue
		}
		if unit == "kB" {
			n <<= 10
		}
		values[key] = n
	}
	return values, scanner.Err()
}

// MemoryAvailable is what could be used without swapping, in bytes.
func MemoryAvailable() (int64, error) {
	values, err := memoryInfo()
	return values["MemAvailable"], err
}

// diskSize is the size of the file system that path is on, in bytes.
func diskSize(path string) (int64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return 0, fmt.Errorf("measuring the disk of %s: %w", path, err)
	}
	return int64(fs.Blocks) * fs.Bsize, nil
}

func quantity(n int64, format resource.Format) resource.Quantity {
	return *resource.NewQuantity(n, format)
}
