package runtime

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const sharedMemorySize = 64 << 20

// makeSandboxFiles makes what the containers of a sandbox share: resolv.conf,
// hostname, hosts and /dev/shm.
func (s *Server) makeSandboxFiles(record *sandboxRecord) error {
	dir := s.cfg.sandboxDir(record.ID)
	name := hostname(record.Config)
	resolv, err := resolvConf(record.Config.GetDnsConfig())
	if err != nil {
		return err
	}
	for file, content := range map[string]string{
		"resolv.conf": resolv,
		"hostname":    name + "\n",
		"hosts":       "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\t" + name + "\n",
	} {
		path := filepath.Join(dir, file)
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return err
		}
		if err := giveToRoot(record.Config, path); err != nil {
			return err
		}
	}
	if hostIPC(record.Config) {
		return nil
	}
	shm := s.cfg.sharedMemory(record.ID)
	if err := os.MkdirAll(shm, 0o700); err != nil {
		return err
	}
	uid, gid := hostRoot(record.Config)
	options := fmt.Sprintf("mode=1777,size=%d,uid=%d,gid=%d", sharedMemorySize, uid, gid)
	if err := unix.Mount("shm", shm, "tmpfs", unix.MS_NOEXEC|unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("mounting /dev/shm: %w", err)
	}
	return nil
}

// resolvConf gives the sandbox its own resolver configuration; without one it gets
// the node's.
func resolvConf(dns *runtimeapi.DNSConfig) (string, error) {
	if dns == nil {
		data, err := os.ReadFile("/etc/resolv.conf")
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
		return string(data), nil
	}
	var b strings.Builder
	if len(dns.GetSearches()) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(dns.GetSearches(), " "))
	}
	for _, server := range dns.GetServers() {
		fmt.Fprintf(&b, "nameserver %s\n", server)
	}
	if len(dns.GetOptions()) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(dns.GetOptions(), " "))
	}
	return b.String(), nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// sandboxMounts puts the shared files into a container. A read-only root file system
// makes them read-only too.
func (s *Server) sandboxMounts(record *sandboxRecord, readonly bool) []specs.Mount {
	access := "rw"
	if readonly {
		access = "ro"
	}
	var mounts []specs.Mount
	for _, file := range []string{"resolv.conf", "hostname", "hosts"} {
		source := filepath.Join(s.cfg.sandboxDir(record.ID), file)
		if file == "hosts" && hostNetwork(record.Config) && exists("/etc/hosts") {
			source = "/etc/hosts"
		}
		mounts = append(mounts, specs.Mount{Destination: "/etc/" + file, Type: "bind", Source: source, Options: []string{"rbind", "rprivate", access}})
	}
	shm := s.cfg.sharedMemory(record.ID)
	if hostIPC(record.Config) {
		shm = "/dev/shm"
	}
	return append(mounts, specs.Mount{Destination: "/dev/shm", Type: "bind", Source: shm, Options: []string{"rbind", "rprivate", "rw"}})
}
