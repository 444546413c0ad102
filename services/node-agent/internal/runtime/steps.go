package runtime

import "time"

// Steps of a pod's start and end, in their order. Network and files are made side by
// side.
const (
	stepSandboxNoted = "sandbox_noted"
	stepNamespaces   = "sandbox_namespaces"
	stepFiles        = "sandbox_files"
	stepNetwork      = "sandbox_network"
	stepPause        = "sandbox_pause"
	stepSandboxSaved = "sandbox_saved"

	stepContainerNoted = "container_noted"
	stepRootFS         = "container_rootfs"
	stepSpec           = "container_spec"
	stepMonitor        = "container_monitor" // which runs the OCI runtime's create
	stepMonitorNoted   = "container_monitor_noted"
	stepCreated        = "container_created"
	stepStarting       = "container_starting"
	stepStart          = "container_start"

	stepStop        = "container_stop"
	stepDelete      = "container_delete" // by the OCI runtime
	stepCgroup      = "container_cgroup"
	stepUnmount     = "container_unmount"
	stepFilesGone   = "container_files_gone"
	stepForgotten   = "container_forgotten"
	stepNetworkGone = "sandbox_network_gone"
	stepReleased    = "sandbox_released"
	stepSandboxGone = "sandbox_gone"
)

// Steps lists all of them.
func Steps() []string {
	return []string{
		stepSandboxNoted, stepNamespaces, stepFiles, stepNetwork, stepPause, stepSandboxSaved,
		stepContainerNoted, stepRootFS, stepSpec, stepMonitorNoted, stepMonitor, stepCreated, stepStarting, stepStart,
		stepStop, stepDelete, stepCgroup, stepUnmount, stepFilesGone, stepForgotten, stepNetworkGone, stepReleased, stepSandboxGone,
	}
}

// timed runs a step and tells how long it took.
func (s *Server) timed(step string, run func() error) error {
	if s.cfg.Observe == nil {
		return run()
	}
	began := time.Now()
	err := run()
	s.cfg.Observe(step, time.Since(began))
	return err
}
