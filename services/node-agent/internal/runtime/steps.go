package runtime

import "time"

// Steps of a pod's start, in their order. Network and files are made side by side.
const (
	stepNamespaces   = "sandbox_namespaces"
	stepFiles        = "sandbox_files"
	stepNetwork      = "sandbox_network"
	stepPause        = "sandbox_pause"
	stepSandboxSaved = "sandbox_saved"
	stepRootFS       = "container_rootfs"
	stepSpec         = "container_spec"
	stepMonitor      = "container_monitor" // which runs the OCI runtime's create
	stepStart        = "container_start"
)

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
