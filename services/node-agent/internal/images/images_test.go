package images_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/sampan-io/sampan/services/node-agent/internal/images"
)

func newStore(t *testing.T, edit ...func(*images.Config)) *images.Store {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: owners of unpacked files")
	}
	cfg := images.Config{Root: filepath.Join(t.TempDir(), "images")}
	for _, fn := range edit {
		fn(&cfg)
	}
	return reopen(t, cfg)
}

func reopen(t *testing.T, cfg images.Config) *images.Store {
	t.Helper()
	store, err := images.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func newLayer(t *testing.T, name, content string) v1.Layer {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
		t.Fatal(err)
	}
	if _, err := tw.Write([]byte(content)); err != nil {
		t.Fatal(err)
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	return layer
}

func newImage(t *testing.T, files ...string) v1.Image {
	t.Helper()
	img := empty.Image
	for _, file := range files {
		var err error
		if img, err = mutate.AppendLayers(img, newLayer(t, file, "content of "+file)); err != nil {
			t.Fatal(err)
		}
	}
	return img
}

// newRegistry serves images over plain HTTP on loopback; before runs first for each
// request, and may answer it.
func newRegistry(t *testing.T, before func(http.ResponseWriter, *http.Request) bool) (host string) {
	t.Helper()
	handler := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if before == nil || !before(w, r) {
			handler.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

func push(t *testing.T, ref string, img v1.Image, options ...remote.Option) {
	t.Helper()
	parsed, err := name.ParseReference(ref, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(parsed, img, options...); err != nil {
		t.Fatal(err)
	}
}

func idOf(t *testing.T, img v1.Image) string {
	t.Helper()
	id, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	return id.String()
}

func TestPullUnpacksSharesAndNamesImages(t *testing.T) {
	host := newRegistry(t, nil)
	first, second := newImage(t, "base", "one"), newImage(t, "base", "two")
	push(t, host+"/app:v1", first)
	push(t, host+"/app:v2", second)
	store := newStore(t)
	a, err := store.Pull(t.Context(), host+"/app:v1", images.Credentials{})
	if err != nil {
		t.Fatal(err)
	}
	b, err := store.Pull(t.Context(), host+"/app:v2", images.Credentials{})
	if err != nil {
		t.Fatal(err)
	}
	if a.ID != idOf(t, first) || a.RepoTags[0] != host+"/app:v1" || !strings.HasPrefix(a.RepoDigests[0], host+"/app@sha256:") {
		t.Errorf("image %+v", a)
	}
	if a.Layers[0] != b.Layers[0] || a.Layers[1] == b.Layers[1] {
		t.Errorf("layers %v and %v", a.Layers, b.Layers)
	}
	content, err := os.ReadFile(filepath.Join(store.LayerDirs(b)[1], "two"))
	if err != nil || string(content) != "content of two" {
		t.Errorf("content %q, %v", content, err)
	}
	// By tag, by digest, by id, by short id.
	for _, ref := range []string{host + "/app:v1", a.RepoDigests[0], a.ID, strings.TrimPrefix(a.ID, "sha256:")[:12]} {
		if found, err := store.Resolve(ref); err != nil || found.ID != a.ID {
			t.Errorf("resolving %s: %v", ref, err)
		}
	}
	// Removing one keeps what the other shares.
	if err := store.Remove(t.Context(), a.ID, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Resolve(a.ID); !errors.Is(err, images.ErrNotFound) {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(store.LayerDirs(b)[0]); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(store.LayerDirs(a)[1]); err == nil {
		t.Error("the layer of a removed image is left")
	}
}

func TestPullMovesTheTag(t *testing.T) {
	host := newRegistry(t, nil)
	push(t, host+"/app:latest", newImage(t, "old"))
	store := newStore(t)
	old, err := store.Pull(t.Context(), host+"/app", images.Credentials{})
	if err != nil {
		t.Fatal(err)
	}
	push(t, host+"/app:latest", newImage(t, "new"))
	if _, err := store.Pull(t.Context(), host+"/app", images.Credentials{}); err != nil {
		t.Fatal(err)
	}
	untagged, err := store.Resolve(old.ID)
	if err != nil || len(untagged.RepoTags) != 0 {
		t.Errorf("the old image: %+v, %v", untagged, err)
	}
}

func TestPullUsesCredentials(t *testing.T) {
	host := newRegistry(t, func(w http.ResponseWriter, r *http.Request) bool {
		user, password, _ := r.BasicAuth()
		if user == "alice" && password == "secret" {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		http.Error(w, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
		return true
	})
	parsed, err := name.ParseReference(host+"/private:v1", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(parsed, newImage(t, "secret"), remote.WithAuth(&authn.Basic{Username: "alice", Password: "secret"})); err != nil {
		t.Fatal(err)
	}
	store := newStore(t)
	if _, err := store.Pull(t.Context(), host+"/private:v1", images.Credentials{}); err == nil {
		t.Error("pulled without credentials")
	}
	if _, err := store.Pull(t.Context(), host+"/private:v1", images.Credentials{Username: "alice", Password: "secret", ServerAddress: "other.test"}); err == nil {
		t.Error("credentials went to a registry that they are not for")
	}
	if _, err := store.Pull(t.Context(), host+"/private:v1", images.Credentials{Username: "alice", Password: "secret", ServerAddress: host}); err != nil {
		t.Error(err)
	}
}

func TestPullTriesMirrorsInOrder(t *testing.T) {
	mirror := newRegistry(t, nil)
	img := newImage(t, "mirrored")
	push(t, mirror+"/library/app:v1", img)
	hosts := t.TempDir()
	dir := filepath.Join(hosts, "registry.test")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf("server = \"http://127.0.0.1:1\"\n[host.\"http://127.0.0.1:2\"]\n  capabilities = [\"pull\"]\n[host.\"http://%s\"]\n  capabilities = [\"pull\", \"resolve\"]\n", mirror)
	if err := os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	store := newStore(t, func(c *images.Config) { c.HostsDir = hosts })
	got, err := store.Pull(t.Context(), "registry.test/library/app:v1", images.Credentials{})
	if err != nil {
		t.Fatal(err)
	}
	if got.RepoTags[0] != "registry.test/library/app:v1" {
		t.Errorf("tags %v name the mirror", got.RepoTags)
	}
}

func TestPullKeepsToTheHostsFile(t *testing.T) {
	var paths []string
	var mu sync.Mutex
	plain := newRegistry(t, func(_ http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		paths = append(paths, r.URL.Path)
		if rest, ok := strings.CutPrefix(r.URL.Path, "/mirror/v2"); ok {
			r.URL.Path = "/v2" + rest
		} else if rest, ok := strings.CutPrefix(r.URL.Path, "/bare"); ok {
			r.URL.Path = "/v2" + rest
		}
		return false
	})
	img := newImage(t, "pathed")
	push(t, plain+"/library/app:v1", img)
	secure := httptest.NewTLSServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer secure.Close()
	target, err := name.ParseReference(strings.TrimPrefix(secure.URL, "https://") + "/library/app:v1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(target, img, remote.WithTransport(secure.Client().Transport)); err != nil {
		t.Fatal(err)
	}
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})
	nowhere := "server = \"http://127.0.0.1:1\"\n"
	for _, test := range []struct{ name, config, pulls, path string }{
		{"path before the API", nowhere + "[host.\"http://" + plain + "/mirror\"]\n", "yes", "/mirror/v2/library/app/manifests/v1"},
		{"path instead of the API", nowhere + "[host.\"http://" + plain + "/bare\"]\noverride_path = true\n", "yes", "/bare/library/app/manifests/v1"},
		{"mirror that only pushes", nowhere + "[host.\"http://" + plain + "\"]\ncapabilities = [\"push\"]\n", "no", ""},
		{"certificate of nobody", "server = \"" + secure.URL + "\"\n", "no", ""},
		{"certificate not looked at", "server = \"" + secure.URL + "\"\nskip_verify = true\n", "yes", ""},
		{"certificate by its authority", "server = \"" + secure.URL + "\"\nca = \"ca.crt\"\ndial_timeout = \"2s\"\n", "yes", ""},
		{"setting that is not known", "server = \"http://" + plain + "\"\nsurprise = true\n", "no", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			hosts := t.TempDir()
			dir := filepath.Join(hosts, "registry.test:5000")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			for file, data := range map[string][]byte{"hosts.toml": []byte(test.config), "ca.crt": authority} {
				if err := os.WriteFile(filepath.Join(dir, file), data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			store := newStore(t, func(c *images.Config) { c.HostsDir = hosts })
			_, err := store.Pull(t.Context(), "registry.test:5000/library/app:v1", images.Credentials{})
			if (err == nil) != (test.pulls == "yes") {
				t.Errorf("error %v", err)
			}
			mu.Lock()
			defer mu.Unlock()
			if test.path != "" && !slices.Contains(paths, test.path) {
				t.Errorf("asked for %q", paths)
			}
		})
	}
}

// Each of two layers is sent only when both have been asked for.
func TestLayersAreFetchedSideBySide(t *testing.T) {
	img := newImage(t, "one", "two")
	var asked sync.Map
	var paths atomic.Int32
	both := make(chan struct{})
	host := newRegistry(t, func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") || strings.Contains(r.URL.Path, idOf(t, img)) {
			return false
		}
		if _, again := asked.LoadOrStore(r.URL.Path, true); again {
			return false
		}
		if paths.Add(1) == 2 {
			close(both)
		}
		select {
		case <-both:
		case <-r.Context().Done():
		}
		return false
	})
	push(t, host+"/two:v1", img)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := newStore(t).Pull(ctx, host+"/two:v1", images.Credentials{}); err != nil {
		t.Fatal(err)
	}
}

func TestStalledPullsEndAndProgressIsTold(t *testing.T) {
	img := newImage(t, "one", "two")
	reached := make(chan struct{})
	host := newRegistry(t, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") && !strings.Contains(r.URL.Path, idOf(t, img)) {
			select {
			case reached <- struct{}{}:
			case <-r.Context().Done():
			}
			<-r.Context().Done()
			return true
		}
		return false
	})
	push(t, host+"/hung:v1", img)
	store := newStore(t, func(c *images.Config) { c.StallTimeout = 300 * time.Millisecond })
	ended := make(chan error, 1)
	go func() {
		_, err := store.Pull(context.Background(), host+"/hung:v1", images.Credentials{})
		ended <- err
	}()
	<-reached
	if progress, ok := store.Progress(host + "/hung:v1"); !ok || progress.Total == 0 || progress.Done != 0 {
		t.Errorf("progress %v, %v", progress, ok)
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "no data has come for 300ms") {
		t.Errorf("error %v", err)
	}
	if _, ok := store.Progress(host + "/hung:v1"); ok {
		t.Error("a pull that has ended has progress")
	}
	assertNoDebris(t, store)
}

func TestPullRefusesContentWithAnotherDigest(t *testing.T) {
	img := newImage(t, "file")
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	digest, err := layers[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	other, err := newLayer(t, "file", "other content").Compressed()
	if err != nil {
		t.Fatal(err)
	}
	forged, err := io.ReadAll(other)
	if err != nil {
		t.Fatal(err)
	}
	host := newRegistry(t, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, digest.String()) {
			return false
		}
		_, _ = w.Write(forged)
		return true
	})
	push(t, host+"/forged:v1", img)
	store := newStore(t)
	if _, err := store.Pull(t.Context(), host+"/forged:v1", images.Credentials{}); err == nil {
		t.Fatal("forged content was accepted")
	}
	if list := store.List(); len(list) != 0 {
		t.Errorf("images %v", list)
	}
	assertNoDebris(t, store)
}

func TestCancelledPullLeavesNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	img := newImage(t, "one", "two")
	host := newRegistry(t, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			cancel()
			<-r.Context().Done()
			return true
		}
		return false
	})
	push(t, host+"/slow:v1", img)
	store := newStore(t)
	if _, err := store.Pull(ctx, host+"/slow:v1", images.Credentials{}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	assertNoDebris(t, store)
}

func assertNoDebris(t *testing.T, store *images.Store) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(store.Root(), "ingest"))
	if err != nil || len(entries) != 0 {
		t.Errorf("left in ingest: %v, %v", entries, err)
	}
}

