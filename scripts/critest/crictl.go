package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// crictl drives the runtime with the operator's tool, through the life of one pod.
type crictl struct {
	path, endpoint, dir string
	ids                 map[string]string // what earlier commands have printed
}

const (
	crictlPod = `{"metadata":{"name":"crictl","namespace":"default","uid":"crictl","attempt":0},"log_directory":"%s","linux":{}}`
	crictlCtr = `{"metadata":{"name":"main"},"image":{"image":"registry.k8s.io/e2e-test-images/busybox:1.29-2"},"command":["sh","-c","echo started; sleep 1000"],"log_path":"main.log","linux":{}}`
)

// driveCrictl returns an error that names the command that did not do what it should.
func (r *run) driveCrictl(ctx context.Context) error {
	c := crictl{path: filepath.Join(r.bin, "crictl"), endpoint: "unix://" + r.socket(), dir: filepath.Join(r.dir, "crictl"), ids: map[string]string{}}
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return err
	}
	for name, text := range map[string]string{"pod.json": fmt.Sprintf(crictlPod, c.dir), "ctr.json": crictlCtr} {
		if err := os.WriteFile(filepath.Join(c.dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	steps := []struct{ command, keep, want string }{
		{"version", "", "RuntimeName:  sampan"},
		{"info", "", "RuntimeReady"},
		{"pull registry.k8s.io/e2e-test-images/busybox:1.29-2", "", "Image is up to date"},
		{"images", "", "registry.k8s.io/e2e-test-images/busybox"},
		{"runp pod.json", "pod", ""},
		{"pods", "", "crictl"},
		{"create $pod ctr.json pod.json", "ctr", ""},
		{"start $ctr", "", ""},
		{"exec -s $ctr echo inside", "", "inside"},
		{"logs $ctr", "", "started"},
		{"ps", "", "Running"},
		{"inspect $ctr", "", "CONTAINER_RUNNING"},
		{"inspectp $pod", "", "SANDBOX_READY"},
		{"stats", "", "main"},
		{"stop $ctr", "", ""},
		{"rm $ctr", "", ""},
		{"stopp $pod", "", ""},
		{"rmp $pod", "", ""},
	}
	for _, step := range steps {
		if err := c.run(ctx, step.command, step.keep, step.want); err != nil {
			return err
		}
	}
	fmt.Printf("crictl: %d commands did what they should\n", len(steps))
	return nil
}

// run repeats a command for a moment that has not shown what is wanted: logs are written
// behind the container's back.
func (c *crictl) run(ctx context.Context, command, keep, want string) error {
	const patience = 5 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience*4)
	defer cancel()
	var args []string
	for _, arg := range strings.Fields(command) {
		if id, ok := c.ids[strings.TrimPrefix(arg, "$")]; ok && arg[0] == '$' {
			arg = id
		}
		args = append(args, arg)
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		cmd := exec.CommandContext(ctx, c.path, append([]string{"-r", c.endpoint, "-i", c.endpoint, "--timeout", "20s"}, args...)...)
		cmd.Dir = c.dir
		var errOut bytes.Buffer
		cmd.Stderr = &errOut
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("crictl %s: %w: %s", command, err, errOut.String())
		}
		if strings.Contains(string(out), want) {
			c.ids[keep] = strings.TrimSpace(string(out))
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("crictl %s: it printed no %q, but %s", command, want, out)
		}
	}
}
