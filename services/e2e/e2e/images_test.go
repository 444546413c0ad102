package e2e

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// archive is the cluster's demo image as docker saves it: a list of images that name the
// files of their configuration and layers.
type archive map[string][]byte

type archived struct {
	Config   string
	RepoTags []string
	Layers   []string
}

func demoArchive(t *testing.T) (files archive, image archived) {
	t.Helper()
	file, err := os.Open(filepath.Join(cluster.Bin, "images", "demo.tar"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	files = archive{}
	for r := tar.NewReader(file); ; {
		header, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[header.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
	var list []archived
	if err := json.Unmarshal(files["manifest.json"], &list); err != nil || len(list) != 1 {
		t.Fatalf("the demo image's archive lists %v, %v", list, err)
	}
	return files, list[0]
}

func digest(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }

// startRegistry serves the demo image as demo:1 to who knows the password, where nodes can
// reach it, and returns the registry's address and the image's digest.
func startRegistry(t *testing.T, user, password string) (address, manifestDigest string) {
	t.Helper()
	type descriptor struct {
		MediaType string `json:"mediaType"`
		Size      int    `json:"size"`
		Digest    string `json:"digest"`
	}
	files, image := demoArchive(t)
	blobs := map[string][]byte{}
	add := func(name, kind string) descriptor {
		data := files[name]
		blobs[digest(data)] = data
		return descriptor{MediaType: kind, Size: len(data), Digest: digest(data)}
	}
	const docker = "application/vnd.docker."
	manifest := map[string]any{"schemaVersion": 2, "mediaType": docker + "distribution.manifest.v2+json", "config": add(image.Config, docker+"container.image.v1+json")}
	var layers []descriptor
	for _, name := range image.Layers {
		layers = append(layers, add(name, docker+"image.rootfs.diff.tar.gzip"))
	}
	manifest["layers"] = layers
	data, err := json.Marshal(manifest)
	if err != nil {
		t.Fatal(err)
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if u, p, _ := r.BasicAuth(); u != user || p != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if _, name, found := strings.Cut(r.URL.Path, "/blobs/"); found {
			_, _ = w.Write(blobs[name])
			return
		}
		if strings.Contains(r.URL.Path, "/manifests/") {
			w.Header().Set("Content-Type", docker+"distribution.manifest.v2+json")
			w.Header().Set("Docker-Content-Digest", digest(data))
			w.Header().Set("Content-Length", fmt.Sprint(len(data)))
			_, _ = w.Write(data)
		}
	})
	listener, err := net.Listen("tcp", "10.89.0.1:0") // the host, as the nodes see it
	if err != nil {
		t.Fatal(err)
	}
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: handler}}
	server.Start()
	t.Cleanup(server.Close)
	return listener.Addr().String(), digest(data)
}

func TestImagesArePulledWithSecretsAndByPolicy(t *testing.T) {
	namespace := newNamespace(t)
	address, sum := startRegistry(t, "puller", "secret")
	cluster.MustKubectl(t, "-n", namespace, "create", "secret", "docker-registry", "registry", "--docker-server="+address, "--docker-username=puller", "--docker-password=secret")
	from := func(name string, policy corev1.PullPolicy, secrets ...string) *corev1.Pod {
		pod := newPod(name, "exec sleep 3600")
		pod.Spec.NodeName = "node-1"
		pod.Spec.Containers[0].Image, pod.Spec.Containers[0].ImagePullPolicy = address+"/demo:1", policy
		for _, secret := range secrets {
			pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: secret})
		}
		return pod
	}
	mustCreatePod(t, namespace, from("never", corev1.PullNever))
	awaitPod(t, namespace, "never", "to miss its image", func(p *corev1.Pod) bool {
		w := first(p).State.Waiting
		return w != nil && w.Reason == "ErrImageNeverPull"
	})
	mustCreatePod(t, namespace, from("stranger", corev1.PullIfNotPresent))
	awaitEvent(t, namespace, "stranger", "Failed", "401")
	mustCreatePod(t, namespace, from("friend", corev1.PullIfNotPresent, "registry"))
	friend := awaitReady(t, namespace, "friend")
	if id := first(friend).ImageID; !strings.Contains(id, sum) {
		t.Errorf("its image is %s, not %s", id, sum)
	}
	for _, text := range []string{"Pulling", "Pulled"} {
		awaitEvent(t, namespace, "friend", text, address+"/demo:1")
	}
}

func TestArchivesAreImportedOnEveryNode(t *testing.T) {
	namespace := newNamespace(t)
	files, image := demoArchive(t)
	name := "localhost/" + namespace + "/copy:1"
	image.RepoTags = []string{name}
	var err error
	if files["manifest.json"], err = json.Marshal([]archived{image}); err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	for path, data := range files {
		if err := w.WriteHeader(&tar.Header{Name: path, Mode: 0o644, Size: int64(len(data))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "copy.tar")
	if err := os.WriteFile(path, packed.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := cluster.Sampan("image", "import", path); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, node := range []string{"node-1", "node-2"} {
		pod := newPod("on-"+node, "exec sleep 3600")
		pod.Spec.NodeName = node
		pod.Spec.Containers[0].Image, pod.Spec.Containers[0].ImagePullPolicy = name, corev1.PullNever
		mustCreatePod(t, namespace, pod)
		awaitReady(t, namespace, pod.Name)
	}
}