func TestStoreSurvivesReopeningAndClearsCutOffWork(t *testing.T) {
	host := newRegistry(t, nil)
	push(t, host+"/app:v1", newImage(t, "file"))
	store := newStore(t)
	pulled, err := store.Pull(t.Context(), host+"/app:v1", images.Credentials{})
	if err != nil {
		t.Fatal(err)
	}
	stray := filepath.Join(store.Root(), "layers", strings.Repeat("0", 64))
	cut := filepath.Join(store.Root(), "ingest", "layer-cut")
	torn := filepath.Join(store.Root(), "images", strings.Repeat("1", 64)+".json")
	for _, dir := range []string{stray, cut} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(torn, []byte(`{"id":"sha2`), 0o600); err != nil {
		t.Fatal(err)
	}
	store = reopen(t, images.Config{Root: store.Root()})
	if found, err := store.Resolve(host + "/app:v1"); err != nil || found.ID != pulled.ID {
		t.Errorf("image %+v, %v", found, err)
	}
	for _, path := range []string{stray, cut, torn} {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left", path)
		}
	}
}

func TestImportTakesDockerArchivesAndOCILayouts(t *testing.T) {
	img := newImage(t, "base", "app")
	tag, err := name.NewTag("example.test/app:v1")
	if err != nil {
		t.Fatal(err)
	}
	docker := filepath.Join(t.TempDir(), "docker.tar")
	if err := tarball.WriteToFile(docker, tag, img); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := path.AppendImage(img, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": "example.test/app:v2"})); err != nil {
		t.Fatal(err)
	}
	oci := filepath.Join(t.TempDir(), "oci.tar")
	tarDir(t, dir, oci)
	for file, want := range map[string]string{docker: "example.test/app:v1", dir: "example.test/app:v2", oci: "example.test/app:v2"} {
		store := newStore(t)
		list, err := store.Import(t.Context(), file)
		if err != nil {
			t.Fatal(err)
		}
		if len(list) != 1 || list[0].ID != idOf(t, img) || list[0].RepoTags[0] != want {
			t.Errorf("%s: %+v", file, list)
		}
	}
	junk := filepath.Join(t.TempDir(), "junk.tar")
	if err := os.WriteFile(junk, []byte("no archive at all"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := newStore(t).Import(t.Context(), junk); err == nil {
		t.Error("junk was imported")
	}
}

func tarDir(t *testing.T, dir, target string) {
	t.Helper()
	file, err := os.Create(target)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	tw := tar.NewWriter(file)
	if err := tw.AddFS(os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestWatchedFolderIsImported(t *testing.T) {
	store := newStore(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- store.Watch(ctx) }()
	tag, err := name.NewTag("example.test/dropped:v1")
	if err != nil {
		t.Fatal(err)
	}
	if err := tarball.WriteToFile(filepath.Join(store.ImportDir(), "app.tar"), tag, newImage(t, "file")); err != nil {
		t.Fatal(err)
	}
	end := time.Now().Add(20 * time.Second)
	for {
		if _, err := store.Resolve("example.test/dropped:v1"); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the archive was not imported")
		}
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestNormalizeGivesFullNames(t *testing.T) {
	for ref, want := range map[string]string{
		"busybox":               "docker.io/library/busybox:latest",
		"busybox:1.36":          "docker.io/library/busybox:1.36",
		"user/app":              "docker.io/user/app:latest",
		"localhost:5000/app:v1": "localhost:5000/app:v1",
		"registry.k8s.io/pause": "registry.k8s.io/pause:latest",
		"app:v1@sha256:" + strings.Repeat("a", 64): "docker.io/library/app@sha256:" + strings.Repeat("a", 64),
	} {
		if got, err := images.Normalize(ref); err != nil || got != want {
			t.Errorf("%s: %q, %v", ref, got, err)
		}
	}
	if _, err := images.Normalize("UPPER/../case"); err == nil {
		t.Error("a malformed reference was accepted")
	}
}
