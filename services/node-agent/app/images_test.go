package app_test

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// depot is a registry in the site's namespace that wants a password.
type depot struct {
	address string
	slow    atomic.Bool // give layers out slowly
}

const (
	depotUser, depotPassword = "alice", "secret"
	depotHost                = "depot.test"
)

func (d *depot) serve(store http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		if user != depotUser || password != depotPassword {
			w.Header().Set("WWW-Authenticate", `Basic realm="depot"`)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"who are you?"}]}`, http.StatusUnauthorized)
			return
		}
		if d.slow.Load() && r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			w = slowly{w}
		}
		store.ServeHTTP(w, r)
	}
}

// slowly writes about four seconds long, whatever the size of a test's image.
type slowly struct{ http.ResponseWriter }

func (s slowly) Write(p []byte) (int, error) {
	const parts = 40
	written := 0
	for part := range slices.Chunk(p, max(1, len(p)/parts)) {
		n, err := s.ResponseWriter.Write(part)
		written += n
		if err != nil {
			return written, err
		}
		time.Sleep(4 * time.Second / parts) // the point of it is to be slow
	}
	return written, nil
}

// newDepot starts the registry and pushes the test's image.
func newDepot(s *site) *depot {
	s.t.Helper()
	var listener net.Listener
	s.inside(func() (err error) {
		listener, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	})
	d := &depot{address: listener.Addr().String()}
	server := &http.Server{Handler: d.serve(registry.New(registry.Logger(log.New(io.Discard, "", 0)))), ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	s.t.Cleanup(func() { _ = server.Close() })
	target, err := name.ParseReference(d.address+"/team/tool:v2", name.Insecure)
	if err != nil {
		s.t.Fatal(err)
	}
	more, err := random.Layer(1<<20, types.DockerLayer) // that the node does not have yet
	if err != nil {
		s.t.Fatal(err)
	}
	image, err := mutate.AppendLayers(newToolImage(s.t), more)
	if err != nil {
		s.t.Fatal(err)
	}
	transport := &http.Transport{DialContext: s.dial}
	if err := remote.Write(target, image, remote.WithTransport(transport), remote.WithAuth(&authn.Basic{Username: depotUser, Password: depotPassword})); err != nil {
		s.t.Fatal(err)
	}
	return d
}

func writeFile(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

func TestImagesArePulledWithCredentialsAndToldOf(t *testing.T) {
	hosts, programs := t.TempDir(), t.TempDir()
	answer := fmt.Sprintf(`{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1","cacheKeyType":"Registry","auth":{%q:{"username":%q,"password":%q}}}`,
		depotHost, depotUser, depotPassword)
	writeFile(t, filepath.Join(programs, "vault"), "#!/bin/sh\n[ -e $(dirname $0)/open ] || exit 7\ncat <<E\n"+answer+"\nE\n", 0o755)
	writeFile(t, filepath.Join(programs, "config.yaml"), `
apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- {name: vault, apiVersion: credentialprovider.kubelet.k8s.io/v1, matchImages: [depot.test], defaultCacheDuration: 0s}
`, 0o644)
	s := newSite(t, "--registry-hosts-dir="+hosts, "--image-credential-provider-config="+filepath.Join(programs, "config.yaml"), "--image-credential-provider-bin-dir="+programs)
	d := newDepot(s)
	writeFile(t, filepath.Join(hosts, depotHost, "hosts.toml"), fmt.Sprintf("server = \"http://%s\"\n", d.address), 0o644)

	pod := func(name, more string) {
		s.apply(fmt.Sprintf("metadata: {name: %s}\nspec:\n  terminationGracePeriodSeconds: 0\n  containers: [{name: main, image: 'depot.test/team/tool:v2', imagePullPolicy: Always}]\n%s", name, more))
	}
	pod("without", "")
	failed := s.until("without", "to have failed to pull", func(pod *corev1.Pod) bool { return waitsFor(pod, "ImagePullBackOff") })
	message := failed.Status.ContainerStatuses[0].State.Waiting.Message
	if !strings.HasPrefix(message, `Back-off pulling image "depot.test/team/tool:v2": ErrImagePull: `) || !strings.Contains(message, "vault: exit status 7") {
		t.Errorf("message %q", message)
	}
	s.mustEvent("without", `Failed: Failed to pull image "depot.test/team/tool:v2": `)
	s.mustEvent("without", `BackOff: Back-off pulling image "depot.test/team/tool:v2"`)
	s.remove("without")

	d.slow.Store(true)
	auths := fmt.Sprintf(`{"auths":{"depot.test":{"username":%q,"password":%q}}}`, depotUser, depotPassword)
	_, err := s.client.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "pull"}, Type: corev1.SecretTypeDockerConfigJson, StringData: map[string]string{corev1.DockerConfigJsonKey: auths},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod("secret", "  imagePullSecrets: [{name: pull}]\n")
	s.mustEvent("secret", `Pulling: Pulling image "depot.test/team/tool:v2"`)
	s.until("secret", "to tell how far its pull is", func(pod *corev1.Pod) bool {
		return waitsFor(pod, "ContainerCreating") && strings.Contains(pod.Status.ContainerStatuses[0].State.Waiting.Message, " %)")
	})
	s.until("secret", "to run", running)
	s.mustEvent("secret", `Pulled: Successfully pulled image "depot.test/team/tool:v2" in `)
	s.mustEvent("secret", `including waiting). Image size: `)
	d.slow.Store(false)

	writeFile(t, filepath.Join(programs, "open"), "", 0o644)
	pod("plugin", "")
	s.until("plugin", "to run", running)
}

