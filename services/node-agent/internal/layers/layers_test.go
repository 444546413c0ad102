package layers_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sampan-io/sampan/services/node-agent/internal/layers"
)

// entry is one member of a layer.
type entry struct {
	name, link, data string
	kind             byte
	mode             int64
	uid              int
	pax              map[string]string
}

func layer(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, e := range entries {
		if e.kind == 0 {
			e.kind = tar.TypeReg
		}
		if e.mode == 0 {
			e.mode = 0o644
		}
		header := &tar.Header{Name: e.name, Linkname: e.link, Typeflag: e.kind, Mode: e.mode, Uid: e.uid, Size: int64(len(e.data)), PAXRecords: e.pax}
		if e.kind == tar.TypeChar || e.kind == tar.TypeBlock {
			header.Devmajor, header.Devminor = 1, 3
		}
		if err := tw.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write([]byte(e.data)); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// unpack unpacks beside a file that no layer may touch.
func unpack(t testing.TB, data []byte) (dir string, err error) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: owners and whiteouts")
	}
	outside := t.TempDir()
	dir = filepath.Join(outside, "layer")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(outside, "victim"), []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	err = layers.Unpack(t.Context(), bytes.NewReader(data), dir, layers.Limits{Bytes: 1 << 20, Entries: 1000})
	got, readErr := os.ReadFile(filepath.Join(outside, "victim"))
	if readErr != nil || string(got) != "untouched" {
		t.Errorf("a file outside was changed: %q, %v", got, readErr)
	}
	entries, readErr := os.ReadDir(outside)
	if readErr != nil || len(entries) != 2 {
		t.Errorf("files were made outside: %v, %v", entries, readErr)
	}
	return dir, err
}

func mustUnpack(t testing.TB, entries ...entry) string {
	t.Helper()
	dir, err := unpack(t, layer(t, entries...))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func assertContent(t testing.TB, path, want string) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil || string(got) != want {
		t.Errorf("%s: %q, %v", path, got, err)
	}
}

func TestUnpackKeepsOwnersModesAndLinks(t *testing.T) {
	dir := mustUnpack(t,
		entry{name: "bin/", kind: tar.TypeDir, mode: 0o751},
		entry{name: "bin/su", data: "program", mode: 0o4755, uid: 7},
		entry{name: "bin/hard", kind: tar.TypeLink, link: "bin/su"},
		entry{name: "bin/soft", kind: tar.TypeSymlink, link: "/bin/su"},
		entry{name: "deep/er/file", data: "x"},
	)
	var stat unix.Stat_t
	if err := unix.Lstat(filepath.Join(dir, "bin/su"), &stat); err != nil {
		t.Fatal(err)
	}
	if stat.Uid != 7 || stat.Mode&0o7777 != 0o4755 || stat.Nlink != 2 {
		t.Errorf("owner %d, mode %o, links %d", stat.Uid, stat.Mode, stat.Nlink)
	}
	if link, err := os.Readlink(filepath.Join(dir, "bin/soft")); err != nil || link != "/bin/su" {
		t.Errorf("link %q, %v", link, err)
	}
	assertContent(t, filepath.Join(dir, "deep/er/file"), "x")
}

func TestUnpackContainsHostileEntries(t *testing.T) {
	tests := map[string][]entry{
		"dot dot":                   {{name: "../victim", data: "owned"}},
		"dot dot inside":            {{name: "a/../../victim", data: "owned"}},
		"absolute name":             {{name: "/victim", data: "inside"}},
		"parent link up":            {{name: "a", kind: tar.TypeSymlink, link: ".."}, {name: "a/victim", data: "inside"}},
		"parent link absolute":      {{name: "a", kind: tar.TypeSymlink, link: "/"}, {name: "a/victim", data: "inside"}},
		"parent link to proc":       {{name: "a", kind: tar.TypeSymlink, link: "/proc/self/cwd"}, {name: "a/victim", data: "inside"}},
		"link chain":                {{name: "a", kind: tar.TypeSymlink, link: "b"}, {name: "b", kind: tar.TypeSymlink, link: "../.."}, {name: "a/victim", data: "inside"}},
		"link loop":                 {{name: "a", kind: tar.TypeSymlink, link: "b"}, {name: "b", kind: tar.TypeSymlink, link: "a"}, {name: "a/victim", data: "owned"}},
		"file through final link":   {{name: "a", kind: tar.TypeSymlink, link: "../victim"}, {name: "a", data: "inside"}},
		"hard link to outside":      {{name: "a", kind: tar.TypeLink, link: "../victim"}, {name: "a", data: "owned"}},
		"hard link through link":    {{name: "a", kind: tar.TypeSymlink, link: "../victim"}, {name: "b", kind: tar.TypeLink, link: "a"}, {name: "b", data: "inside"}},
		"hard link parent link":     {{name: "a", kind: tar.TypeSymlink, link: ".."}, {name: "b", kind: tar.TypeLink, link: "a/victim"}},
		"hard link to root":         {{name: "b", kind: tar.TypeLink, link: "/"}},
		"whiteout up":               {{name: ".wh..."}},
		"whiteout through link":     {{name: "a", kind: tar.TypeSymlink, link: ".."}, {name: "a/.wh.victim"}},
		"opaque through link":       {{name: "a", kind: tar.TypeSymlink, link: ".."}, {name: "a/.wh..wh..opq"}},
		"directory over link":       {{name: "a", kind: tar.TypeSymlink, link: ".."}, {name: "a", kind: tar.TypeDir, mode: 0o777}, {name: "a/victim", data: "inside"}},
		"root as file":              {{name: ".", data: "owned"}},
		"root as link":              {{name: "./", kind: tar.TypeSymlink, link: "/"}},
		"tree replaced by link":     {{name: "a/b/c", data: "x"}, {name: "a", kind: tar.TypeSymlink, link: ".."}, {name: "a/b/victim", data: "inside"}, {name: "a/victim", data: "inside"}},
		"overlay redirect":          {{name: "a", kind: tar.TypeDir, pax: map[string]string{"SCHILY.xattr.trusted.overlay.redirect": "/../.."}}},
		"device":                    {{name: "dev/mem", kind: tar.TypeChar}, {name: "dev/sda", kind: tar.TypeBlock}},
		"dev as link":               {{name: "dev", kind: tar.TypeSymlink, link: "/dev"}, {name: "dev/null", data: "inside"}},
		"mode of root through link": {{name: "a", kind: tar.TypeSymlink, link: ".."}, {name: "a/", kind: tar.TypeDir, mode: 0o777}},
	}
	for name, entries := range tests {
		t.Run(name, func(t *testing.T) {
			dir, err := unpack(t, layer(t, entries...))
			if err != nil {
				t.Logf("refused: %v", err)
			}
			assertNoDevicesOrRedirects(t, dir)
		})
	}
}

