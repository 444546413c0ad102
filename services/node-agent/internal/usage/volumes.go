package usage

import (
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// claimOf is the claim that a volume of the pod is made from, "" for none.
func claimOf(pod *corev1.Pod, volume *corev1.Volume) string {
	switch {
	case volume.PersistentVolumeClaim != nil:
		return volume.PersistentVolumeClaim.ClaimName
	case volume.Ephemeral != nil:
		return pod.Name + "-" + volume.Name
	}
	return ""
}

// volumes are the pod's volumes that are file systems of their own: those of
// claims, and in memory. Others are directories on the node's disk, and measuring
// them would mean to walk over all of their files.
func (m *Meter) volumes(pod *corev1.Pod) []stats.VolumeStats {
	var out []stats.VolumeStats
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		claim := claimOf(pod, volume)
		if claim == "" && (volume.EmptyDir == nil || volume.EmptyDir.Medium != corev1.StorageMediumMemory) {
			continue
		}
		path := m.volumePath(pod, volume.Name)
		if path == "" {
			continue
		}
		fs := fileSystem(path)
		if fs == nil {
			continue
		}
		one := stats.VolumeStats{FsStats: *fs, Name: volume.Name}
		if claim != "" {
			one.PVCRef = &stats.PVCReference{Name: claim, Namespace: pod.Namespace}
		}
		out = append(out, one)
	}
	return out
}

// volumePath is where a volume is mounted, "" if it is not.
func (m *Meter) volumePath(pod *corev1.Pod, name string) string {
	if m.VolumePath == nil {
		return ""
	}
	return m.VolumePath(pod.UID, name)
}

// fileSystem measures the one that path is on; nil if it cannot.
func fileSystem(path string) *stats.FsStats {
	var fs unix.Statfs_t
	if unix.Statfs(path, &fs) != nil {
		return nil
	}
	block := uint64(fs.Bsize)
	return &stats.FsStats{
		Time: metav1.Now(), AvailableBytes: pointer(fs.Bavail * block), CapacityBytes: pointer(fs.Blocks * block), UsedBytes: pointer((fs.Blocks - fs.Bfree) * block),
		InodesFree: pointer(fs.Ffree), Inodes: pointer(fs.Files), InodesUsed: pointer(fs.Files - fs.Ffree),
	}
}

// Volumes collects kubelet_volume_stats_*, of volumes that are made from claims.
type Volumes struct{ *Meter }

// Describe implements prometheus.Collector: what there is depends on the pods.
func (Volumes) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (v Volumes) Collect(ch chan<- prometheus.Metric) {
	seen := map[stats.PVCReference]bool{} // several pods may use one claim
	for _, state := range v.Pods() {
		for _, volume := range v.volumes(state.Pod) {
			if volume.PVCRef == nil || seen[*volume.PVCRef] {
				continue
			}
			seen[*volume.PVCRef] = true
			for _, one := range []struct {
				name, help string
				value      *uint64
			}{
				{"kubelet_volume_stats_capacity_bytes", "Capacity in bytes of the volume", volume.CapacityBytes},
				{"kubelet_volume_stats_available_bytes", "Number of available bytes in the volume", volume.AvailableBytes},
				{"kubelet_volume_stats_used_bytes", "Number of used bytes in the volume", volume.UsedBytes},
				{"kubelet_volume_stats_inodes", "Maximum number of inodes in the volume", volume.Inodes},
				{"kubelet_volume_stats_inodes_free", "Number of free inodes in the volume", volume.InodesFree},
				{"kubelet_volume_stats_inodes_used", "Number of used inodes in the volume", volume.InodesUsed},
			} {
				ch <- prometheus.MustNewConstMetric(desc(one.name, one.help, "namespace", "persistentvolumeclaim"), prometheus.GaugeValue, float64(*one.value), volume.PVCRef.Namespace, volume.PVCRef.Name)
			}
		}
	}
}
