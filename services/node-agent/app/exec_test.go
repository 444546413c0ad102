package app_test

import (
	"os"
	"path/filepath"
)

// exec runs a command in the pod's first container, through the API server.
func (s *site) exec(pod string, command ...string) (string, error) {
	s.t.Helper()
	return s.kubectl(append([]string{"exec", pod, "--"}, command...)...)
}

func readFile(dir, name string) string {
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return "error: " + err.Error()
	}
	return string(data)
}
