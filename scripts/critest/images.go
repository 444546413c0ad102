package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// served is a registry that has the suite's images.
type served struct {
	address string
	digest  string // hexadecimal, of the image that is pulled by it
	close   func()
}

// repositories of the images, without the registries: one stands in for all.
const (
	e2eImages     = "e2e-test-images/"
	criToolImages = "k8s-staging-cri-tools/"
	digestImage   = criToolImages + "test-image-digest"
)

// suiteImages are the configurations by name and tag.
func suiteImages() map[string]v1.Config {
	shell := func(label, user string) v1.Config {
		return v1.Config{Cmd: []string{"sh"}, User: user, Labels: map[string]string{"stands-for": label}}
	}
	images := map[string]v1.Config{
		e2eImages + "busybox:1.29-2": shell("busybox", ""),
		e2eImages + "nginx:1.14-2":   {Cmd: []string{"/usr/sbin/nginx", "-p", "80"}},
		e2eImages + "httpd:2.4.39-4": {Cmd: []string{"/usr/sbin/httpd", "-p", "80"}},
		e2eImages + "nonewprivs:1.3": {Cmd: []string{"/nnp"}},
		"pause:3.9":                  {Cmd: []string{"/bin/top"}},
		digestImage + ":latest":      shell("digest", ""),
		criToolImages + "hostnet-nginx-" + runtime.GOARCH + ":latest": {Cmd: []string{"/usr/sbin/nginx", "-p", "12003"}},
	}
	for _, tag := range []string{"test-image-latest:latest", "test-image-tag:test", "test-image-tag:all", "test-image-1:latest", "test-image-2:latest", "test-image-3:latest"} {
		images[criToolImages+tag] = shell(tag, "")
	}
	for _, tag := range []string{"1", "2", "3"} {
		images[criToolImages+"test-image-tags:"+tag] = shell("tags", "")
	}
	for image, user := range map[string]string{
		"user-uid": "1002", "user-username": "www-data", "user-uid-group": "1003:100", "user-username-group": "www-data:100", "predefined-group": "1000",
	} {
		images[criToolImages+"test-image-"+image+":latest"] = shell(image, user)
	}
	return images
}

// serveImages builds the images from bin/standin and busybox, and serves them.
func serveImages(bin string) (*served, error) {
	layer, err := baseLayer(bin)
	if err != nil {
		return nil, err
	}
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	out := &served{address: strings.TrimPrefix(server.URL, "http://"), close: server.Close}
	for ref, config := range suiteImages() {
		config.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
		image, err := build(layer, config)
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", ref, err)
		}
		target, err := name.ParseReference(out.address+"/"+ref, name.Insecure)
		if err != nil {
			return nil, err
		}
		if err := remote.Write(target, image); err != nil {
			return nil, fmt.Errorf("image %s: %w", ref, err)
		}
		if strings.HasPrefix(ref, digestImage) {
			digest, err := image.Digest()
			if err != nil {
				return nil, err
			}
			out.digest = digest.Hex
		}
	}
	return out, nil
}

func build(layer v1.Layer, config v1.Config) (v1.Image, error) {
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config = "linux", runtime.GOARCH, config
	return mutate.ConfigFile(image, file)
}

// baseLayer has busybox, and the stand-ins under the names that take its place.
func baseLayer(bin string) (v1.Layer, error) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return nil, fmt.Errorf("a static busybox is missing; on Debian: apt-get install busybox-static: %w", err)
	}
	applets, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("asking busybox for its applets: %w", err)
	}
	var w layerWriter
	w.tar = tar.NewWriter(&w.data)
	w.copy("bin/busybox", busybox)
	w.copy("bin/standin", filepath.Join(bin, "standin"))
	// These two are process 1 of most containers, and have to be there at once: a signal
	// that comes before process 1 handles it is lost.
	w.copy("bin/sh", filepath.Join(bin, "standin-sh"))
	w.copy("bin/top", filepath.Join(bin, "pause"))
	ours := []string{"sh", "top", "ipcs", "pgrep", "pidof"}
	for _, tool := range ours[2:] {
		w.link("bin/"+tool, "bin/standin")
	}
	w.link("usr/sbin/nginx", "bin/standin")
	w.link("usr/sbin/httpd", "bin/standin")
	for _, applet := range strings.Fields(string(applets)) {
		if applet != "busybox" && !slices.Contains(ours, applet) {
			w.link("bin/"+applet, "bin/busybox")
		}
	}
	// A file of its own, since the bit belongs to the file and not to the name.
	const setUser = 0o4755
	if program, err := os.ReadFile(filepath.Join(bin, "standin")); err == nil {
		w.file("nnp", setUser, program)
	}
	w.file("etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33:www:/var/www:/bin/false\ndefault-user:x:1000:1000::/home:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n"))
	w.file("etc/group", 0o644, []byte("root:x:0:\nwww-data:x:33:\nusers:x:100:\ndefault-user:x:1000:\ngroup-defined-in-image:x:50000:default-user\n"))
	for _, dir := range []string{"tmp/", "var/run/"} {
		w.header(&tar.Header{Name: dir, Typeflag: tar.TypeDir, Mode: 0o1777})
	}
	if w.err == nil {
		w.err = w.tar.Close()
	}
	if w.err != nil {
		return nil, w.err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(w.data.Bytes())), nil })
}

// layerWriter keeps the first error.
type layerWriter struct {
	data bytes.Buffer
	tar  *tar.Writer
	err  error
}

func (w *layerWriter) header(h *tar.Header) {
	if w.err == nil {
		w.err = w.tar.WriteHeader(h)
	}
}

func (w *layerWriter) file(name string, mode int64, data []byte) {
	w.header(&tar.Header{Name: name, Mode: mode, Size: int64(len(data))})
	if w.err == nil {
		_, w.err = w.tar.Write(data)
	}
}

func (w *layerWriter) copy(name, source string) {
	data, err := os.ReadFile(source)
	if err != nil {
		w.err = err
		return
	}
	w.file(name, 0o755, data)
}

func (w *layerWriter) link(name, target string) {
	w.header(&tar.Header{Name: name, Linkname: target, Typeflag: tar.TypeLink, Mode: 0o755})
}
