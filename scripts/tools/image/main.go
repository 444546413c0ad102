// Command image writes an OCI image archive from files of this machine, without
// any registry. The same files give the same image.
//
//	image -o ARCHIVE -tag NAME [-cmd ARG,ARG] [-link PATH=TARGET]... FILE=PATH...
package main

import (
	"archive/tar"
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"sort"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

type options struct {
	archive, tag, command string
	links                 []string
	files                 []string
}

func main() {
	var o options
	flag.StringVar(&o.archive, "o", "", "archive to write")
	flag.StringVar(&o.tag, "tag", "", "name of the image")
	flag.StringVar(&o.command, "cmd", "", "default command, separated by commas")
	flag.Func("link", "symbolic link PATH=TARGET; may be repeated", func(s string) error { o.links = append(o.links, s); return nil })
	flag.Parse()
	o.files = flag.Args()
	if err := build(o); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func build(o options) error {
	tag, err := name.NewTag(o.tag)
	if err != nil {
		return fmt.Errorf("-tag: %w", err)
	}
	content, err := layer(o)
	if err != nil {
		return err
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil })
	if err != nil {
		return fmt.Errorf("making layer: %w", err)
	}
	image, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		return fmt.Errorf("adding layer: %w", err)
	}
	config := v1.Config{Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, WorkingDir: "/"}
	if o.command != "" {
		config.Cmd = strings.Split(o.command, ",")
	}
	file, err := image.ConfigFile()
	if err != nil {
		return err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config = "linux", runtime.GOARCH, config
	if image, err = mutate.ConfigFile(image, file); err != nil {
		return fmt.Errorf("setting configuration: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(o.archive), 0o755); err != nil {
		return err
	}
	return tarball.WriteToFile(o.archive, tag, image)
}

// layer is the tar of all files, in order of their paths, with their folders.
func layer(o options) ([]byte, error) {
	headers := map[string]*tar.Header{"tmp": {Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}}
	bodies := map[string][]byte{}
	for _, pair := range o.files {
		from, to, ok := strings.Cut(pair, "=")
		if !ok {
			return nil, fmt.Errorf("%q is not FILE=PATH", pair)
		}
		data, err := os.ReadFile(from)
		if err != nil {
			return nil, fmt.Errorf("reading file: %w", err)
		}
		info, err := os.Stat(from)
		if err != nil {
			return nil, fmt.Errorf("reading file: %w", err)
		}
		to = strings.TrimPrefix(path.Clean(to), "/")
		headers[to] = &tar.Header{Name: to, Typeflag: tar.TypeReg, Mode: int64(info.Mode().Perm()), Size: int64(len(data))}
		bodies[to] = data
	}
	for _, pair := range o.links {
		at, target, ok := strings.Cut(pair, "=")
		if !ok {
			return nil, fmt.Errorf("%q is not PATH=TARGET", pair)
		}
		at = strings.TrimPrefix(path.Clean(at), "/")
		headers[at] = &tar.Header{Name: at, Typeflag: tar.TypeSymlink, Linkname: target, Mode: 0o777}
	}
	for at := range headers {
		for dir := path.Dir(at); dir != "."; dir = path.Dir(dir) {
			if headers[dir] == nil {
				headers[dir] = &tar.Header{Name: dir + "/", Typeflag: tar.TypeDir, Mode: 0o755}
			}
		}
	}
	return writeTar(headers, bodies)
}

func writeTar(headers map[string]*tar.Header, bodies map[string][]byte) ([]byte, error) {
	var order []string
	for at := range headers {
		order = append(order, at)
	}
	sort.Strings(order)
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	for _, at := range order {
		if err := w.WriteHeader(headers[at]); err != nil {
			return nil, fmt.Errorf("writing %s: %w", at, err)
		}
		if _, err := w.Write(bodies[at]); err != nil {
			return nil, fmt.Errorf("writing %s: %w", at, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buffer.Bytes(), nil
}
