package app

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCertsRefusesWhatCannotBeMade(t *testing.T) {
	t.Parallel()
	for argument, want := range map[string]string{
		"--server=http://a:1":     "--server",
		"--server=a:1":            "--server",
		"--admin-server=https://": "--admin-server",
		"--nodes=0":               "--nodes",
		"--nodes=1000":            "--nodes",
		"--lifetime=1s":           "--lifetime",
		"--owner=me":              "--owner",
	} {
		dir := filepath.Join(t.TempDir(), "certs")
		var out, problems bytes.Buffer
		code := Main([]string{"certs", "--dir", dir, argument}, &out, &problems)
		if code != 2 || !strings.Contains(problems.String(), want) || strings.Count(problems.String(), "\n") != 1 {
			t.Errorf("%s: code %d, %s", argument, code, problems.String())
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s: something was made", argument)
		}
	}
}

func TestCertsMakesIdentitiesForNumberedNodes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var out, problems bytes.Buffer
	if code := Main([]string{"certs", "--dir", dir, "--server=https://10.0.0.1:6443", "--nodes=3"}, &out, &problems); code != 0 {
		t.Fatalf("code %d: %s", code, problems.String())
	}
	for _, node := range []string{"node-1", "node-2", "node-3"} {
		if _, err := os.Stat(filepath.Join(dir, "node", node, "kubeconfig")); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "bus")); err == nil {
		t.Error("a bus that nobody named has an identity")
	}
}