func waitsFor(pod *corev1.Pod, reason string) bool {
	return len(pod.Status.ContainerStatuses) > 0 && pod.Status.ContainerStatuses[0].State.Waiting != nil && pod.Status.ContainerStatuses[0].State.Waiting.Reason == reason
}

func TestPodsMountImagesAndHaveTheirOwnUsers(t *testing.T) {
	s := newSite(t)
	const spec = `
metadata: {name: %s}
spec:
  hostUsers: %t
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: registry.test/tool:v1
    args: [%s]
    volumeMounts:
    - {name: image, mountPath: /image}
    - {name: image, mountPath: /accounts, subPath: etc}
    - {name: scratch, mountPath: /scratch}
  volumes:
  - {name: scratch, emptyDir: {}}
  - {name: image, image: {reference: '%s', pullPolicy: IfNotPresent}}
`
	read := func(name string, hostUsers bool, args string) string {
		s.apply(fmt.Sprintf(spec, name, hostUsers, args, toolImage) + "  restartPolicy: Never\n")
		s.until(name, "to have ended", func(pod *corev1.Pod) bool {
			return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
		})
		return s.logs(name, corev1.PodLogOptions{})
	}
	for name, hostUsers := range map[string]bool{"node-users": true, "own-users": false} {
		if got := read(name+"-passwd", hostUsers, "read, /accounts/passwd"); !strings.HasPrefix(got, "root:x:0:0") {
			t.Errorf("%s: the sub path of the image has %q", name, got)
		}
		if got := read(name+"-write", hostUsers, "write, /image/file, x"); !strings.Contains(got, "read-only file system") {
			t.Errorf("%s: the image was written to: %q", name, got)
		}
		if got := read(name+"-scratch", hostUsers, "write, /scratch/file, x"); got != "" {
			t.Errorf("%s: the empty directory was not written to: %q", name, got)
		}
		ids := strings.Fields(read(name+"-map", hostUsers, "read, /proc/self/uid_map"))
		if len(ids) != 3 || (ids[1] == "0") != hostUsers {
			t.Errorf("%s: uid map %q", name, ids)
		}
	}
	s.apply(fmt.Sprintf(spec, "missing", true, "forever", "registry.test/missing:v1"))
	s.until("missing", "to wait for its volume's image", func(pod *corev1.Pod) bool {
		return waitsFor(pod, "ErrImagePull") || waitsFor(pod, "ImagePullBackOff")
	})
	s.apply(strings.Replace(fmt.Sprintf(spec, "no-sub-path", true, "forever", toolImage), "subPath: etc", "subPath: nowhere", 1))
	s.until("no-sub-path", "to fail", func(pod *corev1.Pod) bool { return waitsFor(pod, "CreateContainerError") })
}
