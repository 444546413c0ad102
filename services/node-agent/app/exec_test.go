package app_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
)

// exec runs a command in the pod's first container, through the API server.
func (s *site) exec(pod string, command ...string) (string, error) {
	s.t.Helper()
	request := s.client.CoreV1().RESTClient().Post().Resource("pods").Namespace("default").Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Command: command, Stdout: true, Stderr: true, Container: s.first(pod)}, scheme.ParameterCodec)
	executor, err := remotecommand.NewWebSocketExecutor(s.api.Config, "GET", request.URL().String())
	if err != nil {
		return "", err
	}
	var out, errOut bytes.Buffer
	if err := executor.StreamWithContext(s.t.Context(), remotecommand.StreamOptions{Stdout: &out, Stderr: &errOut}); err != nil {
		return out.String(), fmt.Errorf("%w: %s", err, errOut.String())
	}
	return out.String(), nil
}

func (s *site) first(name string) string {
	s.t.Helper()
	pod, err := s.pod(name)
	if err != nil {
		s.t.Fatal(err)
	}
	return pod.Spec.Containers[0].Name
}

func readFile(dir, name string) string {
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return "error: " + err.Error()
	}
	return string(data)
}
