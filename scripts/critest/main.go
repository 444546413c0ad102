// Command critest validates the container runtime: it serves the images that the
// validation suite of sigs.k8s.io/cri-tools asks for, runs the suite against
// bin/criserver, and judges what was skipped by a list of reasons.
//
// Usage: critest -bin DIRECTORY -skips FILE [-focus REGEX]
//
// It needs root. All that it does happens in namespaces of its own.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// isolated marks the process that has namespaces of its own.
const isolated = "SAMPAN_CRITEST_ISOLATED"

func main() {
	var r run
	flag.StringVar(&r.bin, "bin", "bin", "directory of the programs")
	flag.StringVar(&r.skips, "skips", "skips.txt", "list of specs that do not apply, with reasons")
	flag.StringVar(&r.focus, "focus", "", "run only the specs that match")
	flag.StringVar(&r.log, "log", "", "file for the suite's output; empty is the bin directory's critest.log")
	flag.Parse()
	var err error
	if os.Getenv(isolated) == "" {
		err = isolate()
	} else {
		err = r.start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "critest:", err)
		os.Exit(1)
	}
}

// isolate runs this program again in namespaces of its own.
func isolate() error {
	if os.Getuid() != 0 {
		return errors.New("root is needed: containers, mounts and namespaces")
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), isolated+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC, Pdeathsig: syscall.SIGTERM}
	return cmd.Run()
}

type run struct {
	bin, skips, focus, log string
	dir                    string
}

func (r *run) start() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	skips, err := readSkips(r.skips)
	if err != nil {
		return err
	}
	// Apart from the machine's first, then shared among what is started here: the suite
	// tests the propagation of mounts.
	for _, kind := range []uintptr{unix.MS_PRIVATE, unix.MS_SHARED} {
		if err := unix.Mount("", "/", "", unix.MS_REC|kind, ""); err != nil {
			return fmt.Errorf("making mounts this process's own: %w", err)
		}
	}
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("bringing up loopback: %w: %s", err, out)
	}
	if r.bin, err = filepath.Abs(r.bin); err != nil {
		return err
	}
	if r.log == "" {
		r.log = filepath.Join(r.bin, "critest.log")
	}
	if r.dir, err = os.MkdirTemp("", "sampan-critest-"); err != nil {
		return err
	}
	defer os.RemoveAll(r.dir)
	// The root of a pod with its own user namespace has to come through.
	if err := os.Chmod(r.dir, 0o711); err != nil {
		return err
	}
	images, err := serveImages(r.bin)
	if err != nil {
		return fmt.Errorf("serving the suite's images: %w", err)
	}
	defer images.close()
	suite, err := r.suite(images.digest)
	if err != nil {
		return err
	}
	stopRuntime, err := r.startRuntime(ctx, images.address)
	if err != nil {
		return err
	}
	if err := r.driveCrictl(ctx); err != nil {
		return errors.Join(err, stopRuntime())
	}
	suiteErr := r.runSuite(ctx, suite, skips)
	return errors.Join(judge(filepath.Join(r.dir, reportFile), skips, r.focus != "", suiteErr), stopRuntime())
}

func (r *run) socket() string { return filepath.Join(r.dir, "cri.sock") }

// startRuntime starts the runtime, with the registry as the mirror of all others.
func (r *run) startRuntime(ctx context.Context, registry string) (stop func() error, err error) {
	hosts := filepath.Join(r.dir, "hosts", "_default")
	if err := os.MkdirAll(hosts, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(hosts, "hosts.toml"), fmt.Appendf(nil, "server = %q\n", "http://"+registry), 0o644); err != nil {
		return nil, err
	}
	log, err := os.Create(r.log + ".runtime")
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(filepath.Join(r.bin, "criserver"),
		"--root-dir", filepath.Join(r.dir, "root"), "--run-dir", filepath.Join(r.dir, "run"), "--socket", r.socket(),
		"--cgroup-root", fmt.Sprintf("sampan-critest-%d", os.Getpid()), "--pids-limit", "1000",
		"--pod-cidr", "10.77.0.0/16", "--registry-hosts-dir", filepath.Join(r.dir, "hosts"))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the runtime: %w", err)
	}
	stop = func() error {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		return errors.Join(cmd.Wait(), log.Close())
	}
	if err := awaitSocket(ctx, r.socket()); err != nil {
		return nil, errors.Join(err, stop())
	}
	return stop, nil
}

func awaitSocket(ctx context.Context, path string) error {
	const patience = 10 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		conn, err := net.Dial("unix", path)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for the runtime: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// runSuite returns an error also when specs fail; the report tells which.
func (r *run) runSuite(ctx context.Context, suite string, skips []skip) error {
	log, err := os.Create(r.log)
	if err != nil {
		return err
	}
	defer log.Close()
	endpoint := "unix://" + r.socket()
	args := []string{
		"-runtime-endpoint", endpoint, "-image-endpoint", endpoint, "-config", filepath.Join(r.dir, "none.yaml"),
		"-ginkgo.no-color", "-ginkgo.json-report", filepath.Join(r.dir, reportFile),
		// A container's program that is stopped as it starts may not handle the signal yet: such a spec is tried once more.
		"-ginkgo.flake-attempts", "2",
	}
	for _, skip := range skips {
		args = append(args, "-ginkgo.skip", skip.pattern.String())
	}
	if r.focus != "" {
		args = append(args, "-ginkgo.focus", r.focus)
	}
	cmd := exec.CommandContext(ctx, suite, args...)
	cmd.Dir = r.dir
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("the suite: %w; its output is in %s", err, r.log)
	}
	return nil
}

// suite makes a copy of critest for this run. One of its specs pulls a published image
// by digest, which no image that is built here can have: in the program the digest of
// the stand-in, which is as long, takes its place.
func (r *run) suite(digest string) (string, error) {
	const published = "9700f9a2f5bf2c45f2f605a0bd3bce7cf37420ec9d3ed50ac2758413308766bf"
	program, err := os.ReadFile(filepath.Join(r.bin, "critest"))
	if err != nil {
		return "", err
	}
	if !bytes.Contains(program, []byte(published)) {
		return "", fmt.Errorf("the suite does not name the digest %s any more", published)
	}
	suite := filepath.Join(r.dir, "critest")
	return suite, os.WriteFile(suite, bytes.ReplaceAll(program, []byte(published), []byte(digest)), 0o755)
}
