// Package admission shows, from outside, what others install to check and change
// writes: a set of policies, and cert-manager's webhook configurations.
package admission

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/sampan-io/sampan/services/internal/testenv"
)

// server is an API server alone, and kubectl for it.
type server struct {
	*testenv.APIServer
	kubeconfig string
}

// startServer runs an API server until the test ends.
func startServer(t *testing.T) *server {
	t.Helper()
	dir := t.TempDir()
	s, err := testenv.NewAPIServer(dir, filepath.Join(dir, "data"))
	if errors.Is(err, testenv.ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := s.Start(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Stop()
		<-s.Done()
	})
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := clientcmd.WriteToFile(kubeconfigOf(s.Config), kubeconfig); err != nil {
		t.Fatal(err)
	}
	return &server{s, kubeconfig}
}

func kubeconfigOf(c *rest.Config) api.Config {
	return api.Config{
		Clusters:  map[string]*api.Cluster{"c": {Server: c.Host, CertificateAuthorityData: c.CAData}},
		AuthInfos: map[string]*api.AuthInfo{"u": {ClientCertificateData: c.CertData, ClientKeyData: c.KeyData}},
		Contexts:  map[string]*api.Context{"x": {Cluster: "c", AuthInfo: "u"}}, CurrentContext: "x",
	}
}

// try runs kubectl and returns all that it prints.
func (s *server) try(input string, args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(s.Bin, "kubectl"), append([]string{"--kubeconfig=" + s.kubeconfig}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(out.String()))
	}
	return out.String(), nil
}

// kubectl is try that ends the test on an error.
func (s *server) kubectl(t *testing.T, input string, args ...string) string {
	t.Helper()
	out, err := s.try(input, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// refused runs kubectl, which the server must answer with an error that has the
// text.
func (s *server) refused(t *testing.T, want, input string, args ...string) {
	t.Helper()
	if _, err := s.try(input, args...); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("kubectl %s: %v, want an error with %q", strings.Join(args, " "), err, want)
	}
}
