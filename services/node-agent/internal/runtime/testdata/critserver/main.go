// Critserver serves the runtime for the CRI validation suite, with the suite's images
// from a registry in this process that stands in for every other.
//
// Usage: critserver <directory> <bin directory>; the socket is <directory>/cri.sock.
package main

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/sampan-io/sampan/services/node-agent/internal/network"
	"github.com/sampan-io/sampan/services/node-agent/internal/runtime"
)

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(dir, bin string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := network.LoopbackUp(); err != nil {
		return err
	}
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	if err := fill(strings.TrimPrefix(server.URL, "http://")); err != nil {
		return err
	}
	hosts := filepath.Join(dir, "hosts", "_default")
	if err := os.MkdirAll(hosts, 0o755); err != nil {
		return err
	}
	toml := fmt.Sprintf("server = %q\n", server.URL)
	if err := os.WriteFile(filepath.Join(hosts, "hosts.toml"), []byte(toml), 0o644); err != nil {
		return err
	}
	conf := filepath.Join(dir, "cni-conf")
	err := network.WriteBridgeConfig(conf, network.BridgeConfig{
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.77.0.0/16")}, DataDir: filepath.Join(dir, "cni-data"), IPMasq: true,
	})
	if err != nil {
		return err
	}
	conmon, err := exec.LookPath("conmon")
	if err != nil {
		return err
	}
	rt, err := runtime.New(runtime.Config{
		Root: filepath.Join(dir, "root"), Run: filepath.Join(dir, "run"), Socket: filepath.Join(dir, "cri.sock"),
		Runc: filepath.Join(bin, "runc"), Conmon: conmon, Pause: filepath.Join(bin, "pause"),
		Network:      network.Config{PluginDirs: []string{filepath.Join(bin, "cni")}, ConfDir: conf},
		CgroupParent: "/sampan-critest", PIDsLimit: 1000, HostsDir: filepath.Join(dir, "hosts"),
	})
	if err != nil {
		return err
	}
	return rt.Run(ctx)
}

// fill pushes all images that the suite names.
func fill(host string) error {
	base, err := busybox()
	if err != nil {
		return err
	}
	web := func(port string) v1.Config {
		return v1.Config{Cmd: []string{"/bin/httpd", "-f", "-p", port, "-h", "/www"}}
	}
	configs := map[string]v1.Config{
		"e2e-test-images/busybox:1.29-2": {}, "e2e-test-images/nginx:1.14-2": web("80"), "pause:3.9": {Labels: map[string]string{"n": "pause"}}, "e2e-test-images/httpd:2.4.39-4": web("80"),
		"k8s-staging-cri-tools/hostnet-nginx-amd64:latest":            web("12003"),
		"k8s-staging-cri-tools/test-image-user-uid:latest":            {User: "1002"},
		"k8s-staging-cri-tools/test-image-user-username:latest":       {User: "www-data"},
		"k8s-staging-cri-tools/test-image-user-uid-group:latest":      {User: "1003:100"},
		"k8s-staging-cri-tools/test-image-user-username-group:latest": {User: "www-data:100"},
		"k8s-staging-cri-tools/test-image-predefined-group:latest":    {User: "1000"},
		"k8s-staging-cri-tools/test-image-latest:latest":              {Labels: map[string]string{"n": "latest"}},
		"k8s-staging-cri-tools/test-image-tag:test":                   {Labels: map[string]string{"n": "tag"}},
		"k8s-staging-cri-tools/test-image-tag:all":                    {Labels: map[string]string{"n": "all"}},
		"k8s-staging-cri-tools/test-image-1:latest":                   {Labels: map[string]string{"n": "1"}},
		"k8s-staging-cri-tools/test-image-2:latest":                   {Labels: map[string]string{"n": "2"}},
		"k8s-staging-cri-tools/test-image-3:latest":                   {Labels: map[string]string{"n": "3"}},
		"k8s-staging-cri-tools/test-image-tags:1":                     {Labels: map[string]string{"n": "tags"}},
		"k8s-staging-cri-tools/test-image-tags:2":                     {Labels: map[string]string{"n": "tags"}},
		"k8s-staging-cri-tools/test-image-tags:3":                     {Labels: map[string]string{"n": "tags"}},
	}
	for ref, config := range configs {
		config.Env = []string{"PATH=/bin"}
		if len(config.Cmd) == 0 {
			config.Cmd = []string{"/bin/sh"}
		}
		img, err := mutate.Config(base, config)
		if err != nil {
			return err
		}
		target, err := name.ParseReference(host+"/"+ref, name.Insecure)
		if err != nil {
			return err
		}
		if err := remote.Write(target, img); err != nil {
			return err
		}
	}
	return nil
}

func busybox() (v1.Image, error) {
	program, err := os.ReadFile("/usr/bin/busybox")
	if err != nil {
		return nil, err
	}
	applets, err := exec.Command("/usr/bin/busybox", "--list").Output()
	if err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	file := func(name string, mode int64, data string) error {
		if err := tw.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(data))}); err != nil {
			return err
		}
		_, err := tw.Write([]byte(data))
		return err
	}
	err = file("bin/busybox", 0o755, string(program))
	for _, applet := range strings.Fields(string(applets)) {
		if err == nil && applet != "busybox" {
			err = tw.WriteHeader(&tar.Header{Name: "bin/" + applet, Linkname: "bin/busybox", Typeflag: tar.TypeLink, Mode: 0o755})
		}
	}
	for _, f := range []struct{ name, data string }{
		{"etc/passwd", "root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33:www:/var/www:/bin/false\ndefault-user:x:1000:1000::/home:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n"},
		{"etc/group", "root:x:0:\nwww-data:x:33:\nusers:x:100:\ndefault-user:x:1000:\ngroup-defined-in-image:x:50000:default-user\n"},
		{"www/index.html", "<html><title>Welcome to nginx!</title></html>\n"},
	} {
		if err == nil {
			err = file(f.name, 0o644, f.data)
		}
	}
	if err == nil {
		err = tw.WriteHeader(&tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777})
	}
	if err == nil {
		err = tw.Close()
	}
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil })
	if err != nil {
		return nil, err
	}
	return mutate.AppendLayers(empty.Image, layer)
}