func assertNoDevicesOrRedirects(t testing.TB, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var stat unix.Stat_t
		if err := unix.Lstat(path, &stat); err != nil {
			return err
		}
		kind := stat.Mode & unix.S_IFMT
		if kind == unix.S_IFBLK || (kind == unix.S_IFCHR && stat.Rdev != 0) {
			t.Errorf("%s is a device", path)
		}
		if size, err := unix.Lgetxattr(path, "trusted.overlay.redirect", nil); err == nil && size >= 0 {
			t.Errorf("%s has a redirect", path)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestUnpackRefusesNamesThatClimb(t *testing.T) {
	_, err := unpack(t, layer(t, entry{name: "a/../../b", data: "x"}))
	if !errors.Is(err, layers.ErrHostile) {
		t.Errorf("error %v", err)
	}
}

func TestWhiteoutsBecomeOverlays(t *testing.T) {
	dir := mustUnpack(t,
		entry{name: "etc/.wh.gone"},
		entry{name: "var/", kind: tar.TypeDir, mode: 0o755},
		entry{name: "var/.wh..wh..opq"},
		entry{name: ".wh.replaced"},
		entry{name: "replaced/", kind: tar.TypeDir, mode: 0o755},
		entry{name: "kept", data: "new"},
		entry{name: ".wh.kept"},
	)
	var stat unix.Stat_t
	if err := unix.Lstat(filepath.Join(dir, "etc/gone"), &stat); err != nil || stat.Mode&unix.S_IFMT != unix.S_IFCHR || stat.Rdev != 0 {
		t.Errorf("whiteout: %v, mode %o, device %d", err, stat.Mode, stat.Rdev)
	}
	for _, opaque := range []string{"var", "replaced"} {
		value := make([]byte, 8)
		n, err := unix.Lgetxattr(filepath.Join(dir, opaque), "trusted.overlay.opaque", value)
		if err != nil || string(value[:n]) != "y" {
			t.Errorf("%s is not opaque: %v", opaque, err)
		}
	}
	assertContent(t, filepath.Join(dir, "kept"), "new")
}

func TestUnpackOfCutOffLayerFails(t *testing.T) {
	data := layer(t, entry{name: "file", data: strings.Repeat("x", 4096)})
	if _, err := unpack(t, data[:1024]); err == nil {
		t.Error("a cut-off layer was accepted")
	}
}

func TestUnpackStopsAtItsLimits(t *testing.T) {
	many := make([]entry, 1001)
	for i := range many {
		many[i] = entry{name: fmt.Sprint(i), kind: tar.TypeSymlink, link: "x"}
	}
	big := entry{name: "big", data: strings.Repeat("x", 600<<10)}
	for name, entries := range map[string][]entry{"entries": many, "bytes": {big, {name: "big2", data: big.data}}} {
		if _, err := unpack(t, layer(t, entries...)); !errors.Is(err, layers.ErrHostile) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// FuzzUnpack looks for streams that make a change outside of the layer.
func FuzzUnpack(f *testing.F) {
	f.Add(layer(f, entry{name: "a/b", data: "x"}, entry{name: "c", kind: tar.TypeSymlink, link: "../.."}, entry{name: "c/d", data: "y"}))
	f.Add(layer(f, entry{name: "d/", kind: tar.TypeDir, mode: 0o777}, entry{name: "d/.wh.x"}, entry{name: "d/.wh..wh..opq"}, entry{name: "h", kind: tar.TypeLink, link: "a/../../victim"}))
	f.Add(layer(f, entry{name: "p", kind: tar.TypeFifo}, entry{name: "x", pax: map[string]string{"SCHILY.xattr.user.a": "b"}}))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir, _ := unpack(t, data)
		assertNoDevicesOrRedirects(t, dir)
	})
}
